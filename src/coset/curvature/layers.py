"""Layers that read weights, each as a list of linear maps."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coset.curvature.maps import convolution, embedding, linear, normalised, transposed
from coset.curvature.patches import channels_last
from coset.curvature.watch import Watch
from coset.errors import CosetError

_MANY = 8
"""Channels from which they are put side by side: those that a gradient goes back to, or those of
the outputs where it ends here.  Fewer do not fill a register, and are faster in planes."""


def _of_sequences(reader: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Examples may lie behind sequences: they are brought to the front, and back."""

    @wraps(reader)
    def read(watch: Watch, function: Any, input: Tensor, *args: Any, **given: Any) -> Tensor | None:
        axis = watch.axis(input)
        if axis is None or (input.is_floating_point() and axis == input.dim() - 1):
            return None  # the last axis is that of the features
        if axis == 0:
            return reader(watch, function, input, *args, **given)
        outputs = reader(watch, function, input.movedim(axis, 0), *args, **given)
        return None if outputs is None else outputs.movedim(0, axis)

    return read


@_of_sequences
def read_linear(
    watch: Watch, function: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    """A linear layer."""
    names = watch.name_of(weight), watch.name_of(bias)
    found = linear(names, input.detach(), weight, joint=watch.joint(names))
    return watch.note(function(input, weight, bias), found)


def read_convolution(
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
    """A convolution."""
    if not watch.fits(input) or input.dim() != weight.dim():
        return None
    names = watch.name_of(weight), watch.name_of(bias)
    if (input.shape[1] if input.requires_grad else len(weight)) >= _MANY:
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


def read_transposed(
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
    """A transposed convolution."""
    if not watch.fits(input) or input.dim() != weight.dim():
        return None
    names = watch.name_of(weight), watch.name_of(bias)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    found = transposed(names, input.detach(), weight, groups, **geometry)
    outputs = function(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return watch.note(outputs, found)


def read_batch_norm(
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
    """Scale and shift of a batch norm, with its running statistics."""
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
    found = normalised(names, lambda: (plain - centre) * size, _channels, joint=watch.joint(names))
    # one product forwards and one backwards, in place of five
    return watch.note(torch.addcmul(offset, input, scale), found)


def read_group_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """Scale and shift of a group norm."""
    return _norm(watch, function(input, num_groups, None, None, eps), weight, bias)


def read_instance_norm(
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
    """Scale and shift of an instance norm."""
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
    found = normalised(names, lambda: plain, _channels, joint=watch.joint(names))
    return watch.note(outputs, found)


def _channels(x: Tensor) -> Tensor:
    """Axes ``n channels positions`` where the channels are axis 1."""
    return x.reshape(*x.shape[:2], -1)


@_of_sequences
def read_layer_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
) -> Tensor | None:
    """Scale and shift of a layer norm."""
    if input.dim() == len(normalized_shape):
        return None  # the examples themselves are normalised
    extra = () if function is functional.rms_norm else (None,)
    standard = function(input, normalized_shape, None, *extra, eps)
    outputs = standard if weight is None else standard * weight
    outputs = outputs if bias is None else outputs + bias
    axes = len(normalized_shape)
    names = watch.name_of(weight), watch.name_of(bias)

    def channel(x: Tensor) -> Tensor:  # normalised axes to the front, positions behind
        return x.flatten(x.dim() - axes).reshape(len(x), -1, x[0].numel() // _rows(x, axes)).mT

    plain = standard.detach()
    found = normalised(names, lambda: plain, channel, joint=watch.joint(names))
    return watch.note(outputs, found)


def _rows(x: Tensor, axes: int) -> int:
    """Positions of one example: its entries outside the last ``axes`` axes."""
    count = 1
    for size in x.shape[1 : x.dim() - axes]:
        count *= size
    return count


def read_rms_norm(
    watch: Watch,
    function: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    """The scale of a norm by the root mean square."""
    return read_layer_norm(watch, function, input, normalized_shape, weight, None, eps)


@_of_sequences
def read_embedding(
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
    """Rows of a table."""
    name = watch.name_of(weight)
    if name is None or max_norm is not None:
        return None
    found = embedding(name, input, weight, padding_idx)
    return watch.note(function(input, weight, padding_idx), found)


def read_item(watch: Watch, function: Any, table: Tensor, index: Any) -> Tensor | None:
    """Rows of a table, looked up without a layer."""
    rows = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not rows or table.dim() != 2:
        return None
    return read_embedding(watch, functional.embedding, index, table)
