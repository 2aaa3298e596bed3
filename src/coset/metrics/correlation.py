"""Does diversity on known data foretell diversity on unknown data?  Over pairs of networks.

The m (m − 1)/2 pairs share networks and are not independent, so the bootstrap resamples networks,
not pairs: with w_i copies of network i, pair (i, j) has weight w_i w_j.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_at_least, check_finite, check_floating, check_same_shape


@dataclass(frozen=True)
class DiversityCorrelation:
    """Correlation of two pairwise matrices over the pairs of networks.

    Attributes:
        pearson: Linear correlation.
        spearman: Correlation of the ranks.
        pearson_standard_error: By the bootstrap over networks.
        spearman_standard_error: By the bootstrap over networks.
    """

    pearson: float
    spearman: float
    pearson_standard_error: float
    spearman_standard_error: float


def diversity_correlation(
    inlier: Float[Tensor, "m m"],
    outlier: Float[Tensor, "m m"],
    *,
    resamples: int = 200,
    generator: torch.Generator,
) -> DiversityCorrelation:
    """Pearson and Spearman between two pairwise matrices, with standard errors over networks.

    >>> inlier = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]])
    >>> generator = torch.Generator().manual_seed(0)
    >>> result = diversity_correlation(inlier, -inlier, resamples=2, generator=generator)
    >>> round(result.pearson, 6), round(result.spearman, 6)
    (-1.0, -1.0)
    """
    networks = _check_matrices(inlier, outlier)
    check_at_least("resamples", resamples, 2)
    rows, columns = torch.triu_indices(networks, networks, offset=1, device=inlier.device)
    first, second = inlier[rows, columns].double(), outlier[rows, columns].double()
    # Ranks under weights need only the order of the values, which no resampling changes.
    levels = [values.unique(return_inverse=True)[1] for values in (first, second)]
    replicates = []
    for weights in _resampled_networks(networks, resamples, generator):
        pair_weights = (weights[rows.cpu()] * weights[columns.cpu()]).to(first)
        replicates.append(
            [
                weighted_pearson(first, second, pair_weights),
                _spearman(levels, pair_weights),
            ]
        )
    ones = torch.ones_like(first)
    spread = torch.tensor(replicates, dtype=torch.float64).std(0).tolist()
    return DiversityCorrelation(
        weighted_pearson(first, second, ones),
        _spearman(levels, ones),
        *spread,
    )


def _spearman(levels: list[Tensor], weights: Float[Tensor, " k"]) -> float:
    first, second = (weighted_ranks(values, weights) for values in levels)
    return weighted_pearson(first, second, weights)


def _resampled_networks(
    networks: int, resamples: int, generator: torch.Generator
) -> list[Float[Tensor, " m"]]:
    """How often each network is drawn; draws of fewer than three distinct networks are redrawn."""
    counts: list[Tensor] = []
    while len(counts) < resamples:
        drawn = torch.randint(networks, (networks,), generator=generator)
        count = torch.bincount(drawn, minlength=networks)
        if int((count > 0).sum()) >= 3:
            counts.append(count.double())
    return counts


def weighted_pearson(
    first: Float[Tensor, " k"], second: Float[Tensor, " k"], weights: Float[Tensor, " k"]
) -> float:
    """Σ w (a − ā)(b − b̄) / √(Σ w (a − ā)² Σ w (b − b̄)²), with weighted means.

    >>> a = torch.tensor([0.0, 1.0, 5.0])
    >>> weighted_pearson(a, -2 * a, torch.tensor([1.0, 3.0, 0.0]))
    -1.0
    """
    share = weights / weights.sum()
    a, b = first - (share * first).sum(), second - (share * second).sum()
    return float((share * a * b).sum() / ((share * a * a).sum() * (share * b * b).sum()).sqrt())


def weighted_ranks(levels: Tensor, weights: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The middle rank of each entry when it stands for ``weights`` copies of itself.

    ``levels`` numbers the distinct values in ascending order.

    >>> weighted_ranks(torch.tensor([1, 0, 1]), torch.ones(3)).tolist()
    [2.5, 1.0, 2.5]
    """
    per_level = torch.bincount(levels, weights=weights)
    middle = per_level.cumsum(0) - per_level / 2 + 0.5
    return middle[levels]


def _check_matrices(inlier: Tensor, outlier: Tensor) -> int:
    for name, matrix in (("inlier", inlier), ("outlier", outlier)):
        check_floating(name, matrix)
        check_finite(name, matrix)
    check_same_shape("inlier", inlier, "outlier", outlier)
    if inlier.ndim != 2 or inlier.shape[0] != inlier.shape[1] or len(inlier) < 3:
        raise CosetError(
            f"the matrices have shape {tuple(inlier.shape)}",
            "needed (m, m) for at least three networks",
            "give the results of pairwise_mutual_information",
        )
    return len(inlier)
