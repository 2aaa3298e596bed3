"""Evidence of the linearised model on a curve with gaps: points, scales, depths, training."""

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.bayes.likelihood import GaussianNoise
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.curvature.linearising import linearise
from coset.curvature.structures import Full
from coset.curvature.tangent import Mean, Tangent
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.groups import Grouping
from coset.inference.laplace.method import Laplace
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.training.optimisers import Adam
from coset.inference.training.schedules import Constant
from coset.posterior.linearised import Linearised
from coset.posterior.predict import MonteCarlo
from coset.predictor import Predictor, fit
from coset.studies.cells.evidence_tables import compare_architectures, compare_forms
from coset.studies.cells.hessian_point import compare_points
from coset.studies.cells.networks import seeded
from coset.weights.network import assign, weights_of

Curve = tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]

_GRID = torch.logspace(-4, 4, 41, dtype=torch.float64)
"""Prior precisions among which the evidence chooses."""


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """One part of the study."""
    parts = {
        "toy": _toy,
        "training": _training,
        "scale": _scale,
        "depth": _depth,
        "hessian": compare_points,
        "architectures": compare_architectures,
        "residual": compare_forms,
    }
    return parts[str(parameters["part"])](parameters, seed)


def curve(points: int, noise: float, seed: int) -> tuple[Curve, Curve]:
    """Training and test points of a Matérn-3/2 curve on [−2, 2]; training points leave a gap."""
    random = seeded(seed, "curve")
    left, right = (
        -2 + torch.rand(points // 2, generator=random),
        0.5 + 1.5 * torch.rand(points - points // 2, generator=random),
    )
    inputs = torch.cat([left, right]).sort().values
    places = torch.cat([inputs, torch.linspace(-2, 2, 100)]).double()
    distance = (places.unsqueeze(0) - places.unsqueeze(1)).abs() * math.sqrt(3)
    covariance = 2 * (1 + distance) * (-distance).exp()
    root = torch.linalg.cholesky(covariance + 1e-6 * torch.eye(len(places)))
    values = root @ torch.randn(len(places), generator=random, dtype=torch.float64)
    values = values + noise * torch.randn(len(places), generator=random, dtype=torch.float64)
    pairs = places.unsqueeze(1), values.unsqueeze(1)
    train, test = (tuple(p[part] for p in pairs) for part in (slice(points), slice(points, None)))
    return (train[0], train[1]), (test[0], test[1])


def _net(width: int, layers: int, seed: int) -> nn.Sequential:
    """A perceptron with batch norm before each activation, and a linear head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: list[nn.Module] = []
        for before in (1, *[width] * (layers - 1)):
            parts += [nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(width, 1)).double()


def _train(net: nn.Module, data: Curve, epochs: int, noise: float, seed: int) -> nn.Module:
    method = MaximumAPosteriori(
        optimiser=Adam(1e-2), schedule=Constant(), epochs=epochs, batch_size=len(data[0])
    )
    problem = Problem.of(net, data, likelihood=GaussianNoise(noise), prior=GaussianPrior(1e-3))
    start = weights_of(net)
    found = method.fit(problem, start=start, generator=seeded(seed, "training")).weights
    return assign(copy.deepcopy(net), found).eval()


def _chosen(tangent: Tangent, mean: Mean) -> tuple[float, list[float]]:
    """The precision of the largest evidence on the grid, and the evidence everywhere."""
    values = [float(tangent.log_evidence(float(p), mean=mean)) for p in _GRID]
    return float(_GRID[values.index(max(values))]), values


def _laplace(net: nn.Module, data: Curve, precision: float, noise: float) -> Predictor:
    return fit(
        net,
        data,
        method=Laplace(Full(), tuning=None),
        likelihood=GaussianNoise(noise),
        prior=GaussianPrior(precision),
    )


def _deviation(predictor: Predictor, inputs: Tensor, noise: float) -> Float[Tensor, " n"]:
    """Standard deviation of the function, without the noise."""
    variance = predictor(inputs, rule=Linearised()).variance
    assert variance is not None
    return (variance.squeeze(1) - noise**2).clamp_min(0).sqrt()


def _toy(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    noise = float(parameters["noise"])
    train, test = curve(int(parameters["points"]), noise, seed)
    fresh = _net(int(parameters["width"]), 2, seed)
    net = _train(fresh, train, int(parameters["epochs"]), noise, seed)
    tangent = linearise(net, train, GaussianNoise(noise))
    best, at_tangent = _chosen(tangent, "tangent")
    naive, at_network = _chosen(tangent, "network")
    places = torch.linspace(-2.5, 2.5, 61, dtype=torch.float64).unsqueeze(1)
    deviations = {
        "tangent": _deviation(_laplace(net, train, best, noise), places, noise),
        "network": _deviation(_laplace(net, train, naive, noise), places, noise),
    }
    values: dict[str, Any] = {
        "grid": _GRID.tolist(),
        "evidence_tangent": at_tangent,
        "evidence_network": at_network,
        "chosen_tangent": best,
        "chosen_network": naive,
        "decades_between": math.log10(best / naive),
        "places": places.squeeze(1).tolist(),
        "width_ratio": float(deviations["network"].mean() / deviations["tangent"].mean()),
        "control_evidence": _off(tangent, train, best, noise),
        "seen_x": train[0].squeeze(1).tolist(),
        "seen_y": train[1].squeeze(1).tolist(),
    }
    with torch.no_grad():
        values["mean"] = net(places).squeeze(1).tolist()
    for name, std in deviations.items():
        values[f"std_{name}"] = std.tolist()
        values[f"band_{name}"] = (2 * (std.square() + noise**2).sqrt()).tolist()
    for precision in parameters["precisions"]:
        fixed = _laplace(net, train, float(precision), noise)
        values[f"std_{precision:g}"] = _deviation(fixed, places, noise).tolist()
    return values | _sampled(_laplace(net, train, best, noise), test, noise, seed)


def _off(tangent: Tangent, data: Curve, precision: float, noise: float) -> float:
    """How far the evidence is from that of the Gaussian process with the tangent kernel.

    The tangent model is ``y − f + J θ~ = J θ + noise`` with ``θ ~ N(0, 1/λ)``.
    """
    matrix = tangent.jacobian.matrix
    assert matrix is not None
    flat = tangent.layout.flatten(tangent.weights)
    targets = (data[1] - tangent.outputs).reshape(-1) + matrix @ flat
    covariance = matrix @ matrix.T / precision + noise**2 * torch.eye(len(targets)).double()
    law = torch.distributions.MultivariateNormal(torch.zeros_like(targets), covariance)
    exact = float(law.log_prob(targets))
    return abs(float(tangent.log_evidence(precision)) - exact) / abs(exact)


def _sampled(predictor: Predictor, test: Curve, noise: float, seed: int) -> dict[str, float]:
    """Log loss of the linearised predictions, and of sampled networks."""
    losses = {}
    for name, rule in (("linearised", Linearised()), ("sampled", MonteCarlo(draws=64))):
        said = predictor(test[0], rule=rule, generator=seeded(seed, "draws"))
        assert said.variance is not None
        variance = said.variance.clamp_min(noise**2 / 4)
        error = (said.mean - test[1]).square()
        losses[name] = float((error / variance + (2 * math.pi * variance).log()).mean() / 2)
    return {
        "loss_linearised": losses["linearised"],
        "loss_sampled": losses["sampled"],
        "sampled_minus_linearised": losses["sampled"] - losses["linearised"],
    }


def _training(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The divergence between the predictions of both choices at checks along training."""
    noise = float(parameters["noise"])
    train, test = curve(int(parameters["points"]), noise, seed)
    net: nn.Module = _net(int(parameters["width"]), 2, seed)
    checks = [int(epoch) for epoch in parameters["checks"]]
    apart, chosen, errors = [], {"tangent": [0.0] * 0, "network": [0.0] * 0}, []
    for before, after in pairwise([0, *checks]):
        if after > before:
            net = _train(net, train, after - before, noise, seed)
        tangent = linearise(net.eval(), train, GaussianNoise(noise))
        deviations = []
        for mean in ("tangent", "network"):
            precision, _ = _chosen(tangent, mean)
            chosen[mean].append(precision)
            deviations.append(_deviation(_laplace(net, train, precision, noise), test[0], noise))
        # means are equal: the distance of the Gaussians is that of their deviations
        apart.append(float((deviations[0] - deviations[1]).abs().mean()))
        with torch.no_grad():
            errors.append(float((net(test[0]) - test[1]).square().mean()))
    return {
        "checks": checks,
        "divergence": apart,
        "error": errors,
        "chosen_tangent": chosen["tangent"],
        "chosen_network": chosen["network"],
        "divergence_last": apart[-1],
        "divergence_left": apart[-1] / max(apart) if max(apart) else 0.0,
        "best_epoch": checks[errors.index(min(errors))],
    }


def _rescaled(net: nn.Sequential, factor: float) -> nn.Sequential:
    """The same function with the weights in front of each batch norm times a factor."""
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        for layer, norm in pairwise(scaled):
            if isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d):
                layer.weight.mul_(factor)
                layer.bias.mul_(factor)
                assert norm.running_mean is not None
                assert norm.running_var is not None
                norm.running_mean.mul_(factor)
                # epsilon stays: the variance it is added to takes up the difference
                norm.running_var.add_(norm.eps).mul_(factor**2).sub_(norm.eps)
    return scaled


def _scale(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Predictions against the scale of normalised weights, and losses along it."""
    noise = float(parameters["noise"])
    train, test = curve(int(parameters["points"]), noise, seed)
    plain = _net(int(parameters["width"]), 2, seed)
    trained = _train(plain, train, int(parameters["epochs"]), noise, seed)
    assert isinstance(trained, nn.Sequential)
    factors = [float(k) for k in parameters["factors"]]
    nets = [_rescaled(trained, k) for k in factors]
    groupings: tuple[tuple[str, Grouping], ...] = (("single", "single"), ("multiple", "normalised"))
    values: dict[str, Any] = {"factors": factors}
    with torch.no_grad():
        outputs = [net(test[0]) for net in nets]
    values["control_rescaled"] = max(float((o - outputs[2]).abs().max()) for o in outputs)
    for name, groups in groupings:
        means = []
        for net in nets:
            method = Laplace(Full(), tuning=ByEvidence(groups=groups))
            predictor = fit(net, train, method=method, likelihood=GaussianNoise(noise))
            means.append(float(_deviation(predictor, test[0], noise).mean()))
        values[f"std_{name}"] = means
        values[f"{name}_ratio"] = max(means) / min(means)
    return values | _losses(trained, train, noise)


def _losses(net: nn.Sequential, train: Curve, noise: float) -> dict[str, Any]:
    """Loss and penalty when normalised weights are scaled by k: of the network, and linearised.

    The network's likelihood does not change, so its penalty falls with k²; the linearised model
    around k = 1 leaves its data when they move.
    """
    tangent = linearise(net, train, GaussianNoise(noise))
    normalised = {
        f"{number}.{kind}"
        for number, layer in enumerate(net)
        if isinstance(layer, nn.Linear) and number + 1 < len(net)
        for kind in ("weight", "bias")
    }
    factors = torch.logspace(-1, 1, 21, dtype=torch.float64).tolist()
    network, linear = [], []
    own = tangent.weights
    at = tangent.layout.flatten(own)
    for k in factors:
        moved = {n: k * w if n in normalised else w for n, w in own.items()}
        flat = tangent.layout.flatten(moved)
        penalty = float(flat.square().sum()) / 2
        fit_network = -float(tangent.log_likelihood(tangent.outputs))
        change = (tangent.jacobian @ (flat - at)).reshape(tangent.outputs.shape)
        fit_linear = -float(tangent.log_likelihood(tangent.outputs + change))
        network.append(fit_network + penalty)
        linear.append(fit_linear + penalty)
    least = linear.index(min(linear))
    return {
        "shrinkings": factors,
        "loss_network": [value - min(network) for value in network],
        "loss_linear": [value - min(linear) for value in linear],
        "network_still_falls": math.log10(factors[-1] / factors[network.index(min(network))]) / 2,
        "linear_has_minimum": float(0 < least < len(factors) - 1),
    }


def _depth(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Evidence and test loss by depth, and the prior of the linearised model."""
    noise, width = float(parameters["noise"]), int(parameters["width"])
    train, test = curve(int(parameters["points"]), noise, seed)
    depths = [int(depth) for depth in parameters["depths"]]
    evidences, losses = [], []
    places = torch.linspace(-2.5, 2.5, 41, dtype=torch.float64).unsqueeze(1)
    prior: dict[str, Any] = {}
    for depth in depths:
        net = _train(_net(width, depth, seed), train, int(parameters["epochs"]), noise, seed)
        tangent = linearise(net, train, GaussianNoise(noise))
        precision, values = _chosen(tangent, "tangent")
        evidences.append(max(values))
        predictor = _laplace(net, train, precision, noise)
        losses.append(_sampled(predictor, test, noise, seed)["loss_linearised"])
        if not prior:
            prior = _prior(net, places, precision, seed)
    return {
        "layers": [str(depth) for depth in depths],
        "evidence": evidences,
        "losses": losses,
        "evidence_of_best_over_deepest": max(evidences[:-1]) - evidences[-1],
        "chosen_depth": depths[evidences.index(max(evidences))],
        **prior,
    }


def _prior(net: nn.Module, places: Tensor, precision: float, seed: int) -> dict[str, Any]:
    """The kernel of the linearised model on some inputs, and draws of functions."""
    around = linearise(net, (places, torch.zeros_like(places)), GaussianNoise(1.0))
    matrix = around.jacobian.matrix
    assert matrix is not None
    kernel = matrix @ matrix.T / precision
    noise = torch.randn(5, matrix.shape[1], generator=seeded(seed, "prior"), dtype=torch.float64)
    draws = noise / math.sqrt(precision) @ matrix.T
    line = places.squeeze(1).tolist()
    return {
        "places": line,
        **{f"prior_{k}": draw.tolist() for k, draw in enumerate(draws)},
        "kernel": kernel.tolist(),
        "kernel_x": line,
        "kernel_y": line,
    }
