"""Tables of the talk: test losses of six architectures, and of residual networks, by the evidence.

Each cell trains one network and fits it by every choice of the evidence: at the network's own
weights ``θ~`` or at the mode ``θ*`` of the linearised model, with one precision or one a layer.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.bayes.likelihood import Categorical, GaussianNoise, Likelihood
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.inference.laplace.by_evidence import ByEvidence
from coset.inference.laplace.groups import Grouping
from coset.inference.laplace.method import Laplace
from coset.metrics import negative_log_likelihood
from coset.models import (
    convnet,
    fixup_resnet,
    point_transformer,
    preactivation_resnet,
    resnet,
    unet,
)
from coset.posterior.predict import Predictions
from coset.predictor import fit
from coset.studies.cells.data import Pictures, pictures
from coset.studies.cells.networks import recipe_of, seeded
from coset.weights.network import assign

Data = tuple[Tensor, Tensor]

_NOISE = 0.5
"""Standard deviation of the noise that the U-Net takes off pictures with values in [0, 1]."""

_GROUPS: tuple[tuple[str, Grouping], ...] = (("single", "single"), ("multiple", "layer"))


def compare_architectures(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Test log losses of one architecture, by the point of the evidence and its precisions.

    At ``θ*`` as the default of :class:`coset.Laplace`; at ``θ~`` with the output Hessian there, as
    is usual.
    """
    means = {
        "mode": lambda groups: ByEvidence(groups=groups),
        "weights": lambda groups: ByEvidence(mean="network", groups=groups),
    }
    return _compared(parameters, seed, means)


def compare_forms(parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The same, with ``θ*`` of the simple model ``J θ`` and of the full one ``f + J (θ - θ~)``."""
    means = {
        "simple": lambda groups: ByEvidence(form="simple", groups=groups),
        "full": lambda groups: ByEvidence(form="full", groups=groups),
        "weights": lambda groups: ByEvidence(mean="network", groups=groups),
    }
    found = _compared(parameters, seed, means)
    for name, _ in _GROUPS:
        found[f"simple_below_full_{name}"] = (
            found[f"loss_full_{name}"] - found[f"loss_simple_{name}"]
        )
        found[f"full_below_weights_{name}"] = (
            found[f"loss_weights_{name}"] - found[f"loss_full_{name}"]
        )
    found["multiple_below_single"] = found["loss_simple_single"] - found["loss_simple_multiple"]
    return found


def _compared(parameters: Mapping[str, Any], seed: int, means: Mapping[str, Any]) -> dict[str, Any]:
    (train, test), likelihood = data_of(parameters, seed)
    module = architecture(parameters, train, seed)
    decay = float(parameters["decay"]) * len(train[0])
    problem = Problem.of(module, train, likelihood=likelihood, prior=GaussianPrior(decay))
    trained = recipe_of(parameters).fit(problem, generator=seeded(seed, "training"))
    module = assign(module, trained.weights).eval()
    # the scalars of FixUp are no layers: they stay as they are
    names = tuple(name for name, weight in module.named_parameters() if weight.dim() > 1)
    subset = names if parameters["network"] == "fixup" else None
    values: dict[str, Any] = {"weights": problem.network.layout.size}
    for mean, tuning in means.items():
        for label, groups in _GROUPS:
            method = Laplace(subset=subset, tuning=tuning(groups))
            predictor = fit(module, train, method=method, likelihood=likelihood)
            said = predictor(test[0])
            values[f"loss_{mean}_{label}"] = loss(said, test[1])
            report = predictor.posterior.report
            values[f"precision_{mean}_{label}"] = report.diagnostics["median_precision"]
    plain = module(test[0]).detach()
    if isinstance(likelihood, Categorical):
        values["loss_network"] = float(negative_log_likelihood(plain.softmax(1), test[1]))
        values["control_classes"] = float((said.mean.argmax(1) != plain.argmax(1)).double().mean())
    else:
        residual = (plain - test[1]).square().mean()  # with the noise that fits the test set best
        values["loss_network"] = float((2 * math.pi * math.e * residual).log() / 2)
    first = next(iter(means))
    for label, _ in _GROUPS:
        at_weights, at_mode = values[f"loss_weights_{label}"], values[f"loss_{first}_{label}"]
        values[f"gained_{label}"] = at_weights - at_mode
        if isinstance(likelihood, Categorical):
            values[f"decades_{label}"] = math.log10(at_weights / at_mode)
    return values


def loss(said: Predictions, targets: Tensor) -> float:
    """Mean negative log-density of the targets: of classes, or of each pixel by itself."""
    if not targets.is_floating_point():
        return float(negative_log_likelihood(said.mean, targets))
    assert said.variance is not None
    error = (said.mean - targets).square() / said.variance
    return float((error + (2 * math.pi * said.variance).log()).mean() / 2)


def data_of(parameters: Mapping[str, Any], seed: int) -> tuple[tuple[Data, Data], Likelihood]:
    """Pictures with classes; for the transformer clouds of points, for the U-Net noisy pictures."""
    found: Pictures = pictures(parameters)
    network = parameters["network"]
    if network == "transformer":
        count = int(parameters["points"])
        clouds = [
            point_clouds(part[0], count, generator=seeded(seed, f"points {number}"))
            for number, part in enumerate((found.train, found.test))
        ]
        return ((clouds[0], found.train[1]), (clouds[1], found.test[1])), Categorical()
    if network == "unet":
        noisy = []
        for number, part in enumerate((found.train, found.test)):
            noise = torch.randn(part[0].shape, generator=seeded(seed, f"noise {number}"))
            noisy.append((part[0] + _NOISE * noise, part[0]))
        return (noisy[0], noisy[1]), GaussianNoise()
    return (found.train, found.test), Categorical()


def point_clouds(
    images: Float[Tensor, "n 1 h w"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "n p 2"]:
    """Points drawn from the ink of each picture, its middle at zero and its edges at ±1.

    >>> ink = torch.zeros(1, 1, 3, 3)
    >>> ink[..., 1, 2] = 1.0
    >>> point_clouds(ink, 2, generator=torch.Generator().manual_seed(0)).tolist()
    [[[0.0, 1.0], [0.0, 1.0]]]
    """
    side = images.shape[-1]
    ink = images.clamp_min(0).flatten(1)
    drawn = torch.multinomial(ink + 1e-9, count, replacement=True, generator=generator)
    places = torch.stack([drawn // side, drawn % side], -1)
    return 2 * places.to(images) / (side - 1) - 1


def architecture(parameters: Mapping[str, Any], train: Data, seed: int) -> nn.Module:
    """The network that ``network`` names, of the given ``widths`` and ``depths``."""
    channels, widths = train[0].shape[1], tuple(parameters["widths"])
    depths = tuple(parameters.get("depths", ()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build = {
            "transformer": lambda: point_transformer(coordinates=2, width=widths[0]),
            "cnn": lambda: convnet(in_channels=channels, widths=widths),
            "resnet": lambda: resnet(depths=depths, widths=widths, in_channels=channels),
            "preresnet": lambda: preactivation_resnet(
                depths=depths, widths=widths, in_channels=channels
            ),
            "fixup": lambda: fixup_resnet(depths=depths, widths=widths, in_channels=channels),
            "unet": lambda: unet(widths=widths, normalisation="batch"),
        }
        return build[str(parameters["network"])]()
