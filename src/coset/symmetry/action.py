"""How elements act on tensors: gather along the digits of a site, then multiply.

Everything works on strided views, so a site inside a fused or concatenated tensor costs no more
than its own size.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from coset.symmetry.analysis.digits import Block
from coset.symmetry.elements import Site

CACHED = 2**17
"""How many numbers are surely in the cache when they are read again."""


def region(tensor: Tensor, lead: int, site: Site) -> Tensor:
    """The site's block as a strided view with one axis a digit, behind ``lead`` member axes."""
    shape, strides = tensor.shape, tensor.stride()
    if not site.block and shape[lead:] == site.view:
        return tensor
    sizes, steps, offset = _geometry(shape[lead:], strides[lead:], site.block, site.view)
    return tensor.as_strided(
        (*shape[:lead], *sizes), (*strides[:lead], *steps), tensor.storage_offset() + offset
    )


@lru_cache(maxsize=4096)
def _geometry(
    shape: tuple[int, ...], strides: tuple[int, ...], block: Block, view: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes and strides of the digits of a block, and where it begins."""
    axes = [[pair] for pair in zip(shape, strides, strict=True)]
    offset = 0
    for axis, outer, start, size in block:
        before, rest = _break(axes[axis], outer)
        kept, skipped = _range(rest, start, size)
        axes[axis] = [*before, *kept]
        offset += skipped
    pairs = _refine([pair for axis in axes for pair in axis], view)
    return tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs), offset


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
    first = site.indexed
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
    members, pad = table.shape[: int(batched)], (1,) * (lead - int(batched))
    factor = table.to(view)
    first = site.indexed
    if len(first) > 1:
        order = sorted(range(len(first)), key=first.__getitem__)
        factor = factor.reshape((*members, *(site.view[d] for d in first)))
        factor = factor.permute(*range(len(members)), *(len(members) + k for k in order))
    if site.shift:
        factor = factor.reshape((*members, *pad, *site.spread))
        view.add_(site.shift).mul_(factor).sub_(site.shift)
    elif not lead and _is_column(view, site):
        # a whole row at a time: short runs with one factor each are slow
        inner = prod(site.view[site.digits[0] + 1 :])
        row = factor.reshape(-1).repeat_interleave(inner)
        view.view(-1, row.numel()).mul_(row)
    else:
        view.mul_(factor.reshape((*members, *pad, *site.spread)))


def _is_column(view: Tensor, site: Site) -> bool:
    """Whether one digit in the middle has a scale, with few numbers behind and many in front."""
    if site.parents or len(site.digits) != 1 or not view.is_contiguous():
        return False
    digit = site.digits[0]
    return 1 < prod(site.view[digit + 1 :]) <= 64 and prod(site.view[:digit]) >= 16


def permute_tensor(
    tensor: Tensor, lead: int, sites: Sequence[tuple[Site, Tensor]], batched: bool
) -> tuple[Tensor, bool]:
    """Applies permutations one after the other; also says whether the result is a fresh tensor."""
    if lead == 0 and not batched and _is_matrix(sites) and tensor.is_contiguous():
        return _permute_matrix(tensor, sites), True
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


def _is_matrix(sites: Sequence[tuple[Site, Tensor]]) -> bool:
    """Whether just the first two axes move, each as a whole."""
    return (
        len(sites) == 2
        and all(not site.block and not site.parents for site, _ in sites)
        and sorted(site.digits for site, _ in sites) == [(0,), (1,)]
    )


def _permute_matrix(tensor: Tensor, sites: Sequence[tuple[Site, Tensor]]) -> Tensor:
    """Rows and columns at once: some rows at a time while they are in the cache."""
    (_, rows), (_, columns) = sorted(sites, key=lambda pair: pair[0].digits)
    rows, columns = (table.reshape(-1).to(tensor.device) for table in (rows, columns))
    matrix = tensor.reshape(rows.numel(), columns.numel(), -1)
    if matrix.shape[-1] == 1:
        matrix = matrix.squeeze(-1)
    if tensor.numel() <= 2 * CACHED or tensor.requires_grad or tensor.device.type != "cpu":
        return matrix.index_select(0, rows).index_select(1, columns).reshape(tensor.shape)
    result = torch.empty_like(matrix)
    step = max(1, CACHED * rows.numel() // tensor.numel())
    for some, place in zip(rows.split(step), result.split(step), strict=True):
        torch.index_select(matrix.index_select(0, some), 1, columns, out=place)
    return result.reshape(tensor.shape)


def powered(table: Tensor, power: int) -> Tensor:
    """A table of scales to some power."""
    return table if power == 1 else table.reciprocal() if power == -1 else table.pow(power)


def scale_tensor_(
    tensor: Tensor, lead: int, sites: Sequence[tuple[Site, Tensor]], batched: bool
) -> None:
    """Applies scales in place to a contiguous tensor, those of one place together."""
    merged: dict[Site, Tensor] = {}
    for site, table in sites:
        place, factor = site.place, powered(table, site.power)
        merged[place] = merged[place] * factor if place in merged else factor
    for site, table in merged.items():
        scaled_(region(tensor, lead, site), lead, site, table, batched)
