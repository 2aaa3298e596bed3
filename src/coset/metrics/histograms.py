"""Metrics that order a whole set, from histograms: memory does not grow, no pixel is left out.

Numbers fall into bins of equal ratio, 128 to a factor of two, and inside a bin their order is
unknown.  Equal numbers share a place in the exact forms too, so a metric takes all of a bin as
equal, and its *bound* is how far any order inside the bins could carry it.  Probabilities count to
24 binary digits, which is what float32 has of those near one; scores within 2**-24 of zero as zero.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STEPS = 128
"""Bins to a factor of two."""

LOWEST, HIGHEST = -24, 8
"""Sizes below 2**-24 count as zero; those above 2**8 share the last bin."""

HALF = (HIGHEST - LOWEST) * STEPS
"""Bins of either sign, beside the bin of zero."""

UNIT = 2 * ((-1 - LOWEST) * STEPS + 1)
"""Bins of probabilities: by their size below one half, by that of ``1 - p`` above."""

SINGLE = 1 + int(math.log2(STEPS)) * STEPS
"""So many bins at either end of the probabilities hold one number each, to 24 binary digits."""


def _size_bin(sizes: Float[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """0 for what counts as zero, then the number of the bin of a size from 1."""
    wide = sizes.double()
    mantissa, exponent = torch.frexp(wide.clamp(2.0**LOWEST, 2.0**HIGHEST))
    step = ((2 * mantissa - 1) * STEPS).long()
    index = ((exponent - 1 - LOWEST) * STEPS + step).clamp(0, HALF - 1)
    return torch.where(wide < 2.0**LOWEST, 0, index + 1)


def score_bin(scores: Float[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Bins in the order of any numbers; that of zero is in the middle.

    >>> score_bin(torch.tensor([-1.0, 0.0, 0.001, 1.0])).diff().gt(0).all()
    tensor(True)
    """
    return HALF + torch.where(scores > 0, 1, -1) * _size_bin(scores.abs())


