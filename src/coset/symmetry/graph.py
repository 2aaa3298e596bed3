"""A module and an example become a small graph of tensor operations.

The only file that knows a tracer.  The rest of the room sees :class:`Graph` and :class:`Node`:
schema names of ATen operations, arguments by name, shapes.  The same graph can be *run*, in double
precision whatever the module asks for, which is how symmetries are checked.
"""

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.weights.network import weights_of

Example = Tensor | tuple[Tensor, ...]

# Operations that read only the shape of their argument.
_SHAPE_ONLY: dict[str, Callable[..., Tensor]] = {
    "zeros_like": torch.zeros,
    "ones_like": torch.ones,
    "new_zeros": torch.zeros,
    "new_ones": torch.ones,
    "full_like": torch.full,
    "new_full": torch.full,
}
_ASSERTIONS = ("_assert", "sym_constrain", "_guards")
_RECURRENT = ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
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
        source: Where the user's code asked for it, as ``file:line``.
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


@dataclass(frozen=True)
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
        so that gradients show what is read even where units happen to be off.
        """
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
                results[i] = _execute(node, results, convert)
            for finished in dying.get(i, ()):
                results[finished] = None
        return [results[ref.node] for ref in self.outputs]


def trace(module: nn.Module, example: Example) -> Graph:
    """Traces the module in evaluation mode; its training flags are restored.

    Raises:
        CosetError: If the module cannot be traced, with the line that prevents it.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), _silence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return _build(*_export(module, inputs), module)
            except CosetError:
                raise
            except Exception as error:  # whatever the tracer raises becomes one named error
                return _second_try(module, inputs, error)
    finally:
        for child, flag in flags:
            child.training = flag


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


def _export(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Any, dict[str, tuple[str, Any]]]:
    """The functional graph of ``torch.export``, and what each placeholder stands for."""
    from torch.export import default_decompositions, export
    from torch.export.graph_signature import InputKind

    program = export(module, inputs, strict=False)
    table = default_decompositions()
    recurrent = {op: rule for op, rule in table.items() if str(op) in _RECURRENT}
    program = program.run_decompositions(recurrent)
    saved = program.state_dict
    meaning: dict[str, tuple[str, Any]] = {}
    for spec in program.graph_signature.input_specs:
        name = str(getattr(spec.arg, "name", ""))
        if spec.kind == InputKind.USER_INPUT:
            meaning[name] = ("input", name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.persistent is not False:
            meaning[name] = ("parameter", spec.target)
        else:
            value = program.constants.get(spec.target, saved.get(spec.target))
            meaning[name] = ("constant", value)
    return program.graph, meaning


def _second_try(module: nn.Module, inputs: tuple[Tensor, ...], error: Exception) -> Graph:
    """``make_fx`` when export itself breaks; control flow on data stays refused."""
    text = f"{type(error).__name__}: {error}"
    if "DataDependent" in text or "data-dependent" in text:
        raise _untraceable(error) from error
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(weights_of(module))

    def call(weights: list[Tensor], *arguments: Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), arguments)

    pure = torch.func.functionalize(call, remove="mutations_and_views")
    try:
        values = list(weights_of(module).values())
        traced = make_fx(pure, pre_dispatch=True, tracing_mode="fake")(values, *inputs)
    except Exception:
        raise _untraceable(error) from error
    placeholders = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    kinds = [("parameter", name) for name in names] + [("input", "input")] * len(inputs)
    return _build(traced.graph, dict(zip(placeholders, kinds, strict=True)), module)


def _untraceable(error: Exception) -> CosetError:
    place = "its forward"
    chain: BaseException | None = error
    while chain is not None:
        for frame in reversed(traceback.extract_tb(chain.__traceback__)):
            if f"{Path(torch.__file__).parent}" not in frame.filename and "coset" not in (
                Path(frame.filename).parent.name,
                Path(frame.filename).parent.parent.name,
            ):
                place = f"{Path(frame.filename).name}:{frame.lineno} ({frame.line})"
                break
        chain = chain.__cause__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CosetError(
        f"got a module that cannot be traced, at {place}: {reason}",
        "needed a forward whose path does not depend on the values of tensors",
        "replace Python branches and .item() on data by tensor operations (torch.where), "
        "or give the factors by hand with groups=",
    )


def _build(graph: Any, meaning: dict[str, tuple[str, Any]], module: nn.Module) -> Graph:
    """Translates a torch.fx graph into ours."""
    canonical = _canonical_names(module)
    nodes: list[Node] = []
    place: dict[Any, int] = {}
    first: dict[str, int] = {}
    outputs: tuple[Ref, ...] = ()
    for item in graph.nodes:
        if item.op == "output":
            outputs = tuple(refs_in(substitute_nodes(item.args, place)))
            continue
        if item.op == "call_function" and str(item.target).startswith(
            tuple(f"aten.{word}" for word in _ASSERTIONS)
        ):
            continue
        node = _node(item, meaning, canonical, place, nodes, module)
        if node.op == "parameter" and node.name in first:
            place[item] = first[node.name]
            continue
        if node.op == "parameter":
            first[node.name] = len(nodes)
        place[item] = len(nodes)
        nodes.append(node)
    aliases = {name: main for name, main in canonical.items() if name != main}
    return Graph(tuple(nodes), outputs, aliases)


