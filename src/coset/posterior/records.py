"""Posteriors, likelihoods and priors as JSON facts beside named tensors, and back.

Only the classes of :data:`FAMILIES` are written or read, field by field; nothing is ever unpickled.
A new family that is a dataclass needs one row there.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from coset.bayes.batches import as_tensor
from coset.bayes.likelihood import (
    Bernoulli,
    Categorical,
    GaussianNoise,
    HeteroscedasticGaussian,
)
from coset.bayes.multivariate import MultivariateNoise
from coset.bayes.prior import GaussianPrior
from coset.errors import CosetError, told
from coset.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Embedded,
    Kronecker,
    LowRankPlusDiagonal,
    RowBlocks,
)
from coset.posterior.calibrated import Calibrated, ClassScaling, Conformal, VarianceScaling
from coset.posterior.families import FitReport, Mixture, PointMass, Samples, Snapshot
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import Linearised
from coset.posterior.links import LaplaceBridge, Probit, SampledSoftmax, TopDifference
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.predict import MonteCarlo
from coset.posterior.random_masks import RandomMasks
from coset.posterior.record_checks import require_consistent, require_fields
from coset.posterior.symmetrised import Symmetrised
from coset.posterior.tangent_samples import TangentSamples
from coset.posterior.tiles import Tiled
from coset.posterior.unit_blocks import UnitBlocks
from coset.symmetry.elements import (
    PermutationFactor,
    Pinned,
    ScaleInvariance,
    ScalingFactor,
    Site,
)
from coset.symmetry.group import SymmetryGroup
from coset.weights.masks import DropoutSite

FAMILIES: Mapping[str, type] = {
    "Bernoulli": Bernoulli,
    "BlockDiagonal": BlockDiagonal,
    "Calibrated": Calibrated,
    "Categorical": Categorical,
    "ClassScaling": ClassScaling,
    "Conformal": Conformal,
    "Dense": Dense,
    "Diagonal": Diagonal,
    "DropoutSite": DropoutSite,
    "Embedded": Embedded,
    "FitReport": FitReport,
    "Gaussian": Gaussian,
    "GaussianNoise": GaussianNoise,
    "GaussianPrior": GaussianPrior,
    "HeteroscedasticGaussian": HeteroscedasticGaussian,
    "Kronecker": Kronecker,
    "LaplaceBridge": LaplaceBridge,
    "Linearised": Linearised,
    "LowRankGaussian": LowRankGaussian,
    "LowRankPlusDiagonal": LowRankPlusDiagonal,
    "Mixture": Mixture,
    "MonteCarlo": MonteCarlo,
    "MultivariateNoise": MultivariateNoise,
    "PermutationFactor": PermutationFactor,
    "Pinned": Pinned,
    "PointMass": PointMass,
    "Probit": Probit,
    "RandomMasks": RandomMasks,
    "RowBlocks": RowBlocks,
    "SampledSoftmax": SampledSoftmax,
    "Samples": Samples,
    "ScaleInvariance": ScaleInvariance,
    "ScalingFactor": ScalingFactor,
    "Site": Site,
    "Snapshot": Snapshot,
    "Symmetrised": Symmetrised,
    "SymmetryGroup": SymmetryGroup,
    "TangentSamples": TangentSamples,
    "Tiled": Tiled,
    "TopDifference": TopDifference,
    "UnitBlocks": UnitBlocks,
    "VarianceScaling": VarianceScaling,
}


def describe(value: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """A value as facts that JSON can hold, and the tensors in it, named after their place.

    >>> describe(GaussianNoise(0.5), "likelihood")
    ({'family': 'GaussianNoise', 'fields': {'std': 0.5, 'missing': 'refuse'}}, {})
    """
    value = value.item() if isinstance(value, np.generic) else as_tensor(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value, {}
    if isinstance(value, Tensor):
        return {"tensor": name}, {name: value}
    if isinstance(value, Mapping):
        facts, tensors = _describe_all(value, name)
        return {"mapping": facts}, tensors
    if isinstance(value, tuple | list):
        facts, tensors = _describe_all({str(i): part for i, part in enumerate(value)}, name)
        return {"tuple": list(facts.values())}, tensors
    family = type(value).__name__
    if FAMILIES.get(family) is not type(value) or not is_dataclass(value):
        raise CosetError(
            f"got {name} of type {family}, which cannot be saved",
            f"needed one of {', '.join(FAMILIES)}",
        )
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    facts, tensors = _describe_all(parts, name)
    return {"family": family, "fields": facts}, tensors


def _describe_all(parts: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    facts: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for key, part in parts.items():
        facts[key], found = describe(part, f"{name}.{key}")
        tensors |= found
    return facts, tensors


def restore(facts: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`describe` took apart.

    >>> restore({"family": "GaussianNoise", "fields": {"std": 0.5}}, {})
    GaussianNoise(std=0.5, missing='refuse')
    """
    if not isinstance(facts, Mapping):
        return facts
    match facts:
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"mapping": Mapping() as parts}:
            return {key: restore(part, tensors) for key, part in parts.items()}
        case {"tuple": list() as parts}:
            return tuple(restore(part, tensors) for part in parts)
        case {"family": str(family), "fields": Mapping() as parts}:
            return _rebuild(family, {key: restore(part, tensors) for key, part in parts.items()})
    raise CosetError(
        f"got a record with the entry {told(dict(facts))}", "needed one that this version writes"
    )


def _rebuild(family: str, parts: dict[str, Any]) -> Any:
    if family not in FAMILIES:
        raise CosetError(
            f"got a record with the family {family!r}",
            f"needed one of {', '.join(FAMILIES)}",
            "a newer coset may have written it",
        )
    known = {field.name for field in fields(FAMILIES[family])}
    if parts.keys() - known:
        raise CosetError(
            f"got a {family} with the unknown field {min(parts.keys() - known)!r}",
            f"needed {', '.join(sorted(known)) or 'no field'}",
            "a newer coset may have written it",
        )
    require_fields(FAMILIES[family], parts)
    found = FAMILIES[family](**parts)
    require_consistent(found)
    return found
