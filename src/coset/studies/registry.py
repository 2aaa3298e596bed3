"""The table of studies."""

from collections.abc import Mapping
from importlib import import_module

from coset.errors import CosetError, names_like
from coset.studies.study import SCALES, Study

STUDIES: Mapping[str, str] = {
    "posterior-quality": "coset.studies.posterior_quality",
    "min-mass": "coset.studies.min_mass",
    "functional-diversity": "coset.studies.functional_diversity",
    "order-in-training": "coset.studies.order_in_training",
    "rebasin-barriers": "coset.studies.rebasin_barriers",
    "rebased-gaussian": "coset.studies.rebased_gaussian",
    "marginal-likelihood": "coset.studies.marginal_likelihood",
    "deep-image-prior": "coset.studies.deep_image_prior",
    "dense-uq": "coset.studies.dense_uq",
}
"""Every study and the module that declares it as ``STUDY``."""

DEMO_SECONDS: Mapping[str, float] = {
    "posterior-quality": 60,
    "min-mass": 80,
    "functional-diversity": 30,
    "order-in-training": 30,
    "rebasin-barriers": 40,
    "rebased-gaussian": 85,
    "marginal-likelihood": 85,
    "deep-image-prior": 80,
    "dense-uq": 90,
}
"""How the studies share the demo's ten CPU minutes; what they took is in the documentation."""


def names() -> tuple[str, ...]:
    """The names of all studies."""
    return tuple(STUDIES)


def study_named(name: str) -> Study:
    """A study by its name.

    Raises:
        CosetError: If there is none, with the names that come close.
    """
    if name not in STUDIES:
        raise CosetError(
            f"got the study {name!r}",
            f"needed one of {', '.join(STUDIES)}",
            f"did you mean {names_like(str(name), STUDIES)}?",
        )
    found: Study = import_module(STUDIES[name]).STUDY
    return found


def check_scale(scale: str) -> None:
    """Refuses a scale that there is not."""
    if scale not in SCALES:
        raise CosetError(
            f"got the scale {scale!r}",
            f"needed one of {', '.join(SCALES)}",
            f"did you mean {names_like(str(scale), SCALES)}?",
        )
