"""Sees every function that a network calls, and which of them read weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from coset.curvature.maps import LinearMap
from coset.vocabulary import Weights

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


class Watch(TorchFunctionMode):
    """Lets every function pass, and notes those that read a watched tensor.

    Args:
        watched: The tensors.
        constants: Other tensors of the network, which do not depend on the examples either.
        rows: The number of examples.
        separate: Weights that are not to share a block with their bias.
        readers: What is known of functions that read weights themselves.
        otherwise: Tried for all other functions.
        told: Which axis is that of the examples, question by question, where two could be.
    """

    def __init__(
        self,
        watched: Weights,
        constants: Iterable[Tensor],
        rows: int,
        separate: frozenset[str],
        readers: Mapping[Any, Reader],
        otherwise: Reader,
        told: Sequence[int | None] = (),
    ) -> None:
        super().__init__()
        self.watched, self.rows = watched, rows
        self._origins = {id(tensor): Origin(name) for name, tensor in watched.items()}
        self._constants = {id(tensor) for tensor in constants}
        self._made: list[Tensor] = []  # kept alive, for their identity is their name
        self._separate, self._readers, self._otherwise = separate, readers, otherwise
        self._told = told
        self.axes: list[int | None] = []
        self.doubtful = False
        self.found: list[tuple[LinearMap, GradientEdge]] = []
        self.foreign: dict[str, str] = {}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the function, and notes what it read."""
        given = kwargs or {}
        touched = self._touched([*args, *given.values()])
        if not touched:
            return view_or_copy(function, args, given)
        result = self._read(function, args, given, touched)
        if result is not None:
            return result
        result = function(*args, **given)
        if isinstance(result, Tensor) or (
            isinstance(result, (tuple, list)) and any(isinstance(part, Tensor) for part in result)
        ):
            label = getattr(function, "__name__", str(function))
            self.foreign.update({origin.name: label for origin in touched})
        return result

    def _read(
        self, function: Any, args: tuple[Any, ...], given: dict[str, Any], touched: list[Origin]
    ) -> Any:
        """What a reader makes of a function, if one knows it."""
        reader = self._readers.get(function)
        if reader is not None and all(origin.make is None for origin in touched):
            result = reader(self, function, *args, **given)
            if result is not None:
                return result
        return self._otherwise(self, function, *args, **given)

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
        """The axis of the examples: the first, or the second of sequences; ``None``: neither."""
        index = not tensor.is_floating_point()
        second = tensor.dim() > 2 or (index and tensor.dim() == 2)
        fitting = [k for k in (0, 1)[: 1 + second] if self.rows == (*tensor.shape, -1, -1)[k]]
        guess = fitting[0] if fitting else None
        if len(fitting) == 2 or (fitting and index and tensor.dim() == 1):
            self.doubtful = True  # as many positions as examples
            guess = self._told[len(self.axes)] if len(self.axes) < len(self._told) else guess
        self.axes.append(guess)
        return guess

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
        return tensor

    def _touched(self, values: Iterable[Any]) -> list[Origin]:
        found = []
        for value in values:
            if isinstance(value, Tensor):
                origin = self._origins.get(id(value))
                if origin is not None:
                    found.append(origin)
            elif isinstance(value, (tuple, list)):
                found += self._touched(value)
        return found


_VIEWS: dict[Any, Callable[..., Tensor]] = {
    Tensor.view: Tensor.reshape,
    Tensor.view_as: Tensor.reshape_as,
}
"""Methods that insist on an order of the entries in memory, and those that copy where needed."""


def view_or_copy(function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Calls a function; a view becomes a copy where convolutions have put the channels last."""
    if function not in _VIEWS:
        return function(*args, **given)
    try:
        return function(*args, **given)
    except RuntimeError:
        return _VIEWS[function](*args, **given)
