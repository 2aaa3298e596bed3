"""A graph of ``torch.fx`` becomes a :class:`~coset.symmetry.graph.Graph`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.graph import Graph, Node, Ref, execute, refs_in

# Operations that read only the shape of their argument.
_SHAPE_ONLY: dict[str, Callable[..., Tensor]] = {
    "zeros_like": torch.zeros,
    "ones_like": torch.ones,
    "new_zeros": torch.zeros,
    "new_ones": torch.ones,
    "empty_like": torch.zeros,
    "new_empty": torch.zeros,
    "full_like": torch.full,
    "new_full": torch.full,
}
_ASSERTIONS = ("_assert", "sym_constrain", "_guards")


def translated(graph: Any, meaning: dict[str, tuple[str, Any]], module: nn.Module) -> Graph:
    """Translates a torch.fx graph into ours."""
    canonical = canonical_names(module)
    nodes: list[Node] = []
    place: dict[Any, int] = {}
    first: dict[str, int] = {}
    outputs: tuple[Ref, ...] = ()
    for item in graph.nodes:
        if item.op == "output":
            outputs = tuple(refs_in(_substituted(item.args, place)))
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


def _substituted(value: Any, place: Mapping[Any, int]) -> Any:
    """Nested fx arguments with every fx node replaced by our reference."""
    if isinstance(value, (list, tuple)):
        return tuple(_substituted(part, place) for part in value)
    if isinstance(value, dict):
        return {name: _substituted(part, place) for name, part in value.items()}
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
    source = _source(item)
    if item.op == "get_attr":
        from torch._subclasses import FakeTensor

        value: Any = item.graph.owning_module
        for part in str(item.target).split("."):
            value = getattr(value, part)
        if isinstance(value, FakeTensor):
            raise TypeError("a scripted module keeps its weights to itself")
        return Node("constant", item.name, {}, tuple(value.shape), source, value.detach())
    if item.op == "placeholder":
        kind, value = meaning[item.name]
        # a tensor without entries has nothing to move
        if kind == "parameter" and item.meta["val"].is_floating_point() and 0 not in shape:
            return Node("parameter", canonical.get(value, value), {}, shape, source)
        if kind == "parameter":
            value = module.state_dict()[value]
        if kind == "input":
            return Node("input", value, {}, shape, source)
        return Node("constant", item.name, {}, shape, source, value.detach())
    op = name_of(item.target)
    arguments = _by_schema(item.target, op, *_substituted((item.args, item.kwargs), place))
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
    value = execute(node, results, lambda tensor: tensor)
    return Node("constant", node.name, {}, node.shape, node.source, value)


def name_of(target: Any) -> str:
    """The name of an operation, without overload and without trailing underscore."""
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


def canonical_names(module: nn.Module) -> dict[str, str]:
    """For every name of a tensor, the first name of the same tensor."""
    first: dict[tuple[Any, ...], str] = {}
    names = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        place = tensor.data_ptr() if tensor.numel() else id(tensor)
        key = (place, tuple(tensor.shape), tensor.stride())  # a transposed view is another tensor
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


def _source(item: Any) -> str:
    """The innermost line of the user's code, as ``file:line``, or else the module that did it."""
    place = ""
    for line in (item.meta.get("stack_trace") or "").splitlines():
        words = line.strip().split('"')
        if line.strip().startswith("File ") and "/torch/" not in words[1]:
            number = words[2].split("line ")[1].split(",")[0]
            place = f"{Path(words[1]).name}:{number}"
    modules = list((item.meta.get("nn_module_stack") or {}).values())
    if place or not modules:
        return place
    path, kind = modules[-1]
    return f"module {path}" if path else f"{kind}".rpartition(".")[2]
