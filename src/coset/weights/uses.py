"""Who reads which weights, with the examples on which axis.

Functions are watched, not modules: a weight that is used twice, inside a functional call or an
attention layer, is seen each time.  Which axis is that of the examples no size tells, for there may
be as many positions, windows or heads: it is the one that changes with their number.  So the
network runs a second time with two examples, and what it calls is compared call by call.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.inputs import count_rows, map_parts

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Use:
    """A call that reads weights.

    Attributes:
        function: What was called.
        args: With what.
        given: With what by name.
        names: Of the weights among the arguments.
        axes: Which axis of each tensor among them is that of the examples, by its identity.
    """

    function: TorchFunction
    args: Arguments
    given: Named
    names: tuple[str, ...]
    axes: Mapping[int, int | None]

    @property
    def axis(self) -> int | None:
        """The axis of the examples in the first argument, the inputs of a layer."""
        first = self.args[0] if self.args else self.given.get("input")
        return self.axes.get(id(first))


def visit_uses(
    run: Callable[[Weights, Inputs], object],
    weights: Weights,
    inputs: Inputs,
    see: Callable[[Use], None],
) -> None:
    """Runs a network and hands over every call that reads some of its weights, in order.

    Nothing is kept from call to call: whoever wants to remember the tensors of a use does.

    Args:
        run: From weights and inputs to outputs.
        weights: The weights.
        inputs: Examples along the first axis.
        see: Told of each use, before the function is called.

    >>> from coset.weights import functionalise
    >>> network = functionalise(torch.nn.Linear(2, 3))
    >>> visit_uses(
    ...     network.apply,
    ...     network.weights,
    ...     torch.zeros(5, 2),
    ...     lambda use: print(use.function.__name__, use.names, use.axis),
    ... )
    linear ('weight', 'bias') 0
    """
    own = {name: tensor.clone() for name, tensor in weights.items()}  # each by itself
    names = {id(tensor): name for name, tensor in own.items()}
    with torch.no_grad():
        probe(partial(run, own), inputs)  # what a network makes in its first call is there now
        with _Visitor(names, probe(partial(run, own), inputs), see):
            run(own, inputs)


class _Visitor(Calls):
    """Tells of the calls that read one of some tensors."""

    def __init__(
        self, names: Mapping[int, str], other: "Probe", see: Callable[[Use], None]
    ) -> None:
        super().__init__()
        self._names, self._probe, self._see, self._number = names, other, see, 0

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Tells of the call if it reads one, and runs it."""
        tensors = tensors_in([*args, *given.values()])
        names = tuple(self._names[id(t)] for t in tensors if id(t) in self._names)
        if names:
            axes = self._probe.given(self._number, function, tensors)
            self._see(Use(function, args, given, names, axes))
        result = view_or_copy(function, args, given)
        self._number += bool(tensors_in([result]))
        return result


@dataclass(frozen=True)
class Call:
    """A function, and the shapes of what it was given and of what it returned."""

    function: Any
    given: Shapes
    returned: Shapes


@dataclass(frozen=True)
class Probe:
    """A run with another number of examples.

    Attributes:
        rows: The number of examples of the run that is watched.
        others: The number of examples of this run.
        calls: What the network called for tensors, in order.
    """

    rows: int
    others: int
    calls: Sequence[Call]

    def given(self, number: int, function: Any, tensors: Sequence[Tensor]) -> dict[int, int | None]:
        """The axis of the examples in each tensor of a call, by the tensor's identity."""
        call = self._call(number, function)
        if call is None or len(call.given) != len(tensors):
            return {id(tensor): None for tensor in tensors}
        pairs = zip(tensors, call.given, strict=True)
        return {id(tensor): self._changing(tensor.shape, shape) for tensor, shape in pairs}

    def returned(self, number: int, function: Any, result: Tensor) -> int | None:
        """The axis of the examples in the tensor that a call returned."""
        call = self._call(number, function)
        if call is None or len(call.returned) != 1:
            return None
        return self._changing(result.shape, call.returned[0])

    def _call(self, number: int, function: Any) -> Call | None:
        call = self.calls[number] if number < len(self.calls) else None
        return call if call is not None and call.function == function else None

    def _changing(self, here: Sequence[int], there: Sequence[int]) -> int | None:
        """The one axis along which two shapes differ as the numbers of examples do.

        >>> Probe(5, 2, ())._changing((5, 5, 3), (5, 2, 3))
        1
        """
        if len(here) != len(there):
            return None
        sizes = [(k, pair) for k, pair in enumerate(zip(here, there, strict=True))]
        differing = [(k, pair) for k, pair in sizes if pair[0] != pair[1]]
        alone = len(differing) == 1 and differing[0][1] == (self.rows, self.others)
        return differing[0][0] if alone else None


def probe(run: Callable[[Inputs], object], inputs: Inputs, *, whole: bool = False) -> Probe:
    """Runs a network with another number of examples.

    Args:
        run: The network at some weights.
        inputs: The examples of the run that is watched.
        whole: All of them and the first once more; else the first twice, or three times where there
            are two, which is quicker.
    """
    rows = count_rows(inputs)
    others = rows + 1 if whole else 3 if rows == 2 else 2
    index = torch.arange(others) % rows if whole else torch.zeros(others, dtype=torch.long)
    few = map_parts(lambda part: part[index.to(part.device)], inputs)
    listener = _Listener()
    with listener:
        run(few)
    return Probe(rows, others, listener.calls)


class _Listener(Calls):
    """Writes down every call that returns tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        before = _shapes([*args, *given.values()])
        result = view_or_copy(function, args, given)
        after = _shapes([result])
        if after:
            self.calls.append(Call(function, before, after))
        return result


def _shapes(values: Iterable[Any]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors_in(values))


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among values, in lists, tuples and dictionaries too."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            found += tensors_in(value.values())
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
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
