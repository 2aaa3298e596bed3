"""How far a permutation is from the identity, counted in swaps."""

from math import ceil, log2

import torch
from jaxtyping import Int
from torch import Tensor

from coset.errors import CosetError, require_kind


def transpositions(permutation: Int[Tensor, "*m h"]) -> "int | Int[Tensor, ' *m']":
    """The least number of swaps whose product is the permutation (Cayley's distance).

    ``n`` minus the number of cycles, fixed points included.

    Args:
        permutation: An index vector ``p`` with ``new[i] = old[p[i]]``, or many along leading axes.

    Returns:
        A number, or a tensor of numbers in the shape of the leading axes.

    >>> transpositions(torch.tensor([1, 2, 0, 3]))  # one cycle of three, one fixed point
    2
    """
    permutation = _checked(permutation)
    size = permutation.shape[-1]
    # every index learns the smallest index of its cycle, twice as far in each round
    step, lowest = permutation, torch.arange(size, device=permutation.device)
    lowest = lowest.expand(permutation.shape)
    for _ in range(ceil(log2(size)) if size > 1 else 0):
        lowest = torch.minimum(lowest, lowest.gather(-1, step))
        step = step.gather(-1, step)
    cycles = (lowest == torch.arange(size, device=permutation.device)).sum(-1)
    count = size - cycles
    return int(count) if permutation.dim() == 1 else count


def expected_transpositions(size: int) -> float:
    """What a uniformly random permutation has on average: ``n - (1 + 1/2 + … + 1/n)``.

    >>> expected_transpositions(2)
    0.5
    """
    return size - sum(1 / k for k in range(1, size + 1))


def permutation_with_transpositions(
    n: int, k: int, *, generator: torch.Generator, uniform: bool = False
) -> Int[Tensor, " n"]:
    """A random permutation of ``n`` that exactly ``k`` swaps undo, that is with ``n - k`` cycles.

    Args:
        n: Size.
        k: Number of transpositions, from 0 to ``n - 1``.
        generator: Source of randomness.
        uniform: Whether all such permutations are equally likely (needs ``O(n k)`` numbers).  By
            default each of the ``k`` elements left over joins one of the ``n - k`` cycles, all
            cycles being equally likely; this gives cycles of more even lengths.

    >>> transpositions(permutation_with_transpositions(9, 4, generator=torch.Generator()))
    4
    """
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (n, k))
    if not whole or not 0 <= k <= max(n - 1, 0) or n < 1:
        raise CosetError(
            f"got n={n} and k={k}",
            "needed whole numbers, n ≥ 1 and k from 0 to n - 1",
            "choose another k",
        )
    require_kind(torch.Generator, "torch.Generator", generator=generator)
    if uniform:
        return _insert(n, k, generator)
    cycles = n - k
    joined = torch.randint(cycles, (k,), generator=generator)
    cycle = torch.cat([torch.arange(cycles), joined])
    elements = torch.randperm(n, generator=generator)[cycle.argsort(stable=True)]
    ends = torch.bincount(cycle, minlength=cycles).cumsum(0)
    following = torch.arange(1, n + 1)
    following[ends - 1] = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
    permutation = torch.empty(n, dtype=torch.long)
    permutation[elements] = elements[following]
    return permutation


def _insert(n: int, k: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Uniform: element ``i`` opens a cycle, or is put behind one of the ``i`` before it.

    Backwards through the recursion of the Stirling numbers, ``c(i, j) = c(i-1, j-1) +
    (i-1) c(i-1, j)`` for ``i`` elements in ``j`` cycles.
    """
    log = torch.full((n + 1, n - k + 1), -torch.inf, dtype=torch.float64)
    log[0, 0] = 0.0
    for i in range(1, n + 1):
        log[i, 1:] = log[i - 1, :-1]
        if i > 1:
            behind = log[i - 1] + torch.tensor(i - 1.0, dtype=torch.float64).log()
            log[i] = torch.logaddexp(log[i], behind)
    chance = torch.rand(n, dtype=torch.float64, generator=generator)
    opens, left = [False] * n, n - k
    for i in range(n, 0, -1):
        opens[i - 1] = left > 0 and bool(chance[i - 1].log() < log[i - 1, left - 1] - log[i, left])
        left -= opens[i - 1]
    permutation = torch.arange(n)
    for i in range(1, n):
        if not opens[i]:
            before = int(torch.randint(i, (), generator=generator))
            permutation[i] = permutation[before]
            permutation[before] = i
    return permutation


_INDICES = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of indices; torch takes the others, bytes too, for masks or for numbers."""


def _checked(permutation: object) -> Int[Tensor, "*m h"]:
    """An index vector, or many, in the type that torch indexes with."""
    if not isinstance(permutation, Tensor):
        raise CosetError(
            f"got a permutation of type {type(permutation).__name__}",
            "needed a tensor of indices",
            "write torch.tensor(...)",
        )
    size = permutation.shape[-1] if permutation.dim() else 0
    if permutation.dtype not in _INDICES or size == 0:
        raise CosetError(
            f"got {permutation.dtype} of shape {tuple(permutation.shape)}",
            "needed an index vector, or many along leading axes",
            "write permutation.long() if its numbers are indices",
        )
    indices = permutation.long()
    expected = torch.arange(size, device=indices.device)
    if not torch.equal(indices.sort(-1).values, expected.expand(indices.shape)):
        raise CosetError(
            "got an index vector that repeats an index or leaves one out",
            f"needed every index from 0 to {size - 1} once",
        )
    return indices
