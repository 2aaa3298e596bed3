"""Operations on tensors, written down while they are run."""

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_REFUSED = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
"""Operations that look at numbers or draw random ones: another run could go another way."""


def write_down(
    program: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]
) -> "GraphModule":
    """The operations of a program, those of its backward passes among them, as a graph.

    This is what ``make_fx`` does; without its symbols and stack traces it takes a quarter of the
    time, and threads need not wait for each other.  The ``meta`` of a node holds its value without
    the numbers (``val``) and where these were (``device``).

    >>> graph = write_down(lambda x: (x.sin() + 1,), [torch.ones(2)])
    >>> [node.name for node in graph.graph.nodes]
    ['arg_0', 'sin_default', 'add_tensor', 'output']
    """
    inputs = [example.detach() for example in examples]  # one tensor may be given twice
    writer = _Writer(inputs)
    with writer:
        found = program(*inputs)
    return writer.finish(found)


class _Writer(TorchDispatchMode):
    """Writes down what passes through it; tensors that it does not know are constants."""

    def __init__(self, examples: Sequence[Tensor]) -> None:
        from torch.fx import Graph

        super().__init__()
        self._graph = Graph()
        self._constants: dict[str, Tensor] = {}
        self._nodes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        for place, example in enumerate(examples):
            self._know(example, self._graph.placeholder(f"arg_{place}"))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation and writes it down."""
        if _REFUSED.intersection(function.tags):
            raise ValueError(f"{function} has another result in every run")
        given = kwargs or {}
        found = function(*args, **given)
        node = self._graph.call_function(function, self._named(args), self._named(given))
        if isinstance(found, Tensor):
            self._know(found, node)
        else:
            for place, one in enumerate(found):
                if one is not None:
                    self._know(one, self._graph.call_function(operator.getitem, (node, place)))
        return found

    def finish(self, found: Sequence[Tensor]) -> "GraphModule":
        """The graph, with its results."""
        from torch.fx import GraphModule

        self._graph.output(self._named(tuple(found)))
        return GraphModule(self._constants, self._graph)

    def _named(self, values: Any) -> Any:
        return tree_map_only(Tensor, self._node, values)

    def _node(self, value: Tensor) -> "Node":
        if value not in self._nodes:
            name = f"_constant_{len(self._constants)}"
            self._constants[name] = value
            self._know(value, self._graph.get_attr(name))
        node: Node = self._nodes[value]
        return node

    def _know(self, value: Tensor, node: "Node") -> None:
        self._nodes[value] = node
        node.meta["device"] = value.device
        node.meta["val"] = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        )