def substitute_nodes(value: Any, place: Mapping[Any, int]) -> Any:
    """Nested fx arguments with every fx node replaced by our reference."""
    if isinstance(value, (list, tuple)):
        return tuple(substitute_nodes(part, place) for part in value)
    if isinstance(value, dict):
        return {name: substitute_nodes(part, place) for name, part in value.items()}
    try:
        return Ref(place[value])
    except (KeyError, TypeError):
        return value


def _node(
    item: Any,
    meaning: dict[str, tuple[str, Any]],
    canonical: Mapping[str, str],
    place: Mapping[Any, int],
    nodes: Sequence[Node],
    module: nn.Module,
) -> Node:
    shape = _shape(item.meta.get("val"))
    source = _source(item.meta.get("stack_trace") or "")
    if item.op == "get_attr":
        value: Any = item.graph.owning_module
        for part in str(item.target).split("."):
            value = getattr(value, part)
        return Node("constant", item.name, {}, tuple(value.shape), source, value.detach())
    if item.op == "placeholder":
        kind, value = meaning[item.name]
        if kind == "parameter" and item.meta["val"].is_floating_point():
            return Node("parameter", canonical.get(value, value), {}, shape, source)
        if kind == "parameter":
            value = module.state_dict()[value]
        if kind == "input":
            return Node("input", value, {}, shape, source)
        return Node("constant", item.name, {}, shape, source, value.detach())
    op = _name(item.target)
    arguments = _by_schema(item.target, op, *substitute_nodes((item.args, item.kwargs), place))
    node = Node(op, item.name, arguments, shape, source, None, item.target)
    return _fold(node, item.meta.get("val"), nodes)


def _fold(node: Node, example: Any, nodes: Sequence[Node]) -> Node:
    """Evaluates a node that depends on neither parameters nor inputs."""
    if example is None:
        return node
    if node.op in _SHAPE_ONLY:
        fill = node.arguments.get("fill_value")
        size = (tuple(node.shape),) if fill is None else (tuple(node.shape), fill)
        value = _SHAPE_ONLY[node.op](*size, dtype=example.dtype)
        return Node("constant", node.name, {}, node.shape, node.source, value)
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    known = all(nodes[ref.node].constant is not None for ref in refs_in(node.arguments))
    if random or not known or "empty" in node.op:
        return node
    results: list[Any] = [earlier.constant for earlier in nodes]
    value = _execute(node, results, lambda tensor: tensor)
    return Node("constant", node.name, {}, node.shape, node.source, value)


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    name = str(packet if packet is not None else getattr(target, "__name__", target))
    name = name.rsplit(".", maxsplit=1)[-1]
    return name.rstrip("_") if not name.startswith("__") else name


def _by_schema(target: Any, op: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if op == "getitem":
        return {"x": args[0], "index": args[1]}
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {**{str(i): value for i, value in enumerate(args)}, **keywords}
    filled = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            filled[argument.name] = args[i]
        elif argument.name in keywords:
            filled[argument.name] = keywords[argument.name]
        elif argument.has_default_value():
            filled[argument.name] = argument.default_value
    return filled


def _execute(node: Node, results: Sequence[Any], convert: Callable[[Any], Any]) -> Any:
    arguments = substitute(node.arguments, lambda ref: results[ref.node])
    if node.op == "getitem":
        return arguments["x"][arguments["index"]]
    assert node.target is not None
    if node.op == "_native_batch_norm_legit_no_training":
        return _batch_norm(**arguments)
    if node.op == "copy":  # the operation itself has no derivative
        return arguments["src"].to(arguments["self"].dtype).expand_as(arguments["self"])
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
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor]:
    """Batch norm in evaluation mode, differentiable in its running statistics too."""
    shape = (1, -1, *[1] * (input.dim() - 2))
    outputs = (input - running_mean.view(shape)) * (running_var.view(shape) + eps).rsqrt()
    if weight is not None:
        outputs = outputs * weight.view(shape)
    return (outputs if bias is None else outputs + bias.view(shape),)


def _converter(dtype: torch.dtype | None) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(dtype)
        if isinstance(value, torch.dtype) and value in _SMALL_FLOATS:
            return dtype
        return value

    return (lambda value: value) if dtype is None else convert


def _canonical_names(module: nn.Module) -> dict[str, str]:
    """For every name of a tensor, the first name of the same tensor."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    names = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        key = (tensor.data_ptr() if tensor.numel() else id(tensor), tuple(tensor.shape))
        names[name] = first.setdefault(key, name)
    return names


def _shape(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (tuple, list)):
        return tuple(_shape(part) for part in value)
    shape = tuple(getattr(value, "shape", ()))
    if not all(isinstance(size, int) for size in shape):
        raise CosetError(
            f"got a tensor of data-dependent shape {shape}",
            "needed shapes that follow from the example's shape",
            "replace boolean indexing by torch.where, or give the factors by hand with groups=",
        )
    return shape


def _source(stack: str) -> str:
    """The innermost line of the user's code, as ``file:line``."""
    place = ""
    for line in stack.splitlines():
        words = line.strip().split('"')
        if line.strip().startswith("File ") and "/torch/" not in words[1]:
            number = words[2].split("line ")[1].split(",")[0]
            place = f"{Path(words[1]).name}:{number}"
    return place


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Failing exports print whole graphs; our own error says what matters."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
