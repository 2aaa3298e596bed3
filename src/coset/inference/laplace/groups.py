"""Which weights share a prior precision.

Weights whose scale a normalisation divides out have no scale of their own, so no common precision
can be right for them: each such filter, channel group or layer gets its own (Antorán et al. 2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.measure import Cuts
from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.elements import ScaleInvariance
from coset.vocabulary import Inputs
from coset.weights.calls import Listening
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout
from coset.weights.network import Network

Grouping = Literal["single", "layer", "normalised"]

_ROW_MEMORY = 1 << 29
"""Bytes that the row blocks of one layer may take; larger layers get one precision."""


@dataclass(frozen=True)
class Groups:
    """A number for every weight: the group whose precision it has.

    Attributes:
        layout: The weights.
        labels: The group of each.
        names: What each group covers.
        notes: What a reader should know of the choice.

    >>> layout = Layout(("w", "b"), ((2,), (1,)))
    >>> groups = Groups(layout, torch.tensor([0, 0, 1]), ("weights", "bias"))
    >>> groups.sums(torch.tensor([1.0, 2.0, 4.0])).tolist(), groups.sizes.tolist()
    ([3.0, 4.0], [2.0, 1.0])
    """

    layout: Layout
    labels: Int[Tensor, " p"]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> Float[Tensor, " g"]:
        """Weights of each group."""
        return torch.bincount(self.labels, minlength=len(self.names)).double()

    def sums(self, terms: Float[Tensor, " p"]) -> Float[Tensor, " g"]:
        """Sums over the weights of each group, in double precision."""
        total = terms.new_zeros(len(self.names), dtype=torch.float64)
        return total.index_add_(0, self.labels, terms.double())

    def natural(self, norms: Float[Tensor, " g"]) -> Float[Tensor, " g"]:
        """``D_g / |θ_g|²``, which follows every rescaling of a group; one where all is zero."""
        return torch.where(norms > 0, self.sizes / norms.clamp_min(1e-300), 1.0)


def prior_of(
    layout: Layout, precision: Float[Tensor, " p"], given: Mapping[str, float | Tensor]
) -> GaussianPrior:
    """Precisions by tensor, each in the smallest shape that broadcasts.

    Args:
        layout: The tensors they are for.
        precision: One a weight.
        given: Of all other tensors.
    """
    tables: dict[str, float | Tensor] = {
        name: _compact(torch.as_tensor(value)) for name, value in given.items()
    }
    for name, tensor in layout.unflatten(precision).items():
        tables[name] = _compact(tensor)
    return GaussianPrior(tables)


def _compact(tensor: Tensor) -> float | Tensor:
    for axis in range(tensor.dim()):
        first = tensor.narrow(axis, 0, 1)
        if bool((tensor == first).all()):
            tensor = first
    return float(tensor) if tensor.numel() == 1 else tensor.clone()


def cuts_of(layout: Layout, labels: Tensor) -> Cuts:
    """Where weights and bias, or rows of weights, have different precisions."""
    tables = layout.unflatten(labels)
    separate, rows = set(), set()
    for name, table in tables.items():
        prefix, _, last = name.rpartition(".")
        bias = tables.get(f"{prefix}.bias" if prefix else "bias")
        if table.dim() > 1 and not bool((table == table.flatten()[0]).all()):
            rows.add(name)
        if last == "bias" or bias is None or bias.shape not in (table.shape, table.shape[:1]):
            continue
        axes = [1] * (table.dim() - bias.dim())  # a norm has as many weights as biases
        if not bool((table == bias.reshape(*bias.shape, *axes)).all()):
            separate.add(name)
    return Cuts(frozenset(separate), frozenset(rows))


def group_weights(problem: Problem, layout: Layout, grouping: Grouping, *, rows: bool) -> Groups:
    """Groups of the weights of a layout.

    Args:
        problem: Whose network and first example the normalised groups are found with.
        layout: The weights.
        grouping: ``"single"``: one for all; ``"layer"``: weights and bias of each layer;
            ``"normalised"``: each scale that a norm divides out, and one for everything else.
        rows: Whether the curvature can only tell rows apart (Kronecker products).
    """
    if grouping == "single":
        return Groups(layout, torch.zeros(layout.size, dtype=torch.long), ("all weights",))
    if grouping == "layer":
        return _by_layer(layout)
    if grouping != "normalised":
        raise CosetError(f"got the groups {grouping!r}", "needed 'single', 'layer' or 'normalised'")
    few = take_rows(next(iter(problem.train))[0], slice(2))
    if not _divides(problem.network, few):
        return group_weights(problem, layout, "single", rows=rows)
    try:
        found = invariances(problem.network, few)
    except CosetError as error:
        single = group_weights(problem, layout, "single", rows=rows)
        note = f"one precision for all weights: the symmetries were not found ({error})"
        return Groups(layout, single.labels, single.names, (note,))
    return _by_invariance(layout, found, rows)


def _by_layer(layout: Layout) -> Groups:
    layers: dict[str, int] = {}
    labels = []
    for name, size in zip(layout.names, layout.sizes, strict=True):
        layer = name.rpartition(".")[0]
        number = layers.setdefault(layer, len(layers))
        labels.append(torch.full((size,), number, dtype=torch.long))
    return Groups(layout, torch.cat(labels), tuple(layers))


def _by_invariance(layout: Layout, found: tuple[ScaleInvariance, ...], rows: bool) -> Groups:
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    tables = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
    names, notes = ["all other weights"], []
    for invariance in found:
        name = invariance.tensor
        if name not in shapes:
            continue
        shape, axis = shapes[name], invariance.axis
        count = 1 if invariance.groups == "layer" else invariance.count
        if rows and count > 1 and not _rows_fit(shape, axis):
            notes.append(f"{name!r} has one precision, not one a {invariance.groups}")
            count = 1
        index = len(names) + torch.arange(shape[axis]) // (shape[axis] // count)
        view = [1] * len(shape)
        view[axis] = shape[axis]
        tables[name] = index.reshape(view).expand(shape)
        prefix = name.rpartition(".")[0]
        bias = f"{prefix}.bias" if prefix else "bias"
        if shapes.get(bias) == (shape[axis],):
            tables[bias] = index  # in front of a norm a bias scales with its filter
        names += [name if count == 1 else f"{name}[{i}]" for i in range(count)]
    labels = torch.cat([tables[name].reshape(-1) for name in layout.names])
    used, labels = labels.unique(return_inverse=True)
    return Groups(layout, labels, tuple(names[i] for i in used.tolist()), tuple(notes))


def _rows_fit(shape: tuple[int, ...], axis: int) -> bool:
    columns = 1
    for size in shape[1:]:
        columns *= size
    return axis == 0 and 8 * columns * shape[0] ** 2 <= _ROW_MEMORY


def invariances(network: Network, example: Inputs) -> tuple[ScaleInvariance, ...]:
    """The scales that normalisations divide out."""
    network.apply(network.weights, example)  # copies made at the first call are not traced
    return discover(_Shell(network), example).invariances


def _divides(network: Network, example: Inputs) -> bool:
    """Whether anything in the network could divide a scale out; without, there is no search."""
    called: set[str] = set()
    listening = Listening(lambda function, *_: called.add(getattr(function, "__name__", "")))
    with torch.no_grad(), listening:
        network.apply(network.weights, example)
    return any("norm" in name or name.strip("_") in _DIVISIONS for name in called)


_DIVISIONS = {
    "cosine_similarity", "cross_entropy", "div", "divide", "einsum", "exp", "log", "normalize",
    "pow", "reciprocal", "rsqrt", "rtruediv", "sign", "std", "std_mean", "true_divide", "truediv",
    "var", "var_mean",
}  # fmt: skip
"""Functions with which a normalisation can be written by hand; too many are no harm."""


class _Shell(nn.Module):
    """A network of pure functions as a module again, with the same names."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._apply_network = network.apply
        self._names = tuple(network.weights)
        parameters = set(network.layout.names)
        for name, tensor in network.weights.items():
            owner: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            if name in parameters:
                owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
            else:
                owner.register_buffer(last, tensor)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The network at the module's own weights."""
        given = {}
        for name in self._names:
            prefix, _, last = name.rpartition(".")
            given[name] = getattr(self.get_submodule(prefix), last)
        return self._apply_network(given, inputs)
