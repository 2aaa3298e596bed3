"""Masses of trained networks, along training, and what moves them along their scalings."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from coset.errors import CosetError
from coset.models import convnet
from coset.studies.cells.data import pictures
from coset.studies.cells.networks import along_training, module_of, seeded, trained
from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.mass import mass_profile, minimise_mass
from coset.vocabulary import Weights
from coset.weights.network import weights_of

_SHOWN = 1000
"""Networks kept for the figures."""


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """One part of the study."""
    if parameters["part"] == "profile":
        return _profile(parameters, seed, folder)
    part = _training if parameters["part"] == "training" else _scalings
    return part(parameters, seed)


def _profile(parameters: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    data, module = pictures(parameters), module_of(parameters)
    stack = trained(parameters, seed=seed, folder=folder)
    group = discover(module, data.test[0][:1])
    profile = mass_profile(group, stack)
    mass, minimum, excess = profile.mass, profile.minimum, profile.excess
    first = {name: tensor[0].double() for name, tensor in stack.items()}
    generator = seeded(seed, "rescaling")
    moved = [
        minimise_mass(group, group.act(_scales_only(group.sample(generator=generator)), first))
        for _ in range(2)
    ]
    size = math.sqrt(float(moved[0].mass))
    apart = max(
        float((moved[0].weights[name] - moved[1].weights[name]).abs().max()) for name in first
    )
    return {
        "mass": mass[:_SHOWN].tolist(),
        "minimum": minimum[:_SHOWN].tolist(),
        "excess": excess[:_SHOWN].tolist(),
        "networks": len(mass),
        "excess_mean": float(excess.mean()),
        "excess_deviation": float(excess.std()),
        "excess_least": float(excess.min()),
        "excess_most": float(excess.max()),
        "mass_correlation": float(torch.corrcoef(torch.stack([mass, minimum]))[0, 1]),
        "batch_norm_refused": _batch_norm_is_refused(),
        "control_meeting": apart / size,
        "control_again": float(minimise_mass(group, moved[0].weights).excess),
    }


def _scales_only(element: Any) -> Any:
    """An element without its permutations."""
    order = {
        name: torch.arange(table.shape[-1]).expand_as(table)
        for name, table in element.permutations.items()
    }
    return replace(element, permutations=order)


def _batch_norm_is_refused() -> int:
    """Whether the mass of a network with batch norm, which has no minimum, is refused."""
    net = convnet(widths=(4,), normalisation="batch")
    try:
        minimise_mass(discover(net, torch.zeros(2, 1, 8, 8)), weights_of(net))
    except CosetError:
        return 1
    return 0


def _training(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    data, module = pictures(parameters), module_of(parameters)
    group = discover(module, data.test[0][:1])
    steps = math.ceil(len(data.train[0]) / int(parameters["batch"]))
    rate = float(parameters["rate"])
    values: dict[str, Any] = {}
    for number, decay in enumerate(parameters["decays"]):
        checks, stacks = along_training(parameters, seed=seed, decay=decay)
        excess = [float(mass_profile(group, stack).excess.mean()) for stack in stacks]
        start = _imbalance(stacks[0])
        left = [float((_imbalance(s) * start).sum() / start.square().sum()) for s in stacks]
        values["checks"] = checks
        values[f"excess_{decay:g}"] = excess
        values[f"imbalance_{decay:g}"] = left
        values[f"expected_{decay:g}"] = [
            math.exp(-2 * decay * rate * steps * epoch) for epoch in checks
        ]
        if number == 0:
            values["imbalance_surviving"] = left[-1]
            values["imbalance_expected"] = values[f"expected_{decay:g}"][-1]
            values |= _forces(parameters, stacks[-1], float(decay))
    return values


_WAY = torch.linspace(0, 1.25, 26, dtype=torch.float64)
"""Points on the way from a network to its smallest copy, and beyond it."""


def _scalings(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Pull and noise along the scalings at checks of a training, and two ways to one minimum."""
    checks, stacks = along_training(parameters, seed=seed)
    forces = [_forces(parameters, stack, float(parameters["decay"])) for stack in stacks]
    group = discover(module_of(parameters), pictures(parameters).test[0][:1])
    trained = {name: tensor[0].double() for name, tensor in stacks[-1].items()}
    generator = seeded(seed, "ways")
    scrambled = [
        group.act(_scales_only(group.sample(generator=generator)), trained) for _ in range(2)
    ]
    starts = {"trained": trained, "first": scrambled[0], "second": scrambled[1]}
    ways = {name: _way_down(group, start) for name, start in starts.items()}
    return {
        "checks": checks,
        "along_noise": [force["noise"] for force in forces],
        "along_pull": [force["pull"] for force in forces],
        "way": _WAY.tolist(),
        **{f"way_{name}": way for name, way in ways.items()},
        "control_along": max(force["control_along"] for force in forces),
    }


def _way_down(group: SymmetryGroup, start: Weights) -> list[float]:
    """The mass on the straight way, in logarithms of scales, to the smallest copy; that is 1."""
    found = minimise_mass(group, start)
    masses = []
    for t in _WAY.tolist():
        scales = {name: table.pow(t) for name, table in found.element.scales.items()}
        moved = group.act(replace(found.element, scales=scales), start)
        masses.append(float(minimise_mass(group, moved).initial_mass / found.mass))
    return masses


def _imbalance(stack: Weights) -> Float[Tensor, "m h"]:
    """Squared norm of incoming minus that of outgoing weights of each unit of the last layer."""
    incoming = stack["linear1.weight"].square().sum(-1) + stack["linear1.bias"].square()
    return (incoming - stack["linear2.weight"].square().sum(-2)).double()


def _forces(parameters: Mapping[str, Any], stack: Weights, decay: float) -> dict[str, float]:
    """What one step of gradient descent does to the imbalance of the units of the last layer.

    The loss of every batch is invariant, so to first order nothing but weight decay pulls, by
    ``2 · rate · decay · |imbalance|``; to second order a gradient adds
    ``rate² (|g_in|² − |g_out|²)``, whose spread over batches is the noise.
    """
    data, module = pictures(parameters), module_of(parameters)
    rate, batch = float(parameters["rate"]), int(parameters["batch"])
    inputs, targets = (part[: 40 * batch] for part in data.train)
    count = len(inputs) // batch
    inputs = inputs[: count * batch].unflatten(0, (count, batch))
    targets = targets[: count * batch].unflatten(0, (count, batch))

    def loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, weights, (x,)), y)

    per_batch = vmap(vmap(grad(loss), in_dims=(None, 0, 0)), in_dims=(0, None, None))
    gradients = per_batch(stack, inputs, targets)
    g_in = gradients["linear1.weight"].square().sum(-1) + gradients["linear1.bias"].square()
    g_out = gradients["linear2.weight"].square().sum(-2)
    noise = rate**2 * (g_in - g_out).double().std(1).mean()
    pull = 2 * rate * decay * _imbalance(stack).abs().mean()
    along = (gradients["linear1.weight"] * stack["linear1.weight"].unsqueeze(1)).sum(-1)
    along = along + gradients["linear1.bias"] * stack["linear1.bias"].unsqueeze(1)
    along = along - (gradients["linear2.weight"] * stack["linear2.weight"].unsqueeze(1)).sum(-2)
    norms = stack["linear1.weight"].square().sum(-1) + stack["linear2.weight"].square().sum(-2)
    size = (g_in + g_out).sqrt() * norms.sqrt().unsqueeze(1)
    return {
        "noise": float(noise),
        "pull": float(pull),
        "noise_over_pull": float(noise / pull),
        "control_along": float(along.abs().max() / size.max()),
    }
