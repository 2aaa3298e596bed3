"""Fast layers for stacks: what ``vmap`` should make of linear layers, convolutions, batch norms.

The rules that come with ``vmap`` are right but leave work on the table: biases and scales are
applied in passes of their own, gradients of weights come out transposed, and the layout of grouped
convolutions is lost between layers.  These rules compute the same numbers without that.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coset.weights.calls import Arguments, Calls, Named, TorchFunction


class StackedLayers(Calls):
    """Sends the layers of this file inside ``vmap`` through their rules."""

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Replaces these layers and lets every other function pass."""
        if function is functional.linear:
            return _linear(*args, **given)
        if function is torch.conv2d and not isinstance(_padding(*args, **given), str):
            return _convolution(*args, **given)
        if function is functional.batch_norm:
            return _batch_norm(*args, **given)
        return function(*args, **given)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _Linear.apply(input, weight, bias)


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    if input.dim() != 4:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return _Convolution.apply(input, weight, bias, stride, padding, dilation, groups)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not training or (weight is None) != (bias is None):
        return functional.batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        )
    return _BatchNorm.apply(input, running_mean, running_var, weight, bias, momentum, eps)


def _padding(*args: Any, **kwargs: Any) -> Any:
    return args[4] if len(args) > 4 else kwargs.get("padding", 0)


class _Linear(torch.autograd.Function):
    """A linear layer with a rule for stacks."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, int]:
        members = info.batch_size
        inputs, weight = _front(inputs, in_dims[0], members), _front(weight, in_dims[1], members)
        if bias is not None:
            bias = _front(bias, in_dims[2], members)
        rows = inputs.reshape(members, -1, inputs.shape[-1])
        outputs: Tensor = StackedLinear.apply(rows, weight, bias)
        return outputs.view(*inputs.shape[:-1], weight.shape[1]), 0


class StackedLinear(torch.autograd.Function):
    """``outputs = inputs weightᵀ + bias`` for each member of a stack.

    The gradient of the weight is computed in the layout of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Float[Tensor, "m n h"],
        weight: Float[Tensor, "m c h"],
        bias: Float[Tensor, "m c"] | None,
    ) -> Float[Tensor, "m n c"]:
        """The outputs of all members."""
        ctx.save_for_backward(inputs, weight)
        ctx.biased = bias is not None
        if bias is None:
            return torch.bmm(inputs, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of all members."""
        (outputs,) = gradients
        inputs, weight = ctx.saved_tensors
        return (
            torch.bmm(outputs, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(outputs.mT, inputs) if ctx.needs_input_grad[1] else None,
            outputs.sum(1) if ctx.biased and ctx.needs_input_grad[2] else None,
        )


class _Convolution(torch.autograd.Function):
    """A convolution with a rule for stacks: members are groups, channels are last in memory."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *settings: Any,
    ) -> tuple[Tensor, int]:
        stride, padding, dilation, groups = settings
        members = info.batch_size
        inputs = _front(inputs, in_dims[0], members).transpose(0, 1).flatten(1, 2)
        weight = _front(weight, in_dims[1], members).flatten(0, 1)
        if bias is not None:
            bias = _front(bias, in_dims[2], members).flatten()
        outputs = torch.conv2d(
            inputs.contiguous(memory_format=torch.channels_last),
            weight.contiguous(memory_format=torch.channels_last),
            bias,
            stride,
            padding,
            dilation,
            members * groups,
        )
        return outputs.unflatten(1, (members, -1)), 1


class _BatchNorm(torch.autograd.Function):
    """A batch norm in training with a rule for stacks: the channels of all members in one norm."""

    @staticmethod
    def forward(inputs: Tensor, *arguments: Any) -> Tensor:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise NotImplementedError("only for stacks")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, *arguments: Any
    ) -> tuple[Tensor, int]:
        *vectors, momentum, eps = arguments
        members = info.batch_size
        merged = _front(inputs, in_dims[0], members).transpose(0, 1).flatten(1, 2)
        # views, not copies, of the statistics: they are updated in place
        mean, variance, weight, bias = (
            None if vector is None else _front(vector, dim, members).view(-1)
            for vector, dim in zip(vectors, in_dims[1:5], strict=True)
        )
        outputs = functional.batch_norm(
            merged, mean, variance, weight, bias, training=True, momentum=momentum, eps=eps
        )
        return outputs.unflatten(1, (members, -1)), 1


def _front(tensor: Tensor, dim: int | None, members: int) -> Tensor:
    """The member axis first; what all members share is repeated without a copy."""
    return tensor.expand(members, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
