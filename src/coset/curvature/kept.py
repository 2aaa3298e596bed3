"""A network's run on some inputs, kept: products with its Jacobian without another forward pass.

``u ↦ Jᵀ u`` is a backward pass and linear in ``u``, so its own backward pass is ``v ↦ J v``.  For
convolutions and for norms with fixed statistics that second pass is written out here: what torch
derives for them (transposed convolutions, a dozen passes through a norm) is three times the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from coset.curvature.patches import channels_last, per_axis
from coset.curvature.plain_attention import PlainAttention
from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Calls, Named, TorchFunction
from coset.weights.inputs import map_parts
from coset.weights.layout import Layout
from coset.weights.network import Network
from coset.weights.uses import view_or_copy


@dataclass(frozen=True)
class KeptRun:
    """One run of a network, with the graphs of its gradient.

    Attributes:
        outputs: With their graph.
        direction: Where the gradient is taken, a leaf.
        gradients: Of each tensor along that direction, with their graph; ``None`` if unused.
        leaves: The weights.
        layout: How they are flattened.
    """

    outputs: Tensor
    direction: Tensor
    gradients: Sequence[Tensor | None]
    leaves: Sequence[Tensor]
    layout: Layout

    @property
    def rows(self) -> int:
        """How many inputs."""
        return len(self.outputs)

    def push(self, directions: Float[Tensor, "k p"]) -> Float[Tensor, "k n ..."]:
        """``J v`` for each direction in the weights."""
        return torch.stack([self._push(direction) for direction in directions])

    def _push(self, direction: Float[Tensor, " p"]) -> Tensor:
        tangents = self.layout.unflatten(direction)
        used = [
            (gradient, channels_last(tangents[name]))
            for name, gradient in zip(self.layout.names, self.gradients, strict=True)
            if gradient is not None
        ]
        gradients, along = zip(*used, strict=True)
        return torch.autograd.grad(gradients, self.direction, along, retain_graph=True)[0]

    def pull(self, cotangents: Float[Tensor, "k n ..."]) -> Float[Tensor, "k p"]:
        """``Jᵀ u`` for each direction in the outputs."""
        return torch.stack([self._pull(cotangent) for cotangent in cotangents])

    def _pull(self, cotangent: Tensor) -> Float[Tensor, " p"]:
        found = torch.autograd.grad(
            self.outputs,
            self.leaves,
            cotangent.reshape(self.outputs.shape),
            retain_graph=True,
            materialize_grads=True,
            allow_unused=True,
        )
        return torch.cat([gradient.flatten() for gradient in found])


def keep(network: Network, weights: Weights, layout: Layout, inputs: Inputs) -> KeptRun:
    """Runs a network and keeps what products with its Jacobian need.

    >>> from coset.weights.network import functionalise
    >>> network = functionalise(torch.nn.Linear(2, 1, bias=False))
    >>> run = keep(network, network.weights, network.layout, torch.tensor([[3.0, 4.0]]))
    >>> run.push(torch.tensor([[1.0, 10.0]])), run.pull(torch.ones(1, 1, 1))
    (tensor([[[43.]]]), tensor([[3., 4.]]))
    """
    leaves = {
        name: channels_last(tensor.detach()).requires_grad_()
        for name, tensor in layout.restrict(weights).items()
    }
    ordered = map_parts(channels_last, inputs)
    with torch.enable_grad(), PlainAttention():
        with _Quick():
            outputs = network.apply({**weights, **leaves}, ordered)
        direction = torch.zeros_like(outputs).requires_grad_()
        gradients = torch.autograd.grad(
            outputs, list(leaves.values()), direction, create_graph=True, allow_unused=True
        )
    return KeptRun(outputs, direction, gradients, tuple(leaves.values()), layout)


class _Convolution(Function):
    """A convolution whose gradient is :class:`_ConvolutionGradient`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(inputs, weight)
        return torch.convolution(inputs, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wanted = tuple(ctx.needs_input_grad[:3])
        return *_ConvolutionGradient.apply(gradient, *ctx.saved_tensors, ctx.how, wanted), None


class _ConvolutionGradient(Function):
    """Linear in the gradient of the outputs, which is all that is differentiated."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, inputs: Tensor, weight: Tensor, how: Any, wanted: Any
    ) -> Any:
        ctx.how = how
        ctx.save_for_backward(inputs, weight)
        return torch.ops.aten.convolution_backward(
            gradient, inputs, weight, [len(weight)], *how, list(wanted)
        )

    @staticmethod
    def backward(ctx: Any, *changes: Any) -> Any:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = changes
        total = torch.convolution(inputs, channels_last(of_weight), of_bias, *ctx.how)
        if of_inputs is not None:
            total += torch.convolution(of_inputs, weight, None, *ctx.how)
        return total, None, None, None, None


class _Affine(Function):
    """``y = s x + t`` for each channel, axis 1, whose gradient is :class:`_AffineGradient`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, scale)
        return torch.addcmul(offset, inputs, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _AffineGradient.apply(gradient, *ctx.saved_tensors)


class _AffineGradient(Function):
    """Linear in the gradient of the outputs, which is all that is differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, inputs: Tensor, scale: Tensor) -> Any:
        ctx.save_for_backward(inputs, scale)
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        product = gradient * inputs
        return gradient * scale, product.sum(axes, keepdim=True), gradient.sum(axes, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> Any:
        inputs, scale = ctx.saved_tensors
        of_inputs, of_scale, of_offset = changes
        moved = torch.addcmul(of_offset, inputs, of_scale)
        return torch.addcmul(moved, of_inputs, scale), None, None


class _Quick(Calls):
    """Puts the functions above in place of torch's own."""

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function, or what stands for it."""
        quick = _QUICK.get(function)
        found = None if quick is None else quick(*args, **given)
        return view_or_copy(function, args, given) if found is None else found


def _convolution(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    axes = weight.dim() - 2
    if isinstance(padding, str) or inputs.dim() != weight.dim() or not weight.requires_grad:
        return None
    sizes = [list(per_axis(value, axes)) for value in (stride, padding, dilation)]
    found: Tensor = _Convolution.apply(inputs, weight, bias, (*sizes, False, [0] * axes, groups))
    return found


def _batch_norm(
    inputs: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return None
    shape = (1, -1, *[1] * (inputs.dim() - 2))
    scale = weight * torch.rsqrt(running_var + eps)
    offset = bias - running_mean * scale
    found: Tensor = _Affine.apply(inputs, scale.reshape(shape), offset.reshape(shape))
    return found


_QUICK: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    functional.batch_norm: _batch_norm,
}
"""What is written out, and how it is called; ``None`` comes back where it does not apply."""
