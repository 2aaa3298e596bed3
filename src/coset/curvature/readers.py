"""What we know of the functions that read weights: each as a list of linear maps."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.curvature.attention import attend
from coset.curvature.direct import meet, prelu
from coset.curvature.maps import (
    LinearMap,
    convolution,
    embedding,
    linear,
    normalised,
    transposed,
)
from coset.curvature.patches import channels_last
from coset.curvature.watch import Origin, Reader, Watch
from coset.errors import CosetError


def _of_sequences(reader: Reader) -> Reader:
    """Examples may lie along the second axis of sequences: they are turned, and turned back."""

    @wraps(reader)
    def read(watch: Watch, function: Any, input: Tensor, *args: Any, **given: Any) -> Tensor | None:
        axis = watch.axis(input)
        if axis is None:
            return None
        if axis == 0:
            return reader(watch, function, input, *args, **given)
        outputs = reader(watch, function, input.transpose(0, 1), *args, **given)
        return None if outputs is None else outputs.transpose(0, 1)

    return read


@_of_sequences
def _linear(
    watch: Watch, function: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    names = watch.name_of(weight), watch.name_of(bias)
    found = linear(names, input.detach(), weight, joint=watch.joint(names))
    return watch.note(function(input, weight, bias), found)


def _convolution(
    watch: Watch,
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
    input = channels_last(input)
    found = convolution(
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
    watch: Watch,
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
    found = transposed(names, input.detach(), weight, groups, **geometry)
    outputs = function(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return watch.note(outputs, found)


def _batch_norm(
    watch: Watch,
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
    assert running_mean is not None
    assert running_var is not None
    if not watch.fits(input):
        return None
    shape = (-1, *[1] * (input.dim() - 2))
    centre, size = running_mean.reshape(shape), torch.rsqrt(running_var + eps).reshape(shape)
    scale = size if weight is None else size * weight.reshape(shape)
    offset = -centre * scale if bias is None else bias.reshape(shape) - centre * scale
    plain = input.detach()
    names = watch.name_of(weight), watch.name_of(bias)
    found = normalised(names, lambda: (plain - centre) * size, _channels)
    # one product forwards and one backwards, in place of five
    return watch.note(torch.addcmul(offset, input, scale), found)


def _group_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    return _norm(watch, function(input, num_groups, None, None, eps), weight, bias)


def _instance_norm(
    watch: Watch,
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
    watch: Watch, standard: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Scale and shift of each channel, axis 1."""
    if not watch.fits(standard):
        return None
    shape = (-1, *[1] * (standard.dim() - 2))
    outputs = standard if weight is None else standard * weight.reshape(shape)
    outputs = outputs if bias is None else outputs + bias.reshape(shape)
    names = watch.name_of(weight), watch.name_of(bias)
    plain = standard.detach()
    return watch.note(outputs, normalised(names, lambda: plain, _channels))


def _channels(x: Tensor) -> Tensor:
    """Axes ``n channels positions`` where the channels are axis 1."""
    return x.reshape(*x.shape[:2], -1)


