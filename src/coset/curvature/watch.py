"""Sees every function that a network calls, and which of them read weights."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from coset.curvature.maps import LinearMap
from coset.vocabulary import Weights

Names = tuple[str | None, str | None]
Reader = Callable[..., Tensor | None]
"""Runs a function that reads weights and notes its maps; ``None`` where it does not know how."""


class Watch(TorchFunctionMode):
    """Lets every function pass, and notes those that read a watched tensor."""

    def __init__(
        self,
        watched: Weights,
        rows: int,
        separate: frozenset[str],
        readers: Mapping[Any, Reader],
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in watched.items()}
        self._rows, self._separate, self._readers = rows, separate, readers
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
        reader = self._readers.get(function)
        result = None if reader is None else reader(self, function, *args, **given)
        if result is not None:
            return result
        result = function(*args, **given)
        if isinstance(result, Tensor) or (
            isinstance(result, (tuple, list)) and any(isinstance(part, Tensor) for part in result)
        ):
            label = getattr(function, "__name__", str(function))
            self.foreign.update({name: label for name in touched})
        return result

    def name_of(self, tensor: Any) -> str | None:
        """The name of a watched tensor."""
        return self._names.get(id(tensor))

    def joint(self, names: Names) -> bool:
        """Whether weight and bias share a block."""
        return not {name for name in names if name is not None} & self._separate

    def fits(self, *tensors: Tensor) -> bool:
        """Whether the first axis is that of the examples."""
        return all(tensor.dim() > 0 and len(tensor) == self._rows for tensor in tensors)

    def note(self, outputs: Tensor, found: list[LinearMap]) -> Tensor:
        """Remembers the maps and where the gradient of their outputs will be."""
        if not outputs.requires_grad:
            # the first map: a graph begins here, with a copy that may be changed in place
            outputs = outputs.detach().requires_grad_().clone()
        edge = get_gradient_edge(outputs)
        self.found.extend((use, edge) for use in found)
        return outputs

    def _touched(self, values: Iterable[Any]) -> list[str]:
        found = []
        for value in values:
            if isinstance(value, Tensor):
                name = self._names.get(id(value))
                if name is not None:
                    found.append(name)
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
