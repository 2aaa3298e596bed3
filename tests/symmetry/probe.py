"""Numerical probes: how many scalings a network truly has, and whether a relabelling holds.

They know nothing of the engine. A monomial scaling multiplies every weight entry by exp(t * U e),
where the columns of U are indicators of indices of axes (and of pairs of axes for tensors of three
or more) and e are exponents that do not depend on the weights. The function is kept, to first order
in t and so for all t, exactly if J(theta) diag(theta) U e = 0 for all weights theta and inputs. The
dimension of the common null space over a dozen random weights is the true number of continuous
monomial scalings.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Example = Tensor | tuple[Tensor, ...]
Weights = dict[str, Tensor]
EPSILON_NAMES = ("eps", "epsilon", "variance_epsilon", "layer_norm_epsilon")


class Differentiable(TorchFunctionMode):
    """Float64 throughout, and batch norm as a formula that can be differentiated."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.float:
            return args[0].double()
        if function is nn.functional.batch_norm:
            return normalised(*args, **(kwargs or {}))
        swap = {torch.float32: torch.float64}.get
        args = tuple(swap(a, a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {
            k: swap(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()
        }
        return function(*args, **kwargs)


def normalised(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in eval mode; the signature is that of torch."""
    if training:
        raise ValueError("batch norm got training=True; the probe needs a module in eval mode")
    mean, variance, weight, bias = (
        t if t is None else t.view(-1, *[1] * (x.ndim - 2)) for t in (mean, variance, weight, bias)
    )
    x = (x - mean) * torch.rsqrt(variance + eps)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def continuous_scalings(group: Any) -> int:
    """Number of continuous scalings of a group: size times copies of every factor but signs.

    The copies of a factor are the sizes of the digits whose index chooses the scale.
    """
    total = 0
    for factor in group.scalings:
        if factor.domain != "sign":
            site = factor.sites[0]
            total += factor.size * math.prod(site.view[digit] for digit in site.parents)
    return total


def true_continuous_scalings(
    module: nn.Module, example: Example, *, draws: int = 12, seed: int = 0, tolerance: float = 1e-9
) -> int:
    """Dimension of the common null space of J(theta) diag(theta) U over random weights and inputs.

    Args:
        module: A small network (a few thousand weights), in eval mode.
        example: Its inputs; values are drawn anew, integers below the largest one given.
        draws: Random weights at the least; more until the number settles.
        seed: Of weights and inputs.
        tolerance: Singular values below this part of the largest are zeros.
    """
    module = coarse_copy(module)
    generator = torch.Generator().manual_seed(seed)
    names = names_of(module)
    sensitivities: list[Tensor] = []
    found, wanted = -1, draws
    while True:
        while len(sensitivities) < wanted:
            scale = (0.5, 1.0, 2.0)[len(sensitivities) % 3]
            weights = random_weights(module, scale, generator=generator)
            inputs = random_like(example, generator=generator)
            block = scale_jacobian(module, names, weights, inputs)
            sensitivities.append(block / block.abs().max().clamp_min(1e-30))
        matrix = torch.cat(sensitivities)
        if matrix.shape[0] >= 1.5 * matrix.shape[1]:
            before, found = found, nullity(matrix, tolerance)
            if found in (0, before):
                return found
        # Saturated draws tell little: go on until half as many more change nothing.
        wanted = max(wanted + wanted // 2, 3 * matrix.shape[1] // (2 * block.shape[0]))


def nullity(matrix: Tensor, tolerance: float) -> int:
    """Dimension of the null space, after columns were brought to unit length."""
    norms = matrix.norm(dim=0)
    alive = norms > tolerance * norms.max()
    values = torch.linalg.svdvals(matrix[:, alive] / norms[alive])
    return int((~alive).sum() + (values <= tolerance * values.max()).sum())


def scale_jacobian(
    module: nn.Module, names: Sequence[str], weights: Weights, inputs: tuple[Tensor, ...]
) -> Tensor:
    """J(theta) diag(theta) U, outputs by exponents.

    A running variance plus its epsilon takes twice the exponent of its mean: the trade of a norm's
    weight against its variance exists in eval mode only and does not count.
    """

    def outputs(moved: Weights) -> Tensor:
        result = functional_call(module, {**weights, **moved}, inputs)
        flat = result if isinstance(result, tuple) else (result,)
        return torch.cat([part.flatten() for part in flat])

    with Differentiable(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        jacobian = jacrev(outputs)({name: weights[name] for name in names})
    columns = []
    for name in names:
        if name.endswith("running_var"):
            continue
        scaled = jacobian[name] * weights[name]
        if name.endswith("running_mean"):
            partner = name.removesuffix("mean") + "var"
            shift = module.get_submodule(name.rpartition(".")[0]).eps
            scaled = scaled + 2 * jacobian[partner] * (weights[partner] + shift)
        columns.append(along_axes(scaled))
    return torch.cat(columns, 1)


def along_axes(sensitivity: Tensor) -> Tensor:
    """Sum the trailing axes of `[k, *shape]` against independent indicators.

    The whole tensor, every index but the first of every axis, and for three or more axes all pairs
    of those: a basis of the span of indicators of single axes and pairs.

    >>> along_axes(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[10.,  7.,  6.]])
    """
    axes = range(1, sensitivity.ndim)
    chosen: list[tuple[int, ...]] = [(), *((a,) for a in axes)]
    if sensitivity.ndim > 3:
        chosen += list(combinations(axes, 2))
    blocks = []
    for kept in chosen:
        dropped = [axis for axis in axes if axis not in kept]
        block = sensitivity.sum(dropped) if dropped else sensitivity
        for axis in range(1, block.ndim):
            block = block.narrow(axis, 1, block.shape[axis] - 1)
        blocks.append(block.flatten(1) if block.ndim > 1 else block[:, None])
    return torch.cat(blocks, 1)


def change_error(
    module: nn.Module, example: Example, change: Callable[[Weights], Weights], *, seed: int = 0
) -> float:
    """Largest relative change of the outputs, at random weights, when the weights are changed.

    Args:
        module: The network.
        example: Its inputs.
        change: Takes float64 weights and gives those that differ.
        seed: Of weights and inputs.
    """
    module = coarse_copy(module)
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(module, 1.0, generator=generator)
    inputs = random_like(example, generator=generator)
    with Differentiable(), torch.no_grad():
        before, after = (
            functional_call(module, w, inputs) for w in (weights, weights | change(weights))
        )
    pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
    return max(float(((a - b).abs() / (1 + a.abs())).max()) for a, b in pairs)


def relabelling_error(
    module: nn.Module,
    example: Example,
    relabelling: Mapping[tuple[str, int], Sequence[int]],
    *,
    seed: int = 0,
) -> float:
    """Largest change of the outputs when axes are re-indexed: new[i] = old[index[i]].

    Args:
        module: The network.
        example: Its inputs.
        relabelling: The index vector of each (tensor, axis).
        seed: Of weights and inputs.
    """

    def change(weights: Weights) -> Weights:
        moved: Weights = {}
        for (name, axis), index in relabelling.items():
            tensor = moved.get(name, weights[name])
            moved[name] = tensor.index_select(axis, torch.as_tensor(index))
        return moved

    return change_error(module, example, change, seed=seed)


def scaling_error(
    module: nn.Module,
    example: Example,
    scales: Mapping[tuple[str, int], Tensor],
    *,
    seed: int = 0,
) -> float:
    """Largest change of the outputs when each index of an axis is multiplied by its factor."""

    def change(weights: Weights) -> Weights:
        moved: Weights = {}
        for (name, axis), scale in scales.items():
            tensor = moved.get(name, weights[name])
            moved[name] = tensor * scale.view(-1, *[1] * (tensor.ndim - axis - 1))
        return moved

    return change_error(module, example, change, seed=seed)


def swap_error(
    module: nn.Module,
    example: Example,
    axes: Iterable[tuple[str, int]],
    first: int = 0,
    second: int = 1,
    *,
    seed: int = 0,
) -> float:
    """Largest change of the outputs when two indices are swapped on all the given axes."""
    weights = module.state_dict()
    relabelling = {}
    for name, axis in axes:
        index = list(range(weights[name].shape[axis]))
        index[first], index[second] = index[second], index[first]
        relabelling[name, axis] = index
    return relabelling_error(module, example, relabelling, seed=seed)


def names_of(module: nn.Module) -> tuple[str, ...]:
    """Parameters and saved floating buffers, shared ones once."""
    saved = module.state_dict(keep_vars=True)
    named = [*module.named_parameters(), *module.named_buffers()]
    return tuple(n for n, t in named if n in saved and t.is_floating_point())


def coarse_copy(module: nn.Module) -> nn.Module:
    """A float64 copy whose norms have a large epsilon.

    Which symmetries epsilon breaks does not depend on its value, but the probe must see it: at 1e-5
    two norms in a row leave a sensitivity of 1e-10.
    """
    module = copy.deepcopy(module).double().eval()
    for part in module.modules():
        for name in EPSILON_NAMES:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.3)
    return module


def random_weights(module: nn.Module, scale: float, *, generator: torch.Generator) -> Weights:
    """Weights in general position: matrices by fan-in, vectors larger, variances positive."""
    current = dict([*module.named_parameters(), *module.named_buffers()])
    weights = {}
    for name in names_of(module):
        shape = current[name].shape
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        fan_in = math.prod(shape[1:])
        if name.endswith("running_var"):
            weights[name] = 0.5 + noise.square()
        else:
            weights[name] = noise * scale * (1.5 if fan_in == 1 else fan_in**-0.5)
    return weights


def random_like(example: Example, *, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Inputs of the same shapes: normal numbers, or integers up to the largest one given."""
    parts = example if isinstance(example, tuple) else (example,)
    return tuple(
        torch.randn(part.shape, dtype=torch.float64, generator=generator)
        if part.is_floating_point()
        else torch.randint(int(part.max()) + 1, part.shape, generator=generator)
        for part in parts
    )
