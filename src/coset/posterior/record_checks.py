"""Whether what was read from a file can be what a class says it is.

A file with a right digest may still hold anything.  Fields are held against their annotations, with
one length for each letter of a class's shapes, and what annotations cannot say is said here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import jaxtyped
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.errors import CosetError
from coset.linalg import BlockDiagonal, Embedded, LowRankPlusDiagonal
from coset.posterior.families import Mixture, Samples
from coset.posterior.gaussian import Gaussian
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.random_masks import RandomMasks
from coset.posterior.tangent_samples import TangentSamples
from coset.posterior.unit_blocks import UnitBlocks
from coset.vocabulary import Weights
from coset.weights.stacking import check_fit

_LARGEST = 2**63 - 1
"""Whole numbers that torch can take."""


def require_fields(family: type, parts: Mapping[str, Any]) -> None:
    """Refuses fields of other kinds or shapes than a class annotates.

    >>> from coset.linalg import Diagonal
    >>> require_fields(Diagonal, {"entries": torch.zeros(2, 2)})
    Traceback (most recent call last):
    coset.errors.CosetError: got a Diagonal whose entries is a tensor of shape (2, 2); needed Float[Tensor, 'p']
    """  # noqa: E501 a message is one line
    hints = get_type_hints(family)
    with jaxtyped("context"):  # one length a letter
        for name, part in parts.items():
            if not _is(part, hints[name]):
                needed = getattr(hints[name], "__name__", str(hints[name]))
                raise CosetError(
                    f"got a {family.__name__} whose {name} is {_told(part)}", f"needed {needed}"
                )


def require_consistent(value: object) -> None:
    """Refuses nouns whose parts are of the right kinds but do not fit together.

    >>> from coset.linalg import Diagonal
    >>> require_consistent(Gaussian({"w": torch.zeros(3)}, Diagonal(torch.ones(2))))
    Traceback (most recent call last):
    coset.errors.CosetError: got a Gaussian whose parts do not fit together; needed the covariance to be that of its tensors
    """  # noqa: E501 a message is one line
    rule = _RULES.get(type(value).__name__)
    if rule is None:
        return
    for holds, needed in rule(value):
        if not holds:
            raise CosetError(
                f"got a {type(value).__name__} whose parts do not fit together", f"needed {needed}"
            )


def require_network(posterior: object, weights: Weights) -> None:
    """Refuses tensors of other shapes or types than the network's, and numbers that are none.

    Args:
        posterior: Read from a file.
        weights: Of the network.
    """
    for noun in _nouns(posterior):
        check_fit(getattr(noun, "fixed", {}), weights, what="fixed tensors", partial=True)
    for name, tensor in _tensors(posterior):
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise CosetError(f"got a posterior with {name!r} not a number", "needed numbers")
        if name in weights and tensor.dtype != weights[name].dtype:
            raise CosetError(
                f"got a posterior with {name!r} of type {tensor.dtype}",
                f"needed {weights[name].dtype}, as the network has",
            )


def _nouns(value: object) -> Iterator[object]:
    """A dataclass and those in its fields, also in tuples of them."""
    if isinstance(value, tuple):
        for part in value:
            yield from _nouns(part)
    elif is_dataclass(value):
        yield value
        for field in fields(value):
            yield from _nouns(getattr(value, field.name))


def _tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested nouns, those of dictionaries under their own names."""
    if isinstance(value, GaussianPrior):  # whose precisions are named as weights, but are none
        return
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, str(key))
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part, name)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name), f"its {field.name}")


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation, looking into dictionaries and tuples."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        found = any(_is(value, each) for each in arguments)
    elif kind is Literal:
        found = value in arguments
    elif kind is tuple:
        found = isinstance(value, tuple) and _all_are(value, arguments)
    elif kind is not None:  # a dictionary
        found = isinstance(value, Mapping) and all(
            _all_are(pair, arguments) for pair in value.items()
        )
    elif Protocol in hint.__bases__:
        members = {name for name in vars(hint) if name[0] != "_" or name == "__call__"}
        found = members <= set(dir(value))
    elif hint in (int, float):
        kinds = int if hint is int else int | float
        found = isinstance(value, kinds) and not isinstance(value, bool)
        found = found and not (isinstance(value, int) and abs(value) > _LARGEST)
    else:
        found = isinstance(value, hint)
    return found


