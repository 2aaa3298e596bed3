"""Sums over all pairs of rows in one pass, compiled by numba where it is installed.

The logarithm is written out, because the library's own is called entry by entry.  With
s = 2^e (1 + f) and √½ ≤ 1 + f < √2, log₂ s = e + f P(f); the exponent comes from the bits, and P is
the polynomial of degree 7 whose largest error in f P(f) is smallest (3e-8, found by linear
programming), so that rounding to float32 is what remains (1.3e-7).  The compiler turns all of it
into vector instructions together with the sum.
"""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

PairSums = Callable[[Tensor], Tensor]
"""From a block (m, d) to a sum over d for each pair of rows, above the diagonal, in float64."""

WORTH_COMPILING = 1 << 31
"""Entries of all pairs together from which compiling pays: some seconds of plain torch."""

TILE = 32
"""Rows that every other row is paired with in turn, while they stay in cache."""

POLYNOMIAL = (
    -0.15034756,
    0.24156845,
    -0.25032884,
    0.28592134,
    -0.35998055,
    0.48098180,
    -0.72136140,
    1.44269407,
)
"""log₂(1 + f) / f on √½ ≤ 1 + f < √2, highest power first."""

_A7, _A6, _A5, _A4, _A3, _A2, _A1, _A0 = (np.float32(a) for a in POLYNOMIAL)
_ONE, _LOG_2 = np.float32(1), math.log(2)
_ROOT_HALF, _SHIFT = np.int32(0x3F3504F3), np.int32(23)  # the bits of √½; those of a fraction


def pair_sums_for(
    rows: int,
    columns: int,
    like: Tensor,
    plain: PairSums,
    fused: Callable[[], PairSums | None],
) -> PairSums:
    """The compiled form for large problems on a processor, if numba is installed, else the plain.

    Args:
        rows: How many rows are paired.
        columns: How many entries a row has in all blocks together.
        like: Any block.
        plain: Sums by plain torch.
        fused: Returns the compiled form, or None.
    """
    large = rows * rows // 2 * columns >= WORTH_COMPILING
    if large and like.device.type == "cpu" and like.dtype == torch.float32:
        return fused() or plain
    return plain


@functools.cache
def fused_entropy_sums() -> PairSums | None:
    """Σ_d s log s with s = p_i + p_j, of positive float32 numbers; None without numba."""
    return _compile(_sum_of_s_log_s)


@functools.cache
def fused_absolute_sums() -> PairSums | None:
    """Σ_d |a_i − a_j|; None without numba."""
    return _compile(_sum_of_absolute_differences)


def _sum_of_s_log_s(p: Any, q: Any) -> Any:
    total = np.float32(0)
    for k in range(p.shape[0]):
        s = p[k] + q[k]
        bits = np.float32(s).view(np.int32)
        # Numba widens sums of int32, and wide integers convert slowly: narrow them at once.
        exponent = np.int32(np.int32(bits - _ROOT_HALF) >> _SHIFT)
        f = np.int32(bits - np.int32(exponent << _SHIFT)).view(np.float32) - _ONE
        # Pairs of terms: a chain of seven products would wait for itself.
        square = f * f
        high = (_A7 * f + _A6) * square + (_A5 * f + _A4)
        y = high * square * square + (_A3 * f + _A2) * square + (_A1 * f + _A0)
        total += s * (y * f + np.float32(exponent))
    return _LOG_2 * total


def _sum_of_absolute_differences(p: Any, q: Any) -> Any:
    total = np.float32(0)
    for k in range(p.shape[0]):
        total += abs(p[k] - q[k])
    return total


def _compile(pair_sum: Callable[[Any, Any], Any]) -> PairSums | None:
    """The sum over every pair of rows, in as many threads as torch uses."""
    try:
        import numba
    except ImportError:
        return None
    compiled_sum = numba.njit(fastmath=True)(pair_sum)

    def some_rows(block: Any, rows: Any, total: Any) -> None:
        for start in range(0, block.shape[0], TILE):
            for r in range(rows.shape[0]):
                i = rows[r]
                for j in range(max(i + 1, start), min(start + TILE, block.shape[0])):
                    total[i, j] = compiled_sum(block[i], block[j])

    kernel = numba.njit(nogil=True)(some_rows)

    def pair_sums(block: Tensor) -> Tensor:
        values, threads = block.contiguous().numpy(), torch.get_num_threads()
        total = np.zeros((len(block), len(block)))
        # Row i has m − i − 1 pairs: rows dealt out in turn give every thread about equal work.
        rows = [np.arange(start, len(block), threads) for start in range(threads)]
        # Our own threads, because those of numba's pool go on spinning when their work is done.
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: kernel(values, part, total), rows))
        return torch.from_numpy(total)

    return pair_sums
