"""Watches a network run and notes where its weights are used.

Functions are watched, not modules: a weight used twice, inside a functional call or an attention
layer, is seen each time.  Gradients are then taken to the outputs of the linear maps only, never to
the weights, which saves half of the backward pass.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coset.curvature import maps
from coset.curvature.maps import LinearMap, Pair
from coset.errors import CosetError
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.network import Inputs, Network

Names = tuple[str | None, str | None]


@dataclass(frozen=True)
class Recorded:
    """Outputs of a network and the linear maps they went through.

    Attributes:
        outputs: With their graph.
        maps: By the names of their tensors; several for a weight that is used several times.
        edges: Where the gradient of each map's outputs is found in the graph.
        foreign: Tensors that something else than a known map reads, with the name of the reader.
    """

    outputs: Tensor
    maps: Mapping[tuple[str, ...], list[LinearMap]]
    edges: Mapping[tuple[str, ...], list[GradientEdge]]
    foreign: Mapping[str, str]

    def pairs(self, cotangent: Tensor) -> dict[tuple[str, ...], Pair]:
        """``u`` and ``v`` of every block for one direction in the outputs."""
        edges = [edge for found in self.edges.values() for edge in found]
        gradients = iter(
            torch.autograd.grad(
                self.outputs, edges, cotangent, retain_graph=True, materialize_grads=False
            )
            if edges
            else ()
        )
        result = {}
        for names, uses in self.maps.items():
            parts = [use.pair(next(gradients)) for use in uses]
            if len(parts) == 1:
                result[names] = parts[0]
            else:  # each use is a few more positions
                left, right = (torch.cat(side, dim=2) for side in zip(*parts, strict=True))
                result[names] = (left, right)
        return result


def record(
    network: Network,
    weights: Weights,
    layout: Layout,
    inputs: Inputs,
    *,
    separate: frozenset[str] = frozenset(),
) -> Recorded:
    """Runs the network and notes every use of the tensors of a layout.

    Args:
        network: The network.
        weights: All its weights.
        layout: The tensors of interest.
        inputs: Examples along the first axis.
        separate: Weights that are not to share a block with their bias.
    """
    plain = {name: tensor.detach() for name, tensor in weights.items()}
    watched = {name: plain[name] for name in layout.names}
    watch = _Watch(watched, len(inputs if isinstance(inputs, Tensor) else inputs[0]), separate)
    with torch.enable_grad(), watch:
        outputs = network.apply(plain, inputs)
    uses: dict[tuple[str, ...], list[LinearMap]] = {}
    edges: dict[tuple[str, ...], list[GradientEdge]] = {}
    for use, edge in watch.found:
        uses.setdefault(use.names, []).append(use)
        edges.setdefault(use.names, []).append(edge)
    clash = _clashing(uses)
    if clash:
        return record(network, weights, layout, inputs, separate=separate | clash)
    seen = {name for names in uses for name in names}
    unread = {name: "nothing" for name in layout.names if name not in seen}
    return Recorded(outputs, uses, edges, {**unread, **watch.foreign})


def _clashing(uses: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Weights that are used with different biases, or with and without."""
    blocks: dict[str, set[tuple[str, ...]]] = {}
    for names in uses:
        for name in names:
            blocks.setdefault(name, set()).add(names)
    return frozenset(name for name, found in blocks.items() if len(found) > 1)


class _Watch(TorchFunctionMode):
    """Lets every function pass, and notes those that read a watched tensor."""

    def __init__(self, watched: Weights, rows: int, separate: frozenset[str]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in watched.items()}
        self._rows, self._separate = rows, separate
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
            return function(*args, **given)
        reader = _READERS.get(function)
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


def _linear(
    watch: _Watch, function: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    if not watch.fits(input):
        return None
    names = watch.name_of(weight), watch.name_of(bias)
    found = maps.linear(names, input.detach(), weight, joint=watch.joint(names))
    return watch.note(function(input, weight, bias), found)


def _convolution(
    watch: _Watch,
    function: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if not watch.fits(input) or input.dim() != weight.dim():
        return None
    names = watch.name_of(weight), watch.name_of(bias)
    found = maps.convolution(
        names,
        input.detach(),
        weight,
        groups,
        joint=watch.joint(names),
        stride=stride,
        padding=padding,
        dilation=dilation,
    )
    return watch.note(function(input, weight, bias, stride, padding, dilation, groups), found)


def _transposed(
    watch: _Watch,
    function: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor | None:
    if not watch.fits(input) or input.dim() != weight.dim():
        return None
    names = watch.name_of(weight), watch.name_of(bias)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    found = maps.transposed(names, input.detach(), weight, groups, **geometry)
    outputs = function(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return watch.note(outputs, found)


def _batch_norm(
    watch: _Watch,
    function: Any,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if training:
        raise CosetError(
            "got a batch norm in training mode (or one without running statistics)",
            "needed statistics that do not depend on the other examples of the batch",
            "call module.eval(), or use track_running_stats=True",
        )
    standard = function(input, running_mean, running_var, None, None, training, momentum, eps)
    return _norm(watch, standard, weight, bias)


def _group_norm(
    watch: _Watch,
    function: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    return _norm(watch, function(input, num_groups, None, None, eps), weight, bias)


def _instance_norm(
    watch: _Watch,
    function: Any,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> Tensor | None:
    standard = function(input, running_mean, running_var, None, None, *rest, **named)
    return _norm(watch, standard, weight, bias)


def _norm(
    watch: _Watch, standard: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Scale and shift of each channel, axis 1."""
    if not watch.fits(standard):
        return None
    shape = (-1, *[1] * (standard.dim() - 2))
    outputs = standard if weight is None else standard * weight.reshape(shape)
    outputs = outputs if bias is None else outputs + bias.reshape(shape)
    names = watch.name_of(weight), watch.name_of(bias)
    found = maps.normalised(names, standard.detach(), lambda x: x.reshape(*x.shape[:2], -1))
    return watch.note(outputs, found)


def _layer_norm(
    watch: _Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
) -> Tensor | None:
    if not watch.fits(input) or input.dim() == len(normalized_shape):
        return None
    extra = () if function is functional.rms_norm else (None,)
    standard = function(input, normalized_shape, None, *extra, eps)
    outputs = standard if weight is None else standard * weight
    outputs = outputs if bias is None else outputs + bias
    axes = len(normalized_shape)
    names = watch.name_of(weight), watch.name_of(bias)

    def channel(x: Tensor) -> Tensor:  # normalised axes to the front, positions behind
        return x.flatten(x.dim() - axes).reshape(len(x), -1, x[0].numel() // _rows(x, axes)).mT

    return watch.note(outputs, maps.normalised(names, standard.detach(), channel))


def _rows(x: Tensor, axes: int) -> int:
    """Positions of one example: its entries outside the last ``axes`` axes."""
    count = 1
    for size in x.shape[1 : x.dim() - axes]:
        count *= size
    return count


def _rms_norm(
    watch: _Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    return _layer_norm(watch, function, input, normalized_shape, weight, None, eps)


def _embedding(
    watch: _Watch,
    function: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    name = watch.name_of(weight)
    if name is None or not watch.fits(input) or max_norm is not None:
        return None
    found = maps.embedding(name, input, weight, padding_idx)
    return watch.note(function(input, weight, padding_idx), found)


_READERS: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.conv_transpose1d: _transposed,
    torch.conv_transpose2d: _transposed,
    torch.conv_transpose3d: _transposed,
    functional.batch_norm: _batch_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.embedding: _embedding,
}
"""What we know of functions that read weights; any other is foreign."""
