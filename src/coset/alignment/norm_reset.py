"""Puts activation statistics right after networks were mixed.

The mean of two units that agree with correlation ``ρ`` has only ``(1 + ρ)/2`` of their variance,
layer after layer.  Batch norms are put right by measuring their statistics again; networks without
norms by rescaling each channel to the statistics it has in the networks that were mixed (REPAIR,
Jordan et al. 2023).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.alignment.checks import answer
from coset.bayes.batches import Data, as_batches, in_equal_parts
from coset.errors import CosetError
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import parts_of, take_rows
from coset.weights.network import assign, weights_of

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SMALLEST = 1e-12


def reset_norm(module: nn.Module, weights: Weights, data: Data) -> Weights:
    """The weights with batch-norm statistics measured on data: plain means over equal batches.

    Args:
        module: The network; it is not changed.
        weights: Its weights.
        data: What to measure on, best the training data.

    Raises:
        CosetError: If the network has no batch norm.
    """
    working = assign(copy.deepcopy(module), weights).eval().requires_grad_(False)
    norms = norms_of(working)
    if not norms:
        raise CosetError(
            "got reset_norm for a network without batch norm",
            "needed running statistics to measure again",
            "use repair=True for networks without norms",
        )
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
        norm.train()
    with torch.no_grad():
        for inputs, _ in in_equal_parts(as_batches(data, module=module)):
            _run(working, inputs)
    return weights_of(working)


def norms_of(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms that keep statistics."""
    found = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [norm for norm in found if norm.track_running_stats]


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of the channels of each layer."""

    mean: dict[str, Float[Tensor, " h"]]
    deviation: dict[str, Float[Tensor, " h"]]


def repair(module: nn.Module, weights: Weights, ends: Sequence[Weights], data: Data) -> Weights:
    """The weights, with every channel rescaled to the statistics it has in ``ends``.

    The target mean and standard deviation of a channel are the averages of those in ``ends``.
    Layers are taken in order, so that each sees inputs that were put right before; the last layer,
    layers without bias and layers that are used more than once are left alone.

    Args:
        module: The network; it is not changed.
        weights: Weights that were mixed from ``ends``.
        ends: The networks that were mixed.
        data: What to measure on.
    """
    working = copy.deepcopy(module).eval().requires_grad_(False)
    names = _repairable(working, data)
    measured = [channel_moments(working, end, names, data) for end in ends]
    target = Moments(
        {n: torch.stack([m.mean[n] for m in measured]).mean(0) for n in names},
        {n: torch.stack([m.deviation[n] for m in measured]).mean(0) for n in names},
    )
    found = channel_moments(working, weights, names, data, target)
    repaired = dict(weights)
    for name in names:
        ratio = target.deviation[name] / found.deviation[name].clamp_min(_SMALLEST)
        ratio = torch.where(found.deviation[name] > _SMALLEST, ratio, torch.ones_like(ratio))
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        shape = (-1, *[1] * (weight.dim() - 1))
        repaired[f"{name}.weight"] = weight * ratio.view(shape)
        repaired[f"{name}.bias"] = (bias - found.mean[name]) * ratio + target.mean[name]
    return repaired


def channel_moments(
    module: nn.Module,
    weights: Weights,
    names: Sequence[str],
    data: Data,
    target: Moments | None = None,
) -> Moments:
    """Moments of the named layers' outputs; with a target, later layers see outputs put right."""
    assign(module, weights)
    means: dict[str, list[Tensor]] = {name: [] for name in names}
    deviations: dict[str, list[Tensor]] = {name: [] for name in names}

    def measure(name: str, layer: nn.Module, outputs: Tensor) -> Tensor | None:
        axis = outputs.dim() - 1 if isinstance(layer, nn.Linear) else 1
        flat = outputs.movedim(axis, 0).flatten(1)
        deviation, mean = torch.std_mean(flat, 1, correction=0)
        means[name].append(mean)
        deviations[name].append(deviation)
        if target is None:
            return None
        shape = [-1 if k == axis else 1 for k in range(outputs.dim())]
        ratio = target.deviation[name] / deviation.clamp_min(_SMALLEST)
        ratio = torch.where(deviation > _SMALLEST, ratio, torch.ones_like(ratio))
        return (outputs - mean.view(shape)) * ratio.view(shape) + target.mean[name].view(shape)

    with _hooks(module, names, measure), torch.no_grad():
        for inputs, _ in in_equal_parts(as_batches(data, batch_size=1000, module=module)):
            _run(module, inputs)
    every = {name: (torch.stack(means[name]), torch.stack(deviations[name])) for name in names}
    return Moments(
        {name: mean.mean(0) for name, (mean, _) in every.items()},
        {  # within batches, and between them
            name: (spread.square().mean(0) + mean.var(0, correction=0)).sqrt()
            for name, (mean, spread) in every.items()
        },
    )


def _repairable(module: nn.Module, data: Data) -> list[str]:
    """Layers with a bias that run exactly once, in the order they run, without the last."""
    layers = [n for n, child in module.named_modules() if isinstance(child, _LAYERS)]
    seen: list[str] = []
    with _hooks(module, layers, lambda name, _layer, _outputs: seen.append(name)), torch.no_grad():
        _run(module, take_rows(next(iter(as_batches(data, module=module)))[0], slice(2)))
    once = [name for name in seen[:-1] if seen.count(name) == 1]
    return [name for name in once if module.get_submodule(name).bias is not None]


def _run(module: nn.Module, inputs: Inputs) -> Tensor:
    found: Tensor = answer(lambda given: module(*parts_of(given)), inputs, module.parameters())
    return found


@contextmanager
def _hooks(
    module: nn.Module,
    names: Sequence[str],
    call: Callable[[str, nn.Module, Tensor], Tensor | None],
) -> Iterator[None]:
    """Calls back with the output of each named layer; an answer replaces the output."""
    handles = []
    for name in names:

        def hook(layer: nn.Module, _inputs: object, outputs: Tensor, name: str = name) -> object:
            return call(name, layer, outputs)

        handles.append(module.get_submodule(name).register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
