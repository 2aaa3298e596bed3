"""The pairwise kernel in one pass, compiled by numba where it is installed.

The logarithm is written out, because the library's own is called entry by entry: the exponent from
the bits, then a polynomial on [√½, √2) of the classic single-precision routine (relative error
1e-7), which the compiler turns into vector instructions together with the sum.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

PairSums = Callable[[Tensor], Tensor]
"""From a block (m, d) of positive numbers to Σ_d s log s, s = p_i + p_j, above the diagonal."""

POLYNOMIAL = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
"""(log(1 + f) − f + f²/2) / f³ on √½ ≤ 1 + f < √2, highest power first."""


@functools.cache
def fused_pair_sums() -> PairSums | None:
    """The compiled kernel, or None without numba.  Compiling takes some seconds, once a process."""
    try:
        import numba
    except ImportError:
        return None
    kernel = _compile(numba)

    def pair_sums(block: Tensor) -> Tensor:
        total = np.zeros((len(block), len(block)))
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        kernel(block.numpy(), total)
        return torch.from_numpy(total)

    return pair_sums


def _compile(numba: Any) -> Any:
    one, half, log2 = np.float32(1), np.float32(0.5), np.float32(0.6931471805599453)
    root_half, shift = np.int32(0x3F3504F3), np.int32(23)
    a8, a7, a6, a5, a4, a3, a2, a1, a0 = (np.float32(a) for a in POLYNOMIAL)

    def sum_of_s_log_s(p: Any, q: Any) -> Any:
        total = np.float32(0)
        for k in range(p.shape[0]):
            s = p[k] + q[k]
            bits = np.float32(s).view(np.int32)
            exponent = (bits - root_half) >> shift
            f = np.int32(bits - (exponent << shift)).view(np.float32) - one
            y = (((a8 * f + a7) * f + a6) * f + a5) * f + a4
            y = (((y * f + a3) * f + a2) * f + a1) * f + a0
            square = f * f
            log = y * f * square - half * square + f + np.float32(exponent) * log2
            total += s * log
        return total

    compiled_sum = numba.njit(fastmath=True)(sum_of_s_log_s)

    def all_pairs(block: Any, total: Any) -> None:
        members = block.shape[0]
        # Row i has members - i - 1 pairs: rows from both ends together make equal work.
        for r in numba.prange((members + 1) // 2):
            for i in (r, members - 1 - r):
                for j in range(i + 1, members):
                    total[i, j] = compiled_sum(block[i], block[j])

    return numba.njit(parallel=True)(all_pairs)
