"""A network as a small graph of tensor operations that can be looked at and run.

Nodes carry schema names of ATen operations, arguments by name, shapes.  A graph runs in double
precision whatever the module asked for, which is how symmetries are checked.  How a module becomes
a graph is the business of :mod:`coset.symmetry.tracing`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coset.weights.randomness import own_draws, own_randomness

_SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Ref:
    """A reference to the result of an earlier node, by its place in the graph."""

    node: int


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        op: ``"parameter"``, ``"input"``, ``"constant"``, ``"getitem"``, or the name of an ATen
            operation without overload and without trailing underscore.
        name: The parameter's name, or the tracer's name of the result.
        arguments: By the names of the operation's schema; results of other nodes are :class:`Ref`.
        shape: Of the result; a tuple of shapes when there are several.
        source: Where the user's code asked for it, as ``file:line``, or the path of the module.
        constant: The value (a tensor or several), if it depends on neither parameters nor inputs.
        target: What runs it.
    """

    op: str
    name: str
    arguments: Mapping[str, Any]
    shape: tuple[Any, ...]
    source: str = ""
    constant: Any = None
    target: Callable[..., Any] | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """The traced network: nodes in an order in which they can run."""

    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Place of each parameter (or saved buffer) in the graph."""
        return {node.name: i for i, node in enumerate(self.nodes) if node.op == "parameter"}

    @cached_property
    def last_use(self) -> list[int]:
        """For each node the last node that reads it, so that runs can free memory."""
        last = list(range(len(self.nodes)))
        for i, node in enumerate(self.nodes):
            for ref in refs_in(node.arguments):
                last[ref.node] = i
        for ref in self.outputs:
            last[ref.node] = len(self.nodes)
        return last

    def run(
        self,
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        *,
        dtype: torch.dtype | None,
        leaky: bool = False,
    ) -> list[Tensor]:
        """Runs the graph; with a ``dtype``, every floating number in it is of that type.

        Casts inside the network (norms that go to single precision) are overruled too, so that a
        true symmetry shows an error of rounding size.  ``leaky`` lets a little through rectifiers,
        so that gradients show what is read even where units happen to be off.  Random numbers
        inside the network are the same in every run.
        """
        with own_randomness(0), own_draws():
            return self._run(weights, inputs, dtype, leaky)

    def _run(
        self,
        weights: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        dtype: torch.dtype | None,
        leaky: bool,
    ) -> list[Tensor]:
        convert = _converter(dtype)
        results: list[Any] = [None] * len(self.nodes)
        dying: dict[int, list[int]] = {}
        for i, last in enumerate(self.last_use):
            dying.setdefault(last, []).append(i)
        position = 0
        for i, node in enumerate(self.nodes):
            if node.op == "parameter":
                results[i] = convert(weights[node.name])
            elif node.op == "input":
                results[i] = convert(inputs[position])
                position += 1
            elif node.op == "constant":
                results[i] = convert(node.constant)
            elif leaky and node.op == "relu":
                results[i] = torch.nn.functional.leaky_relu(
                    results[node.arguments["self"].node], 0.3
                )
            else:
                results[i] = execute(node, results, convert)
            for finished in dying.get(i, ()):
                results[finished] = None
        return [results[ref.node] for ref in self.outputs]


def refs_in(value: Any) -> Iterator[Ref]:
    """All references inside nested arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from refs_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from refs_in(part)


def substitute(value: Any, replace: Callable[[Ref], Any]) -> Any:
    """Nested arguments with every reference replaced."""
    if isinstance(value, Ref):
        return replace(value)
    if isinstance(value, Mapping):
        return {name: substitute(part, replace) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(substitute(part, replace) for part in value)
    return value


def execute(node: Node, results: Sequence[Any], convert: Callable[[Any], Any]) -> Any:
    """Runs one node on the results of earlier ones."""
    arguments = substitute(node.arguments, lambda ref: results[ref.node])
    if node.op in _OWN_WAY:
        return _OWN_WAY[node.op](**arguments)
    assert node.target is not None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return convert(node.target(*arguments.values()))
    positional, keywords = [], {}
    for argument in schema.arguments:
        value = convert(arguments[argument.name]) if argument.name in arguments else None
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return convert(node.target(*positional, **keywords))


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
    **_: Any,
) -> tuple[Tensor]:
    """The normalised result of a batch norm, differentiable in its running statistics too."""
    shape = (1, -1, *[1] * (input.dim() - 2))
    if training or running_mean is None or running_var is None:
        axes = [axis for axis in range(input.dim()) if axis != 1]
        running_var, running_mean = torch.var_mean(input, axes, correction=0)
    scale = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    return (torch.addcmul(shift.view(shape), input, scale.view(shape)),)  # goes through it once


def _instance_norm(*, use_input_stats: bool, **arguments: Any) -> Tensor:
    if not use_input_stats:
        return _batch_norm(**arguments)[0]
    input, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    return torch.instance_norm(input, weight, bias, None, None, True, 0.0, arguments["eps"], False)


def _view(self: Tensor, size: Sequence[int] | None = None, dtype: Any = None) -> Tensor:
    """A view by reshape: strides may differ from those at tracing time."""
    return self.view(dtype) if size is None else self.reshape(size)


# Operations that torch runs in a way that does not suit us.
_OWN_WAY: dict[str, Callable[..., Any]] = {
    "getitem": lambda x, index: x[index],
    "view": _view,
    "_unsafe_view": _view,
    # the operation itself has no derivative
    "copy": lambda self, src, **_: src.to(self.dtype).expand_as(self),
    "instance_norm": _instance_norm,
    "batch_norm": lambda **arguments: _batch_norm(**arguments)[0],
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
}


def _converter(dtype: torch.dtype | None) -> Callable[[Any], Any]:
    complex_dtype = None if dtype is None else dtype.to_complex()

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(dtype)
        if isinstance(value, Tensor) and value.is_complex():
            return value.to(complex_dtype)
        if isinstance(value, torch.dtype) and value in _SMALL_FLOATS:
            return dtype
        if isinstance(value, torch.dtype) and value.is_complex:
            return complex_dtype
        return value

    return (lambda value: value) if dtype is None else convert