def chance_bin(chances: Float[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Bins in the order of probabilities, as fine near one as near zero.

    >>> chance_bin(torch.tensor([0.0, 0.4, 0.5, 1.0])).tolist()[::3] == [0, UNIT - 1]
    True
    """
    wide = (chances.double() * 2.0**-LOWEST).round() * 2.0**LOWEST
    low, high = _size_bin(wide), UNIT - 1 - _size_bin(1 - wide)
    return torch.where(wide < 0.5, low.clamp_max(UNIT // 2 - 1), high.clamp_min(UNIT // 2))


def detection_counts(
    inlier_scores: Float[Tensor, " n"], outlier_scores: Float[Tensor, " o"]
) -> Float[Tensor, "2 bins"]:
    """How many inliers, and how many outliers, have a score in each bin."""
    sides = (inlier_scores, outlier_scores)
    return torch.stack(
        [torch.bincount(score_bin(side), minlength=2 * HALF + 1).double() for side in sides]
    )


def auroc_of(counts: Float[Tensor, "2 bins"]) -> tuple[Tensor, Tensor]:
    """Area under the receiver operating characteristic, and its bound: half of the pairs tied."""
    inliers, outliers = counts
    pairs = inliers.sum() * outliers.sum()
    tied = inliers * outliers / 2
    wins = (outliers * (inliers.cumsum(0) - inliers)).sum()
    return (wins + tied.sum()) / pairs, (tied.sum() - tied[HALF]) / pairs


def aupr_of(counts: Float[Tensor, "2 bins"]) -> tuple[Tensor, Tensor]:
    """Average precision, and its bound.

    With T outliers and F inliers above a bin of m outliers and n inliers, precisions lie between
    those of all n first, Σ_j (T + j) / (T + j + F + n), and all n last.
    """
    inliers, outliers = counts.flip(1)
    found, false = outliers.cumsum(0), inliers.cumsum(0)
    total = outliers.sum()
    tied = outliers * found / (found + false).clamp_min(1)
    before, wrong = found - outliers, false - inliers

    def ordered(above: Tensor) -> Tensor:
        """Σ_j (T + j) / (T + j + above) = m − above Σ_j 1 / (T + j + above), but for zeros."""
        start = before + above
        harmonic = torch.digamma(start + outliers + 1) - torch.digamma(start + 1)
        sums: Tensor = outliers - above * harmonic
        sums[HALF] = tied[HALF]
        return sums

    best, worst = (ordered(wrong) - tied).sum(), (tied - ordered(false)).sum()
    return tied.sum() / total, torch.maximum(best, worst).clamp_min(0) / total


def fpr_at_95_of(counts: Float[Tensor, "2 bins"]) -> tuple[Tensor, Tensor]:
    """Share of inliers above the score that finds 95 % of outliers, and that of its bin."""
    inliers, outliers = counts.flip(1)
    total = int(outliers.sum())
    needed = -(-19 * total // 20)
    place = int(torch.searchsorted(outliers.cumsum(0), torch.tensor(float(needed)).to(outliers)))
    bound = inliers[place] * (place != HALF)
    return inliers[: place + 1].sum() / inliers.sum(), bound / inliers.sum()


def confidence_sums(
    confidence: Float[Tensor, "*rows n"], right: Bool[Tensor, "*rows n"]
) -> Float[Tensor, "3 *rows bins"]:
    """Number, summed confidence and right answers of each bin of confidences, for each row."""
    rows = confidence.shape[:-1]
    index, wide = chance_bin(confidence), confidence.double()
    values = torch.stack([torch.ones_like(wide), wide, right.double()])
    sums = values.new_zeros(3, *rows, UNIT)
    return sums.scatter_add_(-1, index.expand_as(values), values)


def adaptive_error_of(
    sums: Float[Tensor, "3 *rows bins"], *, ranges: int = 15
) -> tuple[Tensor, Tensor]:
    """Mean over rows of the gap in ranges of equal count, and its bound.

    A border inside a bin of k answers, r of them right, that leaves a below it moves at most
    ``max(min(r, a) − r a / k, r a / k − max(0, a − k + r))`` right answers, and as much confidence
    as the bin is wide, between its two ranges.
    """
    count, confidence, right = sums.flatten(1, -2) if sums.dim() > 2 else sums.unsqueeze(1)
    total = int(count[0].sum())
    ranges = min(ranges, total)
    sizes = torch.full((ranges,), total // ranges, dtype=count.dtype)
    sizes[: total % ranges] += 1
    inner = sizes.cumsum(0)[:-1].to(count)
    ends = count.cumsum(-1)
    place = torch.searchsorted(ends, inner.expand(len(count), -1).contiguous())

    def at(values: Tensor) -> Tensor:
        return values.gather(-1, place)

    k, r = at(count), at(right)
    below = inner - (at(ends) - k)
    share = below / k
    gap = right - confidence
    borders = at(gap.cumsum(-1)) - at(gap) * (1 - share)
    last = gap.sum(-1, keepdim=True)
    cuts = torch.cat([torch.zeros_like(last), borders, last], dim=-1)
    error = (cuts.diff(dim=-1).abs() / sizes.to(cuts)).mean(-1)
    expected = r * share
    more = torch.minimum(r, below) - expected
    less = expected - (below - k + r).clamp_min(0)
    edges = _chance_edges().to(count)
    width = (edges[1:] - edges[:-1])[place] * torch.minimum(below, k - below)
    moved = torch.maximum(more, less) + width
    moved = torch.where((place >= SINGLE) & (place < UNIT - SINGLE), moved, 0.0)
    bound = (moved * (1 / sizes[:-1] + 1 / sizes[1:]).to(moved)).sum(-1) / ranges
    return error.mean(), bound.mean()


def _chance_edges() -> Float[Tensor, " edges"]:
    """Where bins of probabilities begin, and 1."""
    octaves = torch.arange(LOWEST, -1, dtype=torch.float64).repeat_interleave(STEPS)
    steps = torch.arange(STEPS, dtype=torch.float64).repeat(-1 - LOWEST)
    low = torch.cat([octaves.new_zeros(1), 2.0**octaves * (1 + steps / STEPS)])
    return torch.cat([low, low.new_tensor([0.5]), (1 - low).flip(0)])


def risk_area_of(sums: Float[Tensor, "3 bins"]) -> tuple[Tensor, Tensor]:
    """Area under the risk-coverage curve, and its bound.

    In a bin of k answers, w of them wrong, behind N answers with W wrong, equal confidences mean
    ``Σ_j (W + w j / k) / (N + j)``; no order is further from w j / k than w (k − w) / k.
    """
    count, _, right = sums.flip(1)
    wrong = count - right
    behind, wrong_behind = count.cumsum(0) - count, wrong.cumsum(0) - wrong
    harmonic = torch.digamma(behind + count + 1) - torch.digamma(behind + 1)
    share = wrong / count.clamp_min(1)
    area = wrong_behind * harmonic + share * (count - behind * harmonic)
    bound = share * right * harmonic
    bound[:SINGLE] = bound[-SINGLE:] = 0.0
    return area.sum() / count.sum(), bound.sum() / count.sum()
