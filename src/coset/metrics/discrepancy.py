"""Maximum mean discrepancy between two samples of weights.

The kernels see the samples through L1 and squared L2 distances only, and both add up over blocks of
parameters, so the distances are streamed: memory holds a block of parameters and two matrices of
(m + n)² numbers in float64, never a second copy of the samples.  The permutation test reuses them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import (
    check_at_least,
    check_finite,
    check_floating,
    check_shape,
    working,
)
from coset.metrics.fused import fused_absolute_sums, pair_sums_for
from coset.metrics.kernels import Distances, Kernel, default_kernels

PARAMETER_BLOCK = 4_096
"""Parameters worked on at a time."""

SAMPLE_BLOCK = 32
"""Samples that one sample is compared with at a time: with a block of parameters half a megabyte
in float32, so that it stays in cache."""


@dataclass(frozen=True)
class Discrepancies:
    """The unbiased MMD² of each kernel.

    Attributes:
        kernels: The kernels, each with its bandwidth.
        values: MMD² of each, which may be slightly negative.
    """

    kernels: tuple[Kernel, ...]
    values: Float[Tensor, " k"]

    @property
    def largest(self) -> Float[Tensor, ""]:
        """The largest of the values."""
        return self.values.amax()


@dataclass(frozen=True)
class DiscrepancyTest:
    """A two-sample test: the statistic and the share of permutations that reach it."""

    statistic: float
    p_value: float


def maximum_mean_discrepancy(
    samples: Float[Tensor, "m p"],
    reference: Float[Tensor, "n p"],
    *,
    kernels: Sequence[Kernel] | None = None,
) -> Float[Tensor, ""]:
    """The largest unbiased MMD² over ten Laplace and ten Gaussian kernels.

    1/(m(m−1)) Σ_{i≠i'} k(x_i, x_i') + 1/(n(n−1)) Σ_{j≠j'} k(y_j, y_j') − 2/(mn) Σ_ij k(x_i, y_j)

    >>> from coset.metrics.kernels import laplace
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    >>> value = maximum_mean_discrepancy(x, y, kernels=[laplace(1.0)])
    >>> round(float(value), 4)  # e⁻¹ + e⁻¹ − ½ (2 + 2 e⁻¹) = e⁻¹ − 1
    -0.6321
    """
    return discrepancies(samples, reference, kernels=kernels).largest


def discrepancies(
    samples: Float[Tensor, "m p"],
    reference: Float[Tensor, "n p"],
    *,
    kernels: Sequence[Kernel] | None = None,
) -> Discrepancies:
    """The unbiased MMD² of every kernel, with the bandwidths that were used.

    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [7.0]])
    >>> result = discrepancies(x, y)
    >>> len(result.kernels), result.kernels[0].bandwidth, round(result.kernels[9].bandwidth, 6)
    (20, 2.0, 14.0)
    """
    check_samples(samples, reference)
    distances = pooled_distances(_parameter_blocks(samples, reference), samples.shape[1])
    return _compare(distances, len(samples), kernels, samples.dtype)


def stack_discrepancies(
    samples: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    *,
    kernels: Sequence[Kernel] | None = None,
) -> Discrepancies:
    """The same between two stacks of weights, all tensors together, without flattening them.

    >>> x, y = {"a": torch.tensor([[0.0], [1.0]])}, {"a": torch.tensor([[5.0], [7.0]])}
    >>> bool(stack_discrepancies(x, y).largest == discrepancies(x["a"], y["a"]).largest)
    True
    """
    pairs = _flat_tensors(samples, reference)
    parameters = sum(x.shape[1] for x, _ in pairs.values())
    blocks = chain.from_iterable(_parameter_blocks(x, y) for x, y in pairs.values())
    first, _ = next(iter(pairs.values()))
    return _compare(pooled_distances(blocks, parameters), len(first), kernels, first.dtype)


def layer_discrepancies(
    samples: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    *,
    kernels: Sequence[Kernel] | None = None,
) -> dict[str, Discrepancies]:
    """The discrepancies of each tensor of two stacks, and of all together under the name ``""``.

    One pass: the distances over all weights are the sums of those over the tensors.

    >>> x = {"a": torch.tensor([[0.0], [1.0]]), "b": torch.tensor([[0.0], [0.0]])}
    >>> y = {"a": torch.tensor([[5.0], [7.0]]), "b": torch.tensor([[0.0], [0.0]])}
    >>> result = layer_discrepancies(x, y)
    >>> bool(result[""].largest == result["a"].largest), float(result["b"].largest)
    (True, 0.0)
    """
    whole, results, first, dtype = None, {}, 0, torch.float32
    for name, (x, y) in _flat_tensors(samples, reference).items():
        first, dtype = len(x), x.dtype
        distances = pooled_distances(_parameter_blocks(x, y), x.shape[1])
        results[name] = _compare(distances, first, kernels, dtype)
        whole = distances if whole is None else whole.plus(distances)
    assert whole is not None
    results[""] = _compare(whole, first, kernels, dtype)
    return results


def _flat_tensors(
    samples: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> dict[str, tuple[Float[Tensor, "m p"], Float[Tensor, "n p"]]]:
    """Both sides of each tensor, checked, with the axes after the members in one."""
    if set(samples) != set(reference) or not samples:
        odd = sorted(set(samples) ^ set(reference))
        raise CosetError(
            f"the stacks differ in the tensors {odd}" if odd else "the stacks are empty",
            "needed the same tensor names on both sides",
            "take both stacks from one architecture",
        )
    pairs = {}
    for name, tensor in samples.items():
        x, y = (side.detach().reshape(len(side), -1) for side in (tensor, reference[name]))
        check_samples(x, y)
        pairs[name] = x, y
    return pairs


def discrepancy_test(
    samples: Float[Tensor, "m p"],
    reference: Float[Tensor, "n p"],
    *,
    kernels: Sequence[Kernel] | None = None,
    permutations: int = 499,
    generator: torch.Generator,
) -> DiscrepancyTest:
    """Do both samples have one law?  The p-value of the largest MMD² by permutation.

    Bandwidths follow the rule of ``maximum_mean_discrepancy`` over all pooled pairs in place of the
    cross pairs: they must not know which sample is which for the p-value to be exact.

    >>> x = torch.linspace(0, 1, 8).unsqueeze(1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> discrepancy_test(x, x + 9, permutations=99, generator=generator).p_value
    0.01
    """
    check_samples(samples, reference)
    check_at_least("permutations", permutations, 1)
    distances = pooled_distances(_parameter_blocks(samples, reference), samples.shape[1])
    total = len(samples) + len(reference)
    if kernels is None:
        rows, columns = torch.triu_indices(total, total, offset=1, device=distances.l1.device)
        kernels = default_kernels(distances.l1[rows, columns], distances.l2[rows, columns])
    draws = [torch.arange(total)]
    draws += [torch.randperm(total, generator=generator) for _ in range(permutations)]
    labels = torch.zeros(total, permutations + 1, dtype=torch.float64)
    for column, draw in enumerate(draws):
        labels[draw[: len(samples)], column] = 1
    labels = labels.to(distances.l1.device)
    statistics = torch.stack([_relabelled(kernel.gram(distances), labels) for kernel in kernels])
    observed, permuted = statistics.amax(0).split([1, permutations])
    reached = int((permuted >= observed - 1e-12).sum())
    return DiscrepancyTest(float(observed), (1 + reached) / (1 + permutations))


def _relabelled(gram: Float[Tensor, "t t"], labels: Float[Tensor, "t b"]) -> Float[Tensor, " b"]:
    """Unbiased MMD² for each column of labels (one: first sample), by one matrix product."""
    gram.fill_diagonal_(0)
    m = labels[:, 0].sum()
    n = len(gram) - m
    both = labels.T @ gram.sum(1)
    within = (labels * (gram @ labels)).sum(0)
    other = gram.sum() - 2 * both + within
    cross = both - within
    return within / (m * (m - 1)) + other / (n * (n - 1)) - 2 * cross / (m * n)


def _compare(
    distances: Distances, first: int, kernels: Sequence[Kernel] | None, dtype: torch.dtype
) -> Discrepancies:
    if kernels is None:
        cross = (slice(0, min(first, 500)), slice(first, first + 500))
        kernels = default_kernels(distances.l1[cross].flatten(), distances.l2[cross].flatten())
    if not kernels:
        raise CosetError("kernels is empty", "needed at least one kernel", "leave it out")
    labels = torch.zeros(len(distances.l1), 1, dtype=torch.float64, device=distances.l1.device)
    labels[:first] = 1
    values = [_relabelled(kernel.gram(distances), labels) for kernel in kernels]
    return Discrepancies(tuple(kernels), torch.cat(values).to(dtype))


def check_samples(samples: Tensor, reference: Tensor) -> None:
    """Refuse samples that are not two or more flat vectors of the same length."""
    for name, values in (("samples", samples), ("reference", reference)):
        check_floating(name, values)
        check_shape(name, values, ("m", "p"))
        check_finite(name, values)
        if len(values) < 2:
            raise CosetError(
                f"{name} has one vector",
                "needed two or more: the unbiased estimate compares pairs",
                "draw more samples",
            )
    if samples.shape[1] != reference.shape[1] or samples.dtype != reference.dtype:
        raise CosetError(
            f"samples are {tuple(samples.shape)} {samples.dtype}, "
            f"reference {tuple(reference.shape)} {reference.dtype}",
            "needed equally many parameters and one dtype",
            "take both from one architecture, flattened alike",
        )


def _parameter_blocks(samples: Tensor, reference: Tensor) -> Iterable[Float[Tensor, "t b"]]:
    """Both samples pooled, a block of parameters at a time, around the mean of the block."""
    for start in range(0, samples.shape[1], PARAMETER_BLOCK):
        columns = slice(start, start + PARAMETER_BLOCK)
        block = working(torch.cat([samples[:, columns], reference[:, columns]]).detach())
        # Distances ignore a shift, and small numbers lose less in the Gram matrix.
        yield block - block.mean(0)


def pooled_distances(blocks: Iterable[Float[Tensor, "t b"]], parameters: int = 0) -> Distances:
    """L1 and L2 distances between all vectors, summed in float64 over blocks of parameters.

    Args:
        blocks: All vectors, some parameters at a time.
        parameters: How many there are in all, to tell whether compiling pays.

    >>> pooled_distances([torch.tensor([[0.0], [3.0]]), torch.tensor([[0.0], [4.0]])]).l2[0, 1]
    tensor(5., dtype=torch.float64)
    """
    l1 = squared = None
    for block in blocks:
        absolute_sums = pair_sums_for(
            len(block), parameters, block, torch_absolute_sums, fused_absolute_sums
        )
        wide = block.double()
        gram = wide @ wide.T
        norms = gram.diagonal()
        square = norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram
        upper = absolute_sums(block)
        l1 = upper if l1 is None else l1.add_(upper)
        squared = square if squared is None else squared.add_(square)
    assert l1 is not None
    assert squared is not None
    return Distances((l1 + l1.T).clamp_min_(0), squared.clamp_min_(0).fill_diagonal_(0).sqrt_())


def torch_absolute_sums(block: Float[Tensor, "t b"]) -> Float[Tensor, "t t"]:
    """Σ |a − b| of each pair of rows, above the diagonal.

    As 2 Σ max(a, b) − Σ a − Σ b: two passes over a buffer that stays in cache, where torch.cdist
    needs three times as long.

    >>> torch_absolute_sums(torch.tensor([[0.0, 1.0], [2.0, -1.0]]))[0, 1].item()
    4.0
    """
    count = len(block)
    buffer = block.new_empty(min(SAMPLE_BLOCK, count), block.shape[1])
    sums = block.sum(-1)
    total = torch.zeros(count, count, dtype=torch.float64, device=block.device)
    for i in range(count - 1):
        for start in range(i + 1, count, SAMPLE_BLOCK):
            rows = slice(start, start + SAMPLE_BLOCK)
            others = block[rows]
            largest = torch.maximum(others, block[i], out=buffer[: len(others)]).sum(-1)
            total[i, rows] = 2 * largest - sums[i] - sums[rows]
    return total
