"""Error bars by pixel: one task and seed, every method, at severities of fog and noise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from coset.bayes.likelihood import Categorical, HeteroscedasticGaussian, Likelihood
from coset.data import camvid, cast_scenes, corrupt, log_depth
from coset.data.scenes import SCENE_CLASSES
from coset.inference.ensemble import DeepEnsemble
from coset.inference.laplace.method import Laplace
from coset.inference.laplace.part import LastLayer
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.monte_carlo_dropout import MCDropout
from coset.inference.swag import SWAG
from coset.inference.training.optimisers import Adam
from coset.metrics import (
    area_under_sparsification,
    auroc,
    evaluate,
    expected_calibration_error,
    fit_temperature,
    interval_coverage,
    set_coverage,
)
from coset.models import depth_head, unet
from coset.posterior.families import Mixture, PointMass, Samples
from coset.predictor import Predictor, fit
from coset.studies.cells.networks import seeded
from coset.vocabulary import Weights
from coset.weights.stacking import stack, unstack

Part = tuple[Tensor, Tensor]

_LABEL_SCORES = {
    "nll": "negative_log_likelihood",
    "brier": "brier",
    "accuracy": "accuracy",
    "miou": "mean_intersection_over_union",
    "ece": "expected_calibration_error",
}
_DEPTH_SCORES = {
    "nll": "gaussian_negative_log_likelihood",
    "crps": "continuous_ranked_probability_score",
    "rmse": "root_mean_squared_error",
}


@dataclass(frozen=True)
class _Task:
    """Pictures with targets, and what is asked of them.

    Attributes:
        train: What networks learn from.
        held: What temperatures and sets are found on.
        test: What is scored.
        likelihood: How outputs and targets meet.
        outputs: Of the network, a pixel.
        head: Behind the U-Net.
        foreign: Pictures with an unseen object, and where it is.
        double: For depths: pixels where the truth is one of two, and the variance that it has.
    """

    train: Part
    held: Part
    test: Part
    likelihood: Likelihood
    outputs: int
    head: nn.Module | None = None
    foreign: Part | None = None
    double: Part | None = None

    @property
    def is_depth(self) -> bool:
        return self.head is not None


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """Scores of every method, how they change with severity, and what must come out as known."""
    task = _task(parameters, seed)
    values: dict[str, Any] = {}
    for name, predictor in _predictors(task, parameters, seed):
        values |= {f"{name}_{what}": value for what, value in _scores(task, predictor).items()}
        for kind in ("fog", "gaussian_noise"):
            losses = _losses(task, predictor, kind, parameters["severities"], seed)
            values[f"{name}_{kind}"] = [values[f"{name}_nll"], *losses[1:]]
        if name == "map":
            values |= _controls(task, predictor, seed)
    return values | _comparisons(values)


def _task(parameters: Mapping[str, Any], seed: int) -> _Task:
    if parameters["task"] == "camvid":
        return _camvid(parameters)
    counts = [int(parameters[part]) for part in ("train", "held", "test")]
    size, generator = int(parameters["size"]), seeded(seed, "scenes")
    made = [cast_scenes(count, size=size, generator=generator) for count in counts]
    strange = cast_scenes(counts[2], size=size, foreign=True, generator=generator)
    foreign = strange.pictures, strange.foreign
    if parameters["task"] == "segmentation":
        train, held, test = ((each.pictures, each.labels) for each in made)
        classes = len(SCENE_CLASSES)
        return _Task(train, held, test, Categorical(), classes, foreign=foreign)
    train, held, test = ((each.pictures, log_depth(each.depth)) for each in made)
    known = train[1][~train[1].isnan()]
    head = depth_head(float(known.mean()), float(known.std()))
    # behind glass one of two depths, each with probability 1/2
    apart = ((made[2].far.log() - made[2].near.log()) / 2).square().unsqueeze(1)
    double = made[2].glass.unsqueeze(1), apart
    likelihood = HeteroscedasticGaussian(missing="nan")
    return _Task(train, held, test, likelihood, 2, head, foreign, double)


def _camvid(parameters: Mapping[str, Any]) -> _Task:
    """Frames evenly from each official part, smaller by ``shrink``; labels at block centres."""
    found, shrink = camvid(), int(parameters["shrink"])
    counts = [int(parameters[part]) for part in ("train", "held", "test")]
    middle = slice(shrink // 2, None, shrink)

    def smaller(part: Part, count: int) -> Part:
        chosen = torch.linspace(0, len(part[0]) - 1, count).round().long()
        return avg_pool2d(part[0][chosen], shrink), part[1][chosen][:, middle, middle]

    official = (found.train, found.validation, found.test)
    train, held, test = map(smaller, official, counts)
    return _Task(train, held, test, Categorical(ignore=found.void), len(found.classes))


def _module(task: _Task, parameters: Mapping[str, Any], dropout: float = 0.0) -> nn.Module:
    widths = tuple(parameters["widths"])
    with torch.random.fork_rng(devices=[]):  # its own start is not used
        torch.manual_seed(0)
        net = unet(in_channels=3, classes=task.outputs, widths=widths, dropout=dropout)
    return net if task.head is None else nn.Sequential(net, task.head)


def _predictors(
    task: _Task, parameters: Mapping[str, Any], seed: int
) -> Iterator[tuple[str, Predictor]]:
    """Every method that is asked for; what does not train begins at the first member."""
    asked: Sequence[str] = parameters["methods"]
    base = MaximumAPosteriori(
        Adam(0.01), epochs=int(parameters["epochs"]), batch_size=int(parameters["batch"])
    )
    module = _module(task, parameters)

    def fitted(method: Any, start: Weights | None = None, net: nn.Module = module) -> Predictor:
        return fit(
            net,
            task.train,
            method=method,
            likelihood=task.likelihood,
            start=start,
            generator=seeded(seed, type(method).__name__),
            progress=False,
        )

    ensemble = fitted(DeepEnsemble(members=int(parameters["members"]), base=base))
    assert isinstance(ensemble.posterior, Samples)
    members = unstack(ensemble.posterior.stack)
    point = replace(ensemble, posterior=PointMass(members[0]))
    yield "map", point
    if "temperature" in asked:
        yield "temperature", point.calibrated(task.held)
    yield "ensemble", ensemble
    if "dropout" in asked:
        rate = float(parameters["dropout"])
        yield "dropout", fitted(MCDropout(base), net=_module(task, parameters, rate))
    if "swag" in asked:
        calm = MaximumAPosteriori(Adam(1e-4), epochs=1, batch_size=base.batch_size)
        collect = int(parameters["collected"])
        yield "swag", fitted(SWAG(rank=collect // 2, base=calm, epochs=collect), members[0])
    last = Laplace(subset=LastLayer())
    first = fitted(last, members[0])
    yield "last_layer", first
    if "kfac" in asked:
        yield "kfac", fitted(Laplace(), members[0])
    if "modes" in asked:
        others = [fitted(last, start) for start in members[1 : int(parameters["modes"])]]
        parts = tuple(each.posterior for each in (first, *others))
        yield "modes", replace(first, posterior=Mixture(parts))


def _scores(task: _Task, predictor: Predictor) -> dict[str, float]:
    names = _DEPTH_SCORES if task.is_depth else _LABEL_SCORES
    asked = [*names.values(), *(["auroc"] if task.foreign else [])]
    found = evaluate(predictor, task.test, outliers=task.foreign, metrics=asked)
    values = {short: found[name] for short, name in names.items()}
    if task.foreign is not None:
        values["auroc"] = found["auroc"]
    sets = predictor.calibrated(task.held, method="conformal", level=0.95)(task.test[0])
    if not task.is_depth:
        assert sets.sets is not None, "of classes"
        void = getattr(task.likelihood, "ignore", None)
        values["sets"] = float(set_coverage(sets.sets, task.test[1], ignore=void))
        values["set_size"] = float(sets.sets.double().sum(1).mean())
        return values
    targets = task.test[1]
    there, variance = ~targets.isnan(), sets.variance
    assert variance is not None, "depths have one"
    assert sets.lower is not None, "of numbers"
    assert sets.upper is not None, "of numbers"
    inside = (sets.lower <= targets) & (targets <= sets.upper)
    mean, spread, truth = sets.mean[there], variance[there], targets[there]
    values |= {
        "sets": float(inside[there].double().mean()),
        "coverage": float(interval_coverage(mean, spread, truth, level=0.9)),
        "sparsification": float(area_under_sparsification(mean, spread, truth)),
    }
    if task.double is not None and bool(task.double[0].any()):
        where, true = task.double
        values["glass"] = float((variance[where] / true[where]).log().mean().exp())
    return values


def _losses(
    task: _Task, predictor: Predictor, kind: str, severities: Sequence[int], seed: int
) -> list[float]:
    name = (_DEPTH_SCORES if task.is_depth else _LABEL_SCORES)["nll"]
    losses = []
    for severity in severities:
        pictures = task.test[0]
        if severity:
            pictures = corrupt(pictures, kind, severity, generator=seeded(seed, kind))
            losses.append(evaluate(predictor, (pictures, task.test[1]), metrics=[name])[name])
        else:
            losses.append(float("nan"))  # the score without
    return losses


def _controls(task: _Task, predictor: Predictor, seed: int) -> dict[str, float]:
    """Numbers that are known: copies are one network, labels of one's own are calibrated."""
    assert isinstance(predictor.posterior, PointMass)
    copies = Samples(stack([predictor.posterior.weights] * 3))
    one, same = predictor(task.test[0]), replace(predictor, posterior=copies)(task.test[0])
    values = {"control_copies": float((one.mean - same.mean).abs().max())}
    generator = seeded(seed, "controls")
    if task.is_depth:
        assert one.variance is not None, "depths have one"
        drawn = one.mean + one.variance.sqrt() * torch.randn(one.mean.shape, generator=generator)
        covered = float(interval_coverage(one.mean, one.variance, drawn, level=0.9))
        return values | {"control_own": covered - 0.9}
    chances = one.mean.movedim(1, -1).flatten(0, -2)
    labels = chances.multinomial(1, generator=generator).squeeze(1)
    tiny = torch.finfo(chances.dtype).tiny
    values["control_own"] = float(expected_calibration_error(chances, labels))
    values["control_temperature"] = fit_temperature(chances.clamp_min(tiny).log(), labels) - 1
    if task.foreign is not None:
        scores = 1 - predictor(task.foreign[0]).mean.double().amax(1).flatten()
        order = torch.randperm(len(scores), generator=generator)
        mask = task.foreign[1].flatten()[order]
        few, many = float(mask.sum()), float((~mask).sum())
        error = ((few + many + 1) / (12 * few * many)) ** 0.5
        values["control_anywhere"] = (float(auroc(scores[~mask], scores[mask])) - 0.5) / error
    return values


def _comparisons(values: Mapping[str, Any]) -> dict[str, float]:
    """What claims are about: differences of losses on the same pictures."""

    def worst(name: str) -> float:
        return float(values[f"{name}_fog"][-1] + values[f"{name}_gaussian_noise"][-1]) / 2

    found = {"ensemble_shifted": worst("ensemble") - worst("map")}
    for name, other in (
        ("ensemble", "map"),
        ("last_layer", "map"),
        ("kfac", "map"),
        ("kfac", "temperature"),
        ("modes", "last_layer"),
    ):
        if f"{name}_nll" in values and f"{other}_nll" in values:
            found[f"{name}_minus_{other}"] = values[f"{name}_nll"] - values[f"{other}_nll"]
    if "map_auroc" in values:
        found["ensemble_auroc_gain"] = values["ensemble_auroc"] - values["map_auroc"]
    return found
