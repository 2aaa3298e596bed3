"""Bootstrap standard errors: how much would a metric change on another test set of this size?"""

from collections.abc import Callable

import torch
from jaxtyping import Shaped
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_at_least


def bootstrap_standard_error(
    function: Callable[..., Tensor],
    *groups: tuple[Tensor, ...],
    resamples: int = 200,
    generator: torch.Generator,
) -> float:
    """The standard deviation of a metric over resampled data.

    Each group of tensors is resampled with replacement along its first axis, its tensors together;
    different groups (inliers and outliers, say) independently.

    >>> values = torch.tensor([0.0, 1.0]).repeat(50)
    >>> generator = torch.Generator().manual_seed(0)
    >>> error = bootstrap_standard_error(torch.mean, (values,), resamples=500, generator=generator)
    >>> abs(error - 0.05) < 0.005  # √(¼ / 100)
    True
    """
    check_at_least("resamples", resamples, 2)
    _check_groups(groups)
    values = []
    for _ in range(resamples):
        drawn = []
        for group in groups:
            size = len(group[0])
            index = torch.randint(size, (size,), generator=generator).to(group[0].device)
            drawn += [tensor[index] for tensor in group]
        values.append(float(function(*drawn)))
    return float(torch.tensor(values, dtype=torch.float64).std())


def bootstrap_of_sums(
    statistics: Shaped[Tensor, "n ..."],
    compute: Callable[[Tensor], Tensor],
    *,
    resamples: int = 200,
    generator: torch.Generator,
) -> float:
    """The same for a function of summed statistics, given those of each input.

    >>> values = torch.tensor([0.0, 1.0]).repeat(50)
    >>> generator = torch.Generator().manual_seed(0)
    >>> error = bootstrap_of_sums(values, lambda s: s / 100, resamples=500, generator=generator)
    >>> abs(error - 0.05) < 0.005
    True
    """
    check_at_least("resamples", resamples, 2)
    size = len(statistics)
    flat = statistics.double().reshape(size, -1)
    values = []
    for _ in range(resamples):
        drawn = torch.bincount(torch.randint(size, (size,), generator=generator), minlength=size)
        total = drawn.to(flat) @ flat
        values.append(float(compute(total.reshape(statistics.shape[1:]))))
    return float(torch.tensor(values, dtype=torch.float64).std())


def _check_groups(groups: tuple[tuple[Tensor, ...], ...]) -> None:
    for group in groups:
        if len({len(tensor) for tensor in group}) > 1:
            raise CosetError(
                f"tensors resampled together have lengths {[len(tensor) for tensor in group]}",
                "needed equal first axes",
                "put independent sets into groups of their own",
            )
