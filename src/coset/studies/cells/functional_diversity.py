"""Mutual information of all pairs of trained networks, on known and on unknown data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.metrics import pairwise_mutual_information
from coset.metrics.correlation import diversity_correlation
from coset.studies.cells.data import pictures
from coset.studies.cells.networks import (
    accuracies,
    module_of,
    probabilities,
    seeded,
    trained,
)
from coset.symmetry.discover import discover

_SHOWN = 1000
"""Pairs kept for the figures."""


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """Diversity of all pairs, its spread and correlation, and two controls."""
    data, module = pictures(parameters), module_of(parameters)
    stack = trained(parameters, seed=seed, folder=folder)
    known = probabilities(module, stack, data.test[0]).double()
    unknown = probabilities(module, stack, data.outliers).double()
    inlier, outlier = _pairs(known), _pairs(unknown)
    correlation = diversity_correlation(
        pairwise_mutual_information(known),
        pairwise_mutual_information(unknown),
        resamples=100,
        generator=seeded(seed, "bootstrap"),
    )
    order = torch.randperm(len(inlier), generator=seeded(seed, "pairs"))[:_SHOWN].sort().values
    group = discover(module, data.test[0][:2])
    element = group.sample(generator=seeded(seed, "element"))
    first = {name: tensor[0].double() for name, tensor in stack.items()}
    both = {name: torch.stack([w, first[name]]) for name, w in group.act(element, first).items()}
    copies = torch.stack([known[0], known[0]])
    return {
        "inlier_mean": float(inlier.mean()),
        "outlier_mean": float(outlier.mean()),
        "inlier_variation": _variation(inlier),
        "outlier_variation": _variation(outlier),
        "variation_ratio": _variation(outlier) / _variation(inlier),
        "outlier_over_inlier": float(outlier.mean() / inlier.mean()),
        "least_over_mean": float(inlier.min() / inlier.mean()),
        "pearson": correlation.pearson,
        "pearson_standard_error": correlation.pearson_standard_error,
        "spearman": correlation.spearman,
        "accuracy": float(accuracies(module, stack, data).mean()),
        "networks": len(known),
        "pairs": len(inlier),
        "pairs_inlier": inlier[order].tolist(),
        "pairs_outlier": outlier[order].tolist(),
        "control_identical": float(_pairs(copies).abs().max()),
        "control_moved": float(
            _pairs(probabilities(module.double(), both, data.test[0].double())).abs().max()
        ),
    }


def _pairs(members: Tensor) -> Tensor:
    """The mutual information of each pair."""
    matrix = pairwise_mutual_information(members)
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return matrix[rows, columns]


def _variation(values: Tensor) -> float:
    """Standard deviation over mean."""
    return float(values.std() / values.mean())