def _all_are(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if len(hints) == 2 and hints[1] is ...:
        return all(_is(value, hints[0]) for value in values)
    return len(hints) == len(values) and all(map(_is, values, hints))


def _told(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{' '.join(repr(value).split()):.40}"


Rule = Callable[[Any], Iterator[tuple[bool, str]]]
"""Gives what must hold and how to say it; the next is only asked where the last one held."""


def _gaussian(value: Gaussian) -> Iterator[tuple[bool, str]]:
    yield _named(value.names, value.mean), "each tensor to be named once"
    size = value.layout.size
    yield value.covariance.shape == (size, size), "the covariance to be that of its tensors"
    kept = {tensor.dtype for tensor in value.mean.values()}
    floats = {t.dtype for _, t in _tensors(value.covariance) if t.is_floating_point()}
    wide = all(torch.promote_types(mean, own) == own for mean in kept for own in floats)
    yield wide, "a covariance at least as precise as the mean"
    layers = [name for layer in value.layers for name in layer]
    yield set(layers) <= set(value.names), "layers of its own tensors"


def _low_rank(value: LowRankGaussian) -> Iterator[tuple[bool, str]]:
    yield bool(value.mean) and _like(value.std, value.mean), "deviations like the mean"
    yield not value.factors or _stacked(value.factors, value.mean), "directions like the mean"


def _tangent_samples(value: TangentSamples) -> Iterator[tuple[bool, str]]:
    yield _named(value.names, value.mean), "each tensor to be named once"
    yield _stacked(value.deviations, value.mean), "deviations like the mean"


def _unit_blocks(value: UnitBlocks) -> Iterator[tuple[bool, str]]:
    yield _stacked(value.deviations), "equally many deviations of each tensor"
    counts = {name: tensor[0].numel() for name, tensor in value.deviations.items()}
    yield counts == {name: t.numel() for name, t in value.mean.items()}, "deviations like the mean"


def _samples(value: Samples) -> Iterator[tuple[bool, str]]:
    yield _stacked(value.stack), "tensors of equally many members"
    counts = {len(tensor) for tensor in value.stack.values()}
    yield value.weighting is None or {len(value.weighting)} == counts, "a weight for each member"


def _mixture(value: Mixture) -> Iterator[tuple[bool, str]]:
    count = len(value.components)
    yield count > 0, "components"
    layouts = [dict(zip(c.layout.names, c.layout.shapes, strict=True)) for c in value.components]
    yield all(layout == layouts[0] for layout in layouts), "components over the same tensors"
    masks = [_masks(component) for component in value.components]
    yield all(each == masks[0] for each in masks), "the same masks in each component"
    weights = value.weighting
    yield weights is None or len(weights) == count, "a weight for each component"


def _masks(component: object) -> tuple[object, ...] | None:
    """What shapes the masks of a draw have, of a posterior that has some."""
    sites = getattr(component, "sites", None)
    if sites is None:
        return None
    return (getattr(component, "per_example", False), *(site.shape for site in sites))


def _random_masks(value: RandomMasks) -> Iterator[tuple[bool, str]]:
    yield bool(value.weights), "weights"
    yield all(0 <= site.rate <= 1 for site in value.sites), "rates from zero to one"
    lengths = [length for site in value.sites for length in site.shape]
    yield all(0 <= length < 2**31 for length in lengths), "shapes of masks"


def _block_diagonal(value: BlockDiagonal) -> Iterator[tuple[bool, str]]:
    shapes = [block.shape for block in value.blocks]
    yield all(rows == columns for rows, columns in shapes), "square blocks"
    size = sum(rows for rows, _ in shapes)
    order = value.order.sort().values
    yield torch.equal(order, torch.arange(size).to(order)), "each coordinate in one block"


def _embedded(value: Embedded) -> Iterator[tuple[bool, str]]:
    count, index = len(value.index), value.index
    yield value.inner.shape == (count, count), "an index for each coordinate"
    inside = bool(((index >= 0) & (index < value.size)).all())
    yield inside and len(index.unique()) == count, "each index once, and none beyond the size"


def _plus_diagonal(value: LowRankPlusDiagonal) -> Iterator[tuple[bool, str]]:
    yield value.sign in (-1, 1), "a sign of one or minus one"


def _named(names: Sequence[str], weights: Weights) -> bool:
    return bool(names) and len(names) == len(weights) and set(names) == set(weights)


def _like(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(first[n].shape == second[n].shape for n in first)


def _stacked(stack: Weights, one: Weights | None = None) -> bool:
    """Whether all tensors have one leading axis, with ``one``'s names and shapes after it."""
    if not stack or not all(tensor.dim() and len(tensor) for tensor in stack.values()):
        return False
    if len({len(tensor) for tensor in stack.values()}) > 1:
        return False
    return one is None or _like({name: tensor[0] for name, tensor in stack.items()}, one)


_RULES: Mapping[str, Rule] = {
    "BlockDiagonal": _block_diagonal,
    "Embedded": _embedded,
    "Gaussian": _gaussian,
    "LowRankGaussian": _low_rank,
    "LowRankPlusDiagonal": _plus_diagonal,
    "Mixture": _mixture,
    "RandomMasks": _random_masks,
    "Samples": _samples,
    "TangentSamples": _tangent_samples,
    "UnitBlocks": _unit_blocks,
}
