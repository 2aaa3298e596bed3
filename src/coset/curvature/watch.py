"""Sees every function that a network calls, and which of them read weights."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from coset.curvature.maps import LinearMap
from coset.vocabulary import Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.uses import Probe, tensors_in, view_or_copy

Names = tuple[str | None, str | None]
Reader = Callable[..., Any]
"""Runs a function that reads weights and notes its maps; ``None`` where it does not know how."""


@dataclass(frozen=True)
class Origin:
    """How a tensor was made from one parameter, without data.

    Attributes:
        name: Of the parameter.
        make: From the parameter to the tensor; ``None``: it is the parameter.
    """

    name: str
    make: Callable[[Tensor], Tensor] | None = None


class Watch(Calls):
    """Lets every function pass, and notes those that read a watched tensor.

    Args:
        watched: The tensors.
        constants: Other tensors of the network, which do not depend on the examples either.
        probe: Tells which axis is that of the examples.
        separate: Weights that are not to share a block with their bias.
        readers: What is known of functions that read weights themselves.
        otherwise: Tried for all other functions.
    """

    def __init__(
        self,
        watched: Weights,
        constants: Iterable[Tensor],
        probe: Probe,
        separate: frozenset[str],
        readers: Mapping[Any, Reader],
        otherwise: Reader,
    ) -> None:
        super().__init__()
        self.watched, self.rows = watched, probe.rows
        self._probe = probe
        self._functions: list[Any] = []
        self._axes: dict[int, int | None] = {}
        self._origins: dict[int, Origin] = {}
        self._constants = {id(tensor) for tensor in constants}
        self._made: list[Tensor] = []  # kept alive, for their identity is their name
        self._versions: dict[int, int] = {}
        self._plain: dict[int, Tensor] = {}
        self.leaves = {name: self.leaf(tensor, Origin(name)) for name, tensor in watched.items()}
        self._separate, self._readers, self._otherwise = separate, readers, otherwise
        self.found: list[tuple[LinearMap, GradientEdge]] = []
        self.foreign: dict[str, str] = {}

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function, and notes what it read."""
        result = self._run(function, args, given)
        if tensors_in([result]):
            self._functions.append(function)
        return result

    def _run(self, function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        tensors = tensors_in([*args, *given.values()])
        touched = [t for t in tensors if id(t) in self._origins]
        if not touched:
            return view_or_copy(function, args, given)
        whole = torch.is_grad_enabled() and all(map(self._is_unchanged, touched))
        args, given = self._without_leaves((args, given))
        tensors = tensors_in([*args, *given.values()])
        touched = [t for t in tensors if id(t) in self._origins]
        self._axes = self._probe.given(len(self._functions), function, tensors)
        result = self._read(function, args, given, touched) if whole else None
        if result is not None:
            return result
        result = function(*args, **given)
        written = result is None and getattr(function, "__name__", "") != "__get__"
        if written or tensors_in([result]):
            self._refuse(function, touched)
        return result

    def _read(
        self, function: Any, args: tuple[Any, ...], given: dict[str, Any], touched: list[Tensor]
    ) -> Any:
        """What a reader makes of a function, if one knows it."""
        reader, before = self._readers.get(function), len(self.found)
        if reader is not None and all(self.name_of(t) is not None for t in touched):
            result = reader(self, function, *args, **given)
            if result is not None:
                noted = {name for use, _ in self.found[before:] for name in use.names}
                self._refuse(function, [t for t in touched if self.name_of(t) not in noted])
                return result
        return self._otherwise(self, function, *args, **given)

    def _refuse(self, function: Any, touched: Iterable[Tensor]) -> None:
        label = getattr(function, "__name__", str(function))
        self.foreign.update({self._origins[id(t)].name: label for t in touched})

    def _without_leaves(self, value: Any) -> Any:
        """The same with plain tensors in the place of the leaves that the network got."""
        if isinstance(value, dict):
            return {key: self._without_leaves(part) for key, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self._without_leaves(part) for part in value)
        return self._plain.get(id(value), value)

    def unseen(self, nodes: Container[Node]) -> dict[str, str]:
        """Weights that the graph reads, though no function was seen to: scripted code, say."""
        leaves = [tensor for tensor in self._made if tensor.requires_grad]
        read = [leaf for leaf in leaves if get_gradient_edge(leaf).node in nodes]
        return {self._origins[id(leaf)].name: "code that is not seen" for leaf in read}

    @property
    def in_step(self) -> bool:
        """Whether the run and the probe made the same calls."""
        return self._functions == [call.function for call in self._probe.calls]

    # -- what readers ask ------------------------------------------------------------------------

    def name_of(self, tensor: Any) -> str | None:
        """The name of a watched tensor."""
        origin = self._origins.get(id(tensor))
        return None if origin is None or origin.make is not None else origin.name

    def origin(self, tensor: Any) -> Origin | None:
        """How a tensor was made from a watched one."""
        return self._origins.get(id(tensor))

    def is_data(self, tensor: Tensor) -> bool:
        """Whether a tensor may depend on the examples.

        Positions that are counted off in the network do not, so whole numbers must have an axis of
        examples.
        """
        if id(tensor) in self._origins or id(tensor) in self._constants or tensor.dim() == 0:
            return False
        return tensor.is_floating_point() or self.axis(tensor) is not None

    def joint(self, names: Names) -> bool:
        """Whether weight and bias share a block."""
        return not {name for name in names if name is not None} & self._separate

    def axis(self, tensor: Tensor) -> int | None:
        """The axis of the examples; what readers make themselves has the examples in front."""
        if id(tensor) in self._axes:
            return self._axes[id(tensor)]
        return 0 if tensor.dim() > 0 and len(tensor) == self.rows else None

    def axis_of_result(self, function: Any, result: Tensor) -> int | None:
        """The axis of the examples in what the call that is being read returns."""
        return self._probe.returned(len(self._functions), function, result)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the first axis is that of the examples."""
        return self.axis(tensor) == 0

    # -- what readers tell -----------------------------------------------------------------------

    def note(self, outputs: Tensor, found: list[LinearMap]) -> Tensor:
        """Remembers the maps and where the gradient of their outputs will be."""
        if not outputs.requires_grad:
            # the first map: a graph begins here, with a copy that may be changed in place
            outputs = outputs.detach().requires_grad_().clone()
        edge = get_gradient_edge(outputs)
        self.found.extend((use, edge) for use in found)
        return outputs

    def remember(self, tensor: Tensor, origin: Origin) -> Tensor:
        """Remembers how a tensor was made."""
        self._made.append(tensor)
        self._origins[id(tensor)] = origin
        self._versions[id(tensor)] = tensor._version
        return tensor

    def leaf(self, tensor: Tensor, origin: Origin) -> Tensor:
        """What the network gets in the place of a tensor, so that the graph shows unseen uses."""
        leaf = self.remember(tensor.detach().requires_grad_(), origin)
        self._plain[id(leaf)] = self.remember(tensor, origin)
        return leaf

    def _is_unchanged(self, tensor: Tensor) -> bool:
        """Whether nothing was written into the memory of a tensor since it was made."""
        return tensor._version == self._versions[id(tensor)]
