"""Where the evidence of a classifier is taken: its mean, and the Hessian of the outputs."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

from coset.bayes.likelihood import Categorical
from coset.curvature.kfac import KFAC
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.method import Laplace
from coset.metrics import negative_log_likelihood
from coset.predictor import fit
from coset.studies.cells.data import pictures
from coset.studies.cells.networks import module_of, problem_of, recipe_of, seeded
from coset.weights.network import assign

_POINTS: tuple[Literal["network", "tangent"], ...] = ("network", "tangent")


def compare_points(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Test log loss for each mean of the evidence and each point of the Hessian.

    Either is at the network's own weights ``θ~`` or at the mode ``θ*`` of the linearised model.
    """
    data, problem = pictures(parameters), problem_of(parameters)
    found = recipe_of(parameters).fit(problem, generator=seeded(seed, "pictures")).weights
    network = assign(module_of(parameters), found)
    losses = {}
    for mean, hessian in product(_POINTS, _POINTS):
        tuning = ByEvidence(mean=mean, form="full", hessian=hessian, groups="single")
        predictor = fit(
            network,
            data.train,
            method=Laplace(KFAC(), tuning=tuning),
            likelihood=Categorical(),
            generator=seeded(seed, "laplace"),
        )
        said = predictor(data.test[0]).mean
        losses[mean, hessian] = float(negative_log_likelihood(said, data.test[1]))
    by_mean = losses["network", "network"] - losses["tangent", "network"]
    by_hessian = losses["tangent", "network"] - losses["tangent", "tangent"]
    return {
        "points": ["θ~, H at θ~", "θ~, H at θ*", "θ*, H at θ~", "θ*, H at θ*"],
        "loss_points": list(losses.values()),
        "gained_by_mean": by_mean,
        "gained_by_hessian": by_hessian,
        "mean_over_hessian": by_mean - by_hessian,
    }
