"""Distances to a reference of trained networks, equal marginals, and a posterior one can draw."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from coset.bayes.likelihood import Bernoulli
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.inference.ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.laplace.method import Laplace
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.mean_field import MeanField
from coset.inference.method import Method
from coset.inference.multi_mode import MultiMode
from coset.inference.sghmc import SGHMC
from coset.inference.swag import SWAG
from coset.inference.training.optimisers import SGD
from coset.inference.training.schedules import Constant
from coset.metrics import accuracy, exchangeability, expected_calibration_error
from coset.metrics.discrepancy import stack_discrepancies
from coset.posterior.families import Posterior, Samples
from coset.posterior.predict import apply_members
from coset.posterior.symmetrised import symmetrised
from coset.studies.cells.data import Pictures, pictures
from coset.studies.cells.networks import (
    module_of,
    probabilities,
    problem_of,
    recipe_of,
    seeded,
    trained,
)
from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import Kind, canonicalise
from coset.vocabulary import Weights
from coset.weights.network import functionalise

_SHOWN = 1500


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """One part of the study."""
    if parameters["part"] == "toy":
        return _toy(int(parameters["toys"]), seed)
    part = _quality if parameters["part"] == "quality" else _marginals
    return part(parameters, seed, folder)


def _quality(parameters: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """MMD and NS of one mode and of several modes of a method."""
    data, module, problem = pictures(parameters), module_of(parameters), problem_of(parameters)
    reference = trained(parameters, seed=seed, folder=folder)
    group = discover(module, data.test[0][:1])
    draws, modes = int(parameters["draws"]), int(parameters["modes"])
    posteriors = _posteriors(parameters, problem, modes, seed, folder)
    values: dict[str, Any] = {}
    for kind, posterior in posteriors.items():
        sample = posterior.sample(draws, generator=seeded(seed, f"draws {kind}"))
        sample = {name: tensor.contiguous() for name, tensor in sample.items()}
        values |= _told(kind, module, group, sample, reference, data)
    if "one" in posteriors and "multi" in posteriors:
        values["mmd_saved"] = values["mmd_one"] - values["mmd_multi"]
        values["ns_saved"] = values["ns_one"] - values["ns_multi"]
    element = group.sample(
        generator=seeded(seed, "element"), members=len(reference["linear1.bias"])
    )
    double = {name: tensor.double() for name, tensor in reference.items()}
    values["control_copy"] = abs(_same(group, group.act(element, double), double))
    return values


def _same(group: SymmetryGroup, moved: Weights, stack: Weights) -> float:
    """The largest difference of canonical weights, for a copy that only symmetries part."""
    one, other = canonicalise(group, moved), canonicalise(group, stack)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def _told(
    kind: str,
    module: nn.Module,
    group: SymmetryGroup,
    sample: Weights,
    reference: Weights,
    data: Pictures,
) -> dict[str, float]:
    """Distances and scores of the draws of one posterior."""
    mean = probabilities(module, sample, data.test[0]).mean(0)
    plain = canonicalise(group, sample), canonicalise(group, reference)
    return {
        f"mmd_{kind}": float(stack_discrepancies(sample, reference).largest),
        f"ns_{kind}": float(stack_discrepancies(*plain).largest),
        f"accuracy_{kind}": float(accuracy(mean, data.test[1])),
        f"calibration_{kind}": float(expected_calibration_error(mean, data.test[1])),
    }


def _posteriors(
    parameters: Mapping[str, Any], problem: Problem, modes: int, seed: int, folder: Path
) -> dict[str, Posterior]:
    """The posteriors of a method: of one mode, of several, or both."""
    name, generator = str(parameters["method"]), seeded(seed, "method")
    if name == "ensemble":  # other networks than the reference's
        return {"multi": Samples(trained(parameters, seed=10_000 + seed, folder=folder))}
    base = recipe_of(parameters)
    epochs = int(parameters["epochs"])
    if name == "sghmc":
        chain = SGHMC(chains=1, draws=int(parameters["draws"]))
        return {"one": chain.fit(problem, generator=generator)}
    inner: Method
    if name == "laplace":
        start = base.fit(problem, generator=generator).weights
        one = Laplace().fit(problem, start=start, generator=generator)
        many = MultiMode(Laplace(), modes, base=base)
        return {"one": one, "multi": many.fit(problem, generator=generator)}
    if name == "swag":
        inner = SWAG(base=base, epochs=max(epochs, 10), rank=min(10, epochs))
    else:
        inner = MeanField(epochs=2 * epochs)
    return {
        "one": inner.fit(problem, generator=generator),
        "multi": MultiMode(inner, modes).fit(problem, generator=generator),
    }


def _marginals(parameters: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Is every unit alike: in an ensemble, in chains, in chains moved by symmetries?"""
    data, module, problem = pictures(parameters), module_of(parameters), problem_of(parameters)
    stack = trained(parameters, seed=seed, folder=folder)
    group = discover(module, data.test[0][:1])
    count = int(parameters["chain"])
    chains = HMC(chains=3, warmup=count, draws=count, max_steps=32)
    samples = chains.fit(problem, generator=seeded(seed, "chains"))
    moved = symmetrised(samples, group)
    random = seeded(seed, "moving")
    drawn = moved.sample(3 * count, generator=random)
    few = samples.sample(8, generator=seeded(seed, "few"))
    few_moved = moved.sample(8, generator=seeded(seed, "few"))
    network = functionalise(module.double())
    inputs = data.test[0][:64].double()
    outputs = [
        apply_members(network, {n: w.double() for n, w in stack_.items()}, inputs)
        for stack_ in (few, few_moved)
    ]
    canonical = canonicalise(group, stack)
    # the two inputs of the largest weights, which no blank pixel is
    pixels = stack["linear1.weight"].square().mean((0, 1)).topk(2).indices.tolist()
    values: dict[str, Any] = {
        "unit": [str(k) for k in range(stack["linear1.weight"].shape[1])],
        "control_outputs": float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()),
    }
    for name, given in (
        ("ensemble", stack),
        ("hmc", samples.stack),
        ("symmetrised", drawn),
    ):
        found = exchangeability(given, "linear1.weight")
        values[f"{name}_statistic"] = found.statistic / (len(found.counts) - 1)
        values[f"{name}_p"] = found.p_value
        values[f"{name}_shares"] = (found.counts.double() / found.counts.sum()).tolist()
    values |= _on_seen_pixels(samples.stack, data.train[0])
    unit = int(parameters["unit"])
    for when, given in (("before", stack), ("after", canonical)):
        values[f"weight_{when}"] = given["linear2.weight"][:_SHOWN, 0, unit].tolist()
        for axis, pixel in zip("xy", pixels, strict=True):
            values[f"pair_{when}_{axis}"] = given["linear1.weight"][:_SHOWN, unit, pixel].tolist()
    return values


