"""How elements act on tensors: gather along the digits of a site, then multiply.

Everything works on strided views, so a site inside a fused or concatenated tensor costs no more
than its own size.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from coset.symmetry.elements import Site


def region(tensor: Tensor, lead: int, site: Site) -> Tensor:
    """The site's block as a strided view with one axis a digit, behind ``lead`` member axes."""
    axes = [
        [(size, stride)]
        for size, stride in zip(tensor.shape[lead:], tensor.stride()[lead:], strict=True)
    ]
    offset = tensor.storage_offset()
    for axis, outer, start, size in site.block:
        before, rest = _break(axes[axis], outer)
        kept, skipped = _range(rest, start, size)
        axes[axis] = [*before, *kept]
        offset += skipped
    pairs = _refine([pair for axis in axes for pair in axis], site.view)
    return tensor.as_strided(
        (*tensor.shape[:lead], *(size for size, _ in pairs)),
        (*tensor.stride()[:lead], *(stride for _, stride in pairs)),
        offset,
    )


def _range(
    pairs: Sequence[tuple[int, int]], start: int, size: int
) -> tuple[list[tuple[int, int]], int]:
    """A range of a row-major index, and its offset in memory."""
    offset = 0
    rest = [pair for pair in pairs if pair[0] != 1]
    while rest:
        depth = prod(n for n, _ in rest[1:])
        offset += start // depth * rest[0][1]
        if size >= depth:
            return [(size // depth, rest[0][1]), *rest[1:]], offset
        start %= depth
        rest = rest[1:]
    return [], offset


def _break(
    pairs: Sequence[tuple[int, int]], outer: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Breaks row-major (size, stride) pairs after the first ``outer`` indices."""
    before: list[tuple[int, int]] = []
    rest = list(pairs)
    while outer > 1:
        size, stride = rest.pop(0)
        if outer % size == 0:
            before.append((size, stride))
            outer //= size
        else:
            inner = size // outer
            before.append((outer, stride * inner))
            rest.insert(0, (inner, stride))
            outer = 1
    return before, rest


def _refine(pairs: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The same row-major index with the given digit sizes."""
    rest = [pair for pair in pairs if pair[0] != 1]
    refined = []
    for size in sizes:
        taken, rest = _break(rest, size)
        # a digit never spans two strides, because cuts happen at digits
        refined.append(taken[0] if len(taken) == 1 else _merge(taken))
    return refined


def _merge(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    size, stride = pairs[-1]
    for outer_size, outer_stride in reversed(pairs[:-1]):
        assert outer_stride == size * stride
        size *= outer_size
    return size, stride


def moved(view: Tensor, lead: int, site: Site, table: Tensor, batched: bool) -> Tensor:
    """The view after ``new[i] = old[table[i]]`` along the site's digits."""
    if not batched and not site.parents and len(site.digits) == 1:
        return view.index_select(lead + site.digits[0], table.reshape(-1).to(view.device))
    first = [*site.parents, *site.digits]
    rest = [d for d in range(len(site.view)) if d not in first]
    order = [*range(lead), *(lead + d for d in (*first, *rest))]
    copies = prod(site.view[d] for d in site.parents)
    units = prod(site.view[d] for d in site.digits)
    front = view.permute(order)
    shape = front.shape
    front = front.reshape(*shape[:lead], copies * units, -1)
    base = torch.arange(copies, device=view.device).unsqueeze(-1) * units
    lines = table.to(view.device).reshape(*table.shape[: int(batched)], copies, units)
    index = (base + lines).flatten(-2)
    if batched:
        members = torch.arange(index.shape[0], device=view.device).unsqueeze(-1)
        front = front[members, index]
    else:
        front = front.index_select(lead, index)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return front.reshape(shape).permute(inverse)


def scaled_(view: Tensor, lead: int, site: Site, table: Tensor, batched: bool) -> None:
    """Multiplies the view in place by the table along the site's digits."""
    first = [*site.parents, *site.digits]
    sizes = [site.view[d] for d in first]
    factor = table.to(view.device).reshape([*table.shape[: int(batched)], *sizes])
    factor = factor.to(view.dtype)
    order = sorted(range(len(first)), key=first.__getitem__)
    factor = factor.permute([*range(int(batched)), *(int(batched) + k for k in order)])
    shape = [site.view[d] if d in first else 1 for d in range(len(site.view))]
    pad = [1] * (lead - int(batched))
    factor = factor.reshape([*factor.shape[: int(batched)], *pad, *shape])
    if site.shift:
        view.add_(site.shift).mul_(factor).sub_(site.shift)
    else:
        view.mul_(factor)


def permute_tensor(
    tensor: Tensor, lead: int, sites: Sequence[tuple[Site, Tensor]], batched: bool
) -> tuple[Tensor, bool]:
    """Applies permutations one after the other; also says whether the result is a fresh tensor."""
    if lead == 0 and not batched and _is_kernel(sites) and tensor.is_contiguous():
        return _permute_kernel(tensor, sites), True
    fresh = False
    for site, table in sites:
        if not tensor.is_contiguous():
            tensor, fresh = tensor.contiguous(), True
        view = region(tensor, lead, site)
        if not site.block:
            tensor, fresh = moved(view, lead, site, table, batched).reshape(tensor.shape), True
            continue
        if not fresh:
            tensor, fresh = tensor.clone(), True
            view = region(tensor, lead, site)
        view.copy_(moved(view, lead, site, table, batched))
    return tensor, fresh


def _is_kernel(sites: Sequence[tuple[Site, Tensor]]) -> bool:
    """Whether both of the first two axes move and what is behind them is worth one gather."""
    return (
        len(sites) == 2
        and all(not site.block and not site.parents for site, _ in sites)
        and sorted(site.digits for site, _ in sites) == [(0,), (1,)]
        and prod(sites[0][0].view[2:]) >= 4
    )


def _permute_kernel(tensor: Tensor, sites: Sequence[tuple[Site, Tensor]]) -> Tensor:
    """Rows and columns of a convolution's weight in one pass over memory."""
    (_, rows), (_, columns) = sorted(sites, key=lambda pair: pair[0].digits)
    height, width = rows.numel(), columns.numel()
    index = (rows.reshape(-1, 1) * width + columns.reshape(1, -1)).reshape(-1).to(tensor.device)
    return tensor.reshape(height * width, -1).index_select(0, index).reshape(tensor.shape)


def scale_tensor_(
    tensor: Tensor, lead: int, sites: Sequence[tuple[Site, Tensor]], batched: bool
) -> None:
    """Applies scales in place to a contiguous tensor, those of one place together."""
    merged: dict[Site, Tensor] = {}
    for site, table in sites:
        place = replace(site, power=1)
        factor = table.pow(site.power)
        merged[place] = merged[place] * factor if place in merged else factor
    for site, table in merged.items():
        scaled_(region(tensor, lead, site), lead, site, table, batched)
