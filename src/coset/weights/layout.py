"""Which tensors we reason about, and their place in a flat vector."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError, names_like
from coset.printing import brief
from coset.vocabulary import Weights


@dataclass(frozen=True)
class Layout:
    """An ordered choice of tensors, by name and shape.

    Linear algebra wants one vector of length ``p``; everything else wants names.  A layout is the
    bridge, and a choice of a part of the network (the last layer, say) is a smaller layout.

    >>> layout = Layout.of({"a": torch.zeros(2, 2), "b": torch.ones(1)})
    >>> layout.size, layout.flatten({"a": torch.zeros(2, 2), "b": torch.ones(1)})
    (5, tensor([0., 0., 0., 0., 1.]))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    __repr__ = brief

    @staticmethod
    def of(weights: Weights, names: Iterable[str] | None = None) -> "Layout":
        """The layout of ``weights``, or of the named part of it."""
        chosen = tuple(weights if names is None else names)
        return Layout(chosen, tuple(tuple(weights[name].shape) for name in chosen))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the flat vector."""
        ends = list(accumulate(self.sizes))
        return {
            name: slice(end - size, end)
            for name, size, end in zip(self.names, self.sizes, ends, strict=True)
        }

    @property
    def size(self) -> int:
        """The length ``p`` of the flat vector."""
        return sum(self.sizes)

    def flatten(self, weights: Weights) -> Float[Tensor, "*m p"]:
        """The chosen tensors of one member, or of a stack, as flat vectors."""
        self.check(weights)
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = weights[name]
            parts.append(tensor.reshape(*tensor.shape[: tensor.dim() - len(shape)], -1))
        return torch.cat(parts, dim=-1)

    def unflatten(self, flat: Float[Tensor, "*m p"]) -> Weights:
        """The inverse of :meth:`flatten`."""
        if flat.shape[-1] != self.size:
            raise CosetError(
                f"got a vector of length {flat.shape[-1]}", f"needed {self.size}, as in the layout"
            )
        lead = flat.shape[:-1]
        return {
            name: part.reshape((*lead, *shape))
            for name, shape, part in zip(
                self.names, self.shapes, flat.split(self.sizes, dim=-1), strict=True
            )
        }

    def select(self, *patterns: str) -> "Layout":
        """The tensors whose name fits one of the shell patterns (``"head.*"``); each must fit some.

        >>> Layout.of({"body.w": torch.ones(1), "head.w": torch.ones(1)}).select("head.*").names
        ('head.w',)
        """
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise CosetError(f"got the pattern {pattern!r}", "needed a text such as 'head.*'")
            if not any(fnmatchcase(name, pattern) for name in self.names):
                raise CosetError(
                    f"got the pattern {pattern!r}, which fits no parameter",
                    f"needed one that fits, for example, {names_like(pattern, self.names)}",
                )
        if not patterns:
            raise CosetError("got no patterns", f"needed one such as {self.names[0]!r}")
        kept = [
            (name, shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
        return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept))

    def restrict(self, weights: Weights) -> Weights:
        """Only the tensors of this layout."""
        return {name: weights[name] for name in self.names}

    def check(self, weights: Weights) -> None:
        """Refuses weights that are not the tensors of this layout, all of one type."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in weights:
                raise CosetError(
                    f"got weights without {name!r}", "needed every tensor of the layout"
                )
            got = tuple(weights[name].shape)
            if weights[name].dtype != weights[self.names[0]].dtype:
                raise CosetError(
                    f"got {name!r} of type {weights[name].dtype} and {self.names[0]!r} of type "
                    f"{weights[self.names[0]].dtype}",
                    "needed one type for all, to make a vector of them",
                    "convert the module with module.to(…)",
                )
            if got[len(got) - len(shape) :] != shape:
                raise CosetError(f"got {name!r} of shape {got}", f"needed {shape}")