def _on_seen_pixels(stack: Weights, inputs: Float[Tensor, "n c h w"]) -> dict[str, float]:
    """The statistic of the chains over weights of the fifty pixels that vary most.

    A weight of a blank pixel is a draw from the prior, in which all units are alike; the largest
    weight of a unit is often one of these.
    """
    seen = inputs.flatten(1).std(0).topk(min(50, inputs[0].numel())).indices
    found = exchangeability({"weight": stack["linear1.weight"][:, :, seen]}, "weight")
    return {"hmc_seen_statistic": found.statistic / (len(found.counts) - 1)}


def _toy(count: int, seed: int) -> dict[str, Any]:
    """Two classes in the plane, two hidden units, many trainings: the last layer's weights.

    As in the paper: two hundred points a class around (−2, −2) and (2, 2), gradient descent of
    rate 2 with batches of ten for ten epochs, kept if the loss is at most 0.01.
    """
    random = torch.Generator().manual_seed(0)  # one data set for all seeds
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(200).unsqueeze(1).double()
    inputs = 2 * sign + torch.randn(400, 2, generator=random, dtype=torch.float64)
    targets = (sign > 0).double()
    with torch.random.fork_rng(devices=[]):
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    base = MaximumAPosteriori(
        optimiser=SGD(2.0, momentum=0.0), schedule=Constant(), epochs=10, batch_size=10
    )
    problem = Problem.of(net, (inputs, targets), likelihood=Bernoulli(), prior=GaussianPrior(0.0))
    method = DeepEnsemble(members=count, base=base)
    stack = method.fit(problem, generator=seeded(seed, "toy")).stack
    with torch.no_grad():
        outputs = apply_members(problem.network, stack, inputs)
        loss = nn.functional.binary_cross_entropy_with_logits(
            outputs, targets.expand_as(outputs), reduction="none"
        ).mean((1, 2))
    stack = {name: tensor[loss <= 0.01] for name, tensor in stack.items()}
    alive = (stack["0.weight"].abs().sum(-1) > 0).all(-1)
    stack = {name: tensor[alive] for name, tensor in stack.items()}
    group = discover(net, inputs[:1])
    before = _last(stack)
    # the paper's norm of three, which is for looks: outgoing weights shrink by it
    scalings: tuple[Kind, ...] = ("scalings",)
    canonical = canonicalise(group, stack, kinds=scalings)
    scaled = _last(canonical) / 3
    # by outgoing weights, the paper's order in this figure
    order = scaled.argsort(-1)
    ordered = scaled.gather(-1, order)
    plain = _in_order(canonical, order)
    after = apply_members(problem.network, plain, inputs)
    outputs = apply_members(problem.network, stack, inputs)
    values: dict[str, Any] = {
        "kept": len(before),
        "toy_above": float((scaled[:, 1] > scaled[:, 0]).double().mean()),
        "toy_arc": _spread(before, 2) / _spread(before, 1),
        "toy_edge": _spread(scaled, 1) / _spread(scaled, 2),
        "control_toy": float((after - outputs).abs().max() / outputs.abs().max()),
    }
    for name, pairs in (("", before), ("_scaled", scaled), ("_sorted", ordered)):
        shown = pairs[(pairs.abs() <= 4).all(-1)][:_SHOWN]  # the paper's window
        values[f"first{name}"], values[f"second{name}"] = shown.T.tolist()
    return values


def _in_order(stack: Weights, order: Int[Tensor, "m 2"]) -> Weights:
    """The toy's networks with their two units in some order."""
    wide = order.unsqueeze(-1).expand(-1, -1, 2)
    return {
        "0.weight": stack["0.weight"].gather(1, wide),
        "0.bias": stack["0.bias"].gather(1, order),
        "2.weight": stack["2.weight"].gather(2, order.unsqueeze(1)),
        "2.bias": stack["2.bias"],
    }


def _last(stack: Weights) -> Float[Tensor, "m 2"]:
    return stack["2.weight"][:, 0]


def _spread(pairs: Float[Tensor, "m 2"], order: int) -> float:
    """Interquartile range over median of a norm, of networks whose two units have one sign.

    The norm of order 2 is constant on a circle, that of order 1 on the edges of a diamond.
    """
    norms = pairs[pairs.prod(-1) > 0].norm(order, dim=-1)
    low, middle, high = norms.quantile(norms.new_tensor([0.25, 0.5, 0.75])).tolist()
    return float((high - low) / middle)