@_of_sequences
def _layer_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
) -> Tensor | None:
    if input.dim() == len(normalized_shape):
        return None
    extra = () if function is functional.rms_norm else (None,)
    standard = function(input, normalized_shape, None, *extra, eps)
    outputs = standard if weight is None else standard * weight
    outputs = outputs if bias is None else outputs + bias
    axes = len(normalized_shape)
    names = watch.name_of(weight), watch.name_of(bias)

    def channel(x: Tensor) -> Tensor:  # normalised axes to the front, positions behind
        return x.flatten(x.dim() - axes).reshape(len(x), -1, x[0].numel() // _rows(x, axes)).mT

    plain = standard.detach()
    return watch.note(outputs, normalised(names, lambda: plain, channel))


def _rows(x: Tensor, axes: int) -> int:
    """Positions of one example: its entries outside the last ``axes`` axes."""
    count = 1
    for size in x.shape[1 : x.dim() - axes]:
        count *= size
    return count


def _rms_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    return _layer_norm(watch, function, input, normalized_shape, weight, None, eps)


@_of_sequences
def _embedding(
    watch: Watch,
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
    if name is None or max_norm is not None:
        return None
    found = embedding(name, input, weight, padding_idx)
    return watch.note(function(input, weight, padding_idx), found)


def _item(watch: Watch, function: Any, table: Tensor, index: Any) -> Tensor | None:
    """Rows of a table, looked up without a layer."""
    rows = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not rows or table.dim() != 2:
        return None
    return _embedding(watch, functional.embedding, index, table)


def _attention(watch: Watch, function: Any, *args: Any, **named: Any) -> Any:
    """Attention as its projections; keys and values that are added to the data's are foreign."""
    given = inspect.signature(function).bind(*args, **named)
    given.apply_defaults()
    a = given.arguments
    extra = ("bias_k", "bias_v", "static_k", "static_v")
    random = a["training"] and a["dropout_p"] > 0
    odd = a["query"].dim() != 3 or random or a["add_zero_attn"]
    parts = None if odd or any(a[k] is not None for k in extra) else _projected(watch, a)
    if parts is None:
        return None
    found = attend(
        parts,
        a["num_heads"],
        lambda rows: _linear(
            watch, functional.linear, rows, a["out_proj_weight"], a["out_proj_bias"]
        ),
        (a["attn_mask"], a["key_padding_mask"]),
    )
    if found is None:
        return None
    outputs, shares = found
    mean = shares.mean(1) if a["average_attn_weights"] else shares
    return outputs.transpose(0, 1), mean if a["need_weights"] else None


def _projected(watch: Watch, a: Mapping[str, Any]) -> Sequence[Tensor] | None:
    """Queries, keys and values, by one product where they are made from the same rows."""
    rows = [a[name].transpose(0, 1) for name in ("query", "key", "value")]
    weight, bias = a["in_proj_weight"], a["in_proj_bias"]
    if a["query"] is a["key"] and a["key"] is a["value"] and weight is not None:
        packed = _linear(watch, functional.linear, rows[0], weight, bias)
        return None if packed is None else packed.chunk(3, dim=-1)
    found: list[Tensor] = []
    for number, (name, part) in enumerate(zip("qkv", rows, strict=True)):
        if weight is None:
            own = _linear(watch, functional.linear, part, a[f"{name}_proj_weight"], None)
            if own is not None and bias is not None:
                piece = bias.chunk(3)[number]
                own = meet(watch, torch.add, own, _piece(watch, bias, piece, number))
        else:
            own = _third(watch, part, (weight, bias), number)
        if own is None:
            return None
        found.append(own)
    return found


def _piece(watch: Watch, bias: Tensor, piece: Tensor, number: int) -> Tensor:
    """A third of a bias, as a tensor of known origin."""
    name = watch.name_of(bias)
    if name is None:
        return piece
    return watch.remember(piece, Origin(name, lambda whole: whole.chunk(3)[number]))


def _third(
    watch: Watch, input: Tensor, layer: tuple[Tensor, Tensor | None], number: int
) -> Tensor | None:
    """A third of the outputs of a linear layer: the gradient of the others is zero."""
    if not watch.fits(input):
        return None
    weight, bias = layer
    width = len(weight) // 3
    names = watch.name_of(weight), watch.name_of(bias)
    beside = (number * width, (2 - number) * width)

    def among_zeros(use: LinearMap) -> LinearMap:
        return replace(use, left=lambda gradient: use.left(functional.pad(gradient, beside)))

    found = linear(names, input.detach(), weight, joint=watch.joint(names))
    own = bias if bias is None else bias.chunk(3)[number]
    outputs = functional.linear(input, weight.chunk(3)[number], own)
    return watch.note(outputs, [among_zeros(use) for use in found])


READERS: Mapping[Any, Reader] = {
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
    Tensor.__getitem__: _item,
    torch.prelu: prelu,
    functional.multi_head_attention_forward: _attention,
}
"""What we know of functions that read weights; any other is foreign."""
