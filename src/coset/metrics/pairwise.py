"""Mutual information of every pair of networks, the study of Laurent et al. 2024, section 5.

For a pair, I = H((p + q)/2) − (H(p) + H(q))/2.  With s = p + q, H(s/2) = log 2 − ½ Σ s log s, so a
pair costs one sum of s log s; the entropies of the members are computed once.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_at_least, check_simplex, working
from coset.metrics.diversity import check_members, check_two_members, entropy_unchecked
from coset.metrics.fused import fused_entropy_sums, pair_sums_for

COLUMNS = 8_192
"""Entries of a network worked on at a time."""

BLOCK = 1 << 17
"""Entries of a block of pairs: half a megabyte in float32, so that it stays in cache."""


def pairwise_mutual_information(members: Float[Tensor, "m n c"]) -> Float[Tensor, "m m"]:
    """The mutual information of each pair of members in nats, averaged over the inputs.

    Symmetric, zero on the diagonal, at most log 2.  Float32 blocks are summed in float64.  Large
    problems use a fused kernel where numba is installed, all others plain torch.

    >>> one, other = [[1.0, 0.0]], [[0.0, 1.0]]
    >>> pairwise_mutual_information(torch.tensor([one, other, one]))[0].tolist()  # 0, log 2, 0
    [0.0, 0.693..., 0.0]
    """
    check_members(members)
    check_two_members(len(members))
    flat, entropies = _prepare(members.detach())
    count, columns = flat.shape
    pair_sums = pair_sums_for(count, columns, flat, torch_entropy_sums, fused_entropy_sums)
    total = torch.zeros(count, count, dtype=torch.float64, device=flat.device)
    for block in flat.split(COLUMNS, dim=1):
        total += pair_sums(block)
    inputs = members.shape[1]
    mean_entropy = math.log(2) - total / (2 * inputs)
    upper = (mean_entropy - (entropies.unsqueeze(0) + entropies.unsqueeze(1)) / 2).triu(1)
    return (upper + upper.T).clamp_min(0).to(members.dtype)


def _prepare(
    members: Float[Tensor, "m n c"],
) -> tuple[Float[Tensor, "m d"], Float[Tensor, " m"]]:
    """The members with inputs and classes in one axis and no zeros, and their mean entropies."""
    flat, entropies = [], []
    for member in members:
        check_simplex("members", member)
        entropies.append(entropy_unchecked(member).double().mean())
        flat.append(working(member).flatten())
    rows = torch.stack(flat)
    # s log s of two such numbers is zero beside any probability, and no pair meets log 0.
    return rows.clamp_min_(torch.finfo(rows.dtype).tiny), torch.stack(entropies)


def torch_entropy_sums(block: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
    """Σ_d s log s of each pair by four vectorised passes over a buffer that stays in cache.

    >>> torch_entropy_sums(torch.ones(2, 3))[0, 1].item()  # 3 · 2 log 2
    4.158...
    """
    members, columns = block.shape
    rows = max(1, BLOCK // columns)
    buffers = block.new_empty(2, min(rows, members), columns)
    total = torch.zeros(members, members, dtype=torch.float64, device=block.device)
    for start in range(0, members, rows):
        tile = block[start : start + rows]
        for i in range(start + len(tile) - 1):
            first = max(i + 1 - start, 0)
            others = tile[first:]
            sums, logs = buffers[:, : len(others)]
            torch.add(others, block[i], out=sums)
            torch.log(sums, out=logs)
            total[i, start + first : start + len(tile)] = logs.mul_(sums).sum(-1)
    return total


@dataclass(frozen=True)
class PairSample:
    """Mutual information of some pairs on some inputs, with standard errors.

    Attributes:
        pairs: The two members of each pair.
        value: Mean over the sampled inputs, for each pair.
        standard_error: Of each value, against the mean over all inputs.
        mean: Over the sampled pairs and inputs.
        mean_standard_error: Against the mean over all pairs and inputs; both samplings count.
    """

    pairs: Int[Tensor, "k 2"]
    value: Float[Tensor, " k"]
    standard_error: Float[Tensor, " k"]
    mean: Float[Tensor, ""]
    mean_standard_error: Float[Tensor, ""]


def sample_pairwise_mutual_information(
    members: Float[Tensor, "m n c"],
    *,
    pairs: int = 1_000,
    inputs: int = 1_000,
    generator: torch.Generator,
) -> PairSample:
    """Estimate the pairwise study from random pairs and inputs, drawn without replacement.

    With v_ab the value of pair a on input b, the variance of the mean is at most
    S²_pairs/k · (1 − k/K) + S²_inputs/b · (1 − b/n), S² being the variances of the mean over the
    other axis.

    >>> one, other = [[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3
    >>> every = torch.tensor([one, other])
    >>> generator = torch.Generator().manual_seed(0)
    >>> sample = sample_pairwise_mutual_information(every, pairs=1, inputs=2, generator=generator)
    >>> sample.value.tolist(), sample.standard_error.tolist()
    ([0.693...], [0.0])
    """
    check_members(members)
    count, available, _ = members.shape
    check_two_members(count)
    check_at_least("pairs", pairs, 1)
    check_at_least("inputs", inputs, 2)
    if available < 2:
        raise CosetError("members has one input", "needed two or more", "give more inputs")
    chosen_inputs = torch.randperm(available, generator=generator)[:inputs]
    all_pairs = torch.combinations(torch.arange(count))
    chosen = all_pairs[torch.randperm(len(all_pairs), generator=generator)[:pairs]]
    kept = members.detach()[:, chosen_inputs.to(members.device)]
    check_simplex("members", kept)
    values = torch.stack([_pair_values(kept[i], kept[j]) for i, j in chosen.tolist()])
    k, b = values.shape
    seen = 1 - b / available
    by_pair, by_input = values.mean(1), values.mean(0)
    between = by_pair.var() / k * (1 - k / len(all_pairs)) if k > 1 else by_pair.new_zeros(())
    return PairSample(
        chosen,
        by_pair.to(members.dtype),
        (values.var(1) / b * seen).sqrt().to(members.dtype),
        by_pair.mean().to(members.dtype),
        (between + by_input.var() / b * seen).sqrt().to(members.dtype),
    )


def _pair_values(p: Float[Tensor, "n c"], q: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    p, q = working(p), working(q)
    halves = (entropy_unchecked(p) + entropy_unchecked(q)) / 2
    return (entropy_unchecked((p + q) / 2) - halves).clamp_min(0).double()
