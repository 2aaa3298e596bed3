"""A network as the lean ascent holds it: matrices by name, vectors as rows along their factors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import Matrix
from coset.alignment.whole_axes.axes import Axes
from coset.vocabulary import Weights


@dataclass(frozen=True)
class Held:
    """One of two networks that are compared.

    Attributes:
        axes: Where everything is.
        arrays: The tensors that terms compare, in their views.  They may be the caller's.
        vectors: A copy of all vectors, end to end.
        rows: For each factor its vectors as the rows of a matrix: views of that copy.
    """

    axes: Axes
    arrays: dict[str, Matrix]
    vectors: Matrix
    rows: dict[str, Matrix]

    @staticmethod
    def of(axes: Axes, weights: Weights) -> "Held":
        """A network; of its matrices no copies are made."""
        arrays = {n: weights[n].numpy() for n in axes.compared}
        arrays.update((n, arrays[n].reshape(view)) for n, view in axes.finer.items())
        vectors = axes.vectors.pack(weights)
        return Held(axes, arrays, vectors, axes.vectors.rows(vectors))

    def compared(self, name: str) -> Matrix | None:
        """The vectors along a factor that are compared, if there are any."""
        count = self.axes.strips[name].compared
        return self.rows[name][:count] if count else None

    def glance(self, name: str) -> Iterator[Matrix]:
        """Some numbers of each unit of a factor: different if units are."""
        for term in self.axes.glanced[name]:
            matrix = self.arrays[term.tensor].reshape(term.matrix)
            yield (matrix[:1] if term.own.place else matrix[:, :1].T)
        rows = self.compared(name)
        for row in () if rows is None else rows:
            yield row[None]

    def units(self, name: str) -> Tensor:
        """All numbers of each unit of a factor, as a copy."""
        size = len(self.axes.places[name])
        found = [
            torch.from_numpy(self.arrays[term.tensor]).movedim(term.own.place, 0).reshape(size, -1)
            for term in self.axes.terms[name]
        ]
        rows = self.compared(name)
        if rows is not None:
            found.append(torch.from_numpy(rows).T)
        return torch.cat(found, 1)


def inner_product(one: Held, other: Held, times: Mapping[str, int], vectors: int) -> float:
    """The inner product of two networks over what is compared, to working precision.

    Args:
        one: A network.
        other: Another.
        times: How often matrices count; those that are not named do not.
        vectors: How often vectors do.
    """
    value = 0.0
    with np.errstate(all="ignore"):  # who asks looks whether the value is finite
        for name, count in times.items():
            value += count * float(np.vdot(one.arrays[name], other.arrays[name]))
        if vectors:
            value += vectors * float(np.dot(one.vectors * one.axes.counted, other.vectors))
    return value
