"""Evidence, groups and links of linearised Laplace on real data, next to what else one would do.

    python benchmarks/laplace_real_data.py [mnist] [fashion_mnist] [cifar10]

A cell is one data set, one network and one seed (new training images, weights and test images); it
becomes one JSON file in ``records/laplace`` and is not run again while that exists;
``laplace_tables.py`` prints and draws them.  The data come from ``COSET_DATA``.

Nothing in here was used to choose the defaults of ``Laplace()``.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import chosen
from torch import Tensor, nn
from torch.nn import functional

from coset import (
    KFAC,
    ByEvidence,
    Categorical,
    Gaussian,
    GaussianPrior,
    Laplace,
    LaplaceBridge,
    Predictor,
    Probit,
    Problem,
    SampledSoftmax,
    TopDifference,
    data,
    fit,
    functionalise,
    metrics,
    models,
)
from coset.bayes import as_batches
from coset.linalg import cast, inverse, shift
from coset.posterior.output_moments import output_moments

PARTNERS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "tiny_imagenet"}
"""The data sets, and where their outliers come from."""

SETS = tuple(PARTNERS)
NETWORKS = ("mlp", "cnn", "resnet", "fixup")
SEEDS = (0, 1, 2)
TRAIN, HELD_OUT, TEST, OUTLIERS, EPOCHS = 1000, 250, 500, 250, 20
RECORDS = Path(__file__).parent / "records" / "laplace"
Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """What a cell is trained, tuned and scored on."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    outliers: Tensor


def split_of(name: str, network: str, seed: int) -> Split:
    """Other images for every seed; convolution networks see pictures of half the size."""
    whole = data.load(name)
    generator = torch.Generator().manual_seed(1000 + seed)
    rows = torch.randperm(len(whole.train_inputs), generator=generator)[: TRAIN + HELD_OUT]
    others = torch.randperm(len(whole.test_inputs), generator=generator)[:TEST]
    partner = data.outliers_for(whole, PARTNERS[name]).test_inputs
    strange = partner[torch.randperm(len(partner), generator=generator)[:OUTLIERS]]
    inputs = whole.train_inputs[rows]
    mean, std = inputs[:TRAIN].mean(), inputs[:TRAIN].std()

    def ready(images: Tensor) -> Tensor:
        images = (images - mean) / std
        if network != "mlp" or images.shape[1] > 1:
            images = functional.avg_pool2d(images, 2)
        return images.flatten(1) if network == "mlp" else images

    images, labels = ready(inputs), whole.train_targets[rows]
    return Split(
        (images[:TRAIN], labels[:TRAIN]),
        (images[TRAIN:], labels[TRAIN:]),
        (ready(whole.test_inputs[others]), whole.test_targets[others]),
        ready(strange),
    )


def build(network: str, inputs: Tensor) -> nn.Module:
    channels = inputs.shape[1]
    if network == "mlp":
        return models.mlp(channels, (64, 64), 10)
    if network == "cnn":
        side = inputs.shape[-1] // 2 // 2
        return nn.Sequential(
            nn.Conv2d(channels, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(24 * side * side, 10),
        )
    if network == "resnet":
        return models.resnet(depths=(1, 1), widths=(8, 16), in_channels=channels)
    return models.fixup_resnet(depths=(1, 1), widths=(8, 16), in_channels=channels)


def train(network: str, split: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    inputs, targets = split.train
    module = build(network, inputs)
    optimiser = torch.optim.AdamW(module.parameters(), weight_decay=0.0)
    steps, rate = EPOCHS * (len(inputs) // 50), 2e-2 if network == "fixup" else 4e-3
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(50):
            optimiser.zero_grad()
            functional.cross_entropy(module(inputs[rows]), targets[rows]).backward()
            optimiser.step()
            schedule.step()
    return module.eval()


def methods(network: str) -> dict[str, ByEvidence]:
    """The ways to tune; groups of normalised scales only where a norm divides them out."""
    found = {
        "theta~, single": ByEvidence(mean="network", groups="single"),
        "theta~, layer": ByEvidence(mean="network", groups="layer"),
        "theta* full, H at theta~, single": ByEvidence(
            form="full", hessian="network", groups="single"
        ),
        "theta* full, single": ByEvidence(form="full", groups="single"),
        "theta* full, layer": ByEvidence(form="full", groups="layer"),
        "theta* simple, single": ByEvidence(groups="single"),
        "theta* simple, layer": ByEvidence(groups="layer"),
    }
    if network == "resnet":
        found["theta~, normalised"] = ByEvidence(mean="network")
        found["theta* full, normalised"] = ByEvidence(form="full")
        found["theta* simple, normalised"] = ByEvidence()
    return found


LINKS = {
    "probit": Probit(),
    "plain probit": Probit(projected=False),
    "top difference": TopDifference(),
    "sampled softmax": SampledSoftmax(200),
    "bridge": LaplaceBridge(),
}


def score(probabilities: Tensor, targets: Tensor, strange: Tensor) -> dict[str, float]:
    chances = probabilities.clamp_min(1e-12)
    found = {
        "nll": -chances[torch.arange(len(targets)), targets].log().mean(),
        "ece": metrics.expected_calibration_error(probabilities, targets),
        "auroc": metrics.auroc(metrics.entropy(probabilities), metrics.entropy(strange)),
        "accuracy": (probabilities.argmax(1) == targets).double().mean(),
    }
    return {name: round(float(value), 5) for name, value in found.items()}


def linked(link: object, moments: Moments) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return link(*moments, Categorical(), generator=generator).mean(0)


def run(name: str, network: str, seed: int) -> dict[str, object]:
    """One cell: everything that is scored on one trained network."""
    begin = time.process_time()
    split = split_of(name, network, seed)
    module = train(network, split, seed)
    apply = functionalise(module)
    with torch.no_grad():
        logits = {
            "train": module(split.train[0]),
            "held out": module(split.held_out[0]),
            "test": module(split.test[0]),
            "outliers": module(split.outliers),
        }
    rows: dict[str, dict[str, float]] = {}

    def add(label: str, probabilities: Callable[[str], Tensor]) -> None:
        rows[label] = score(probabilities("test"), split.test[1], probabilities("outliers"))

    temperature = metrics.fit_temperature(logits["held out"], split.held_out[1])
    add("network", lambda part: logits[part].softmax(1))
    add("temperature", lambda part: (logits[part] / temperature).softmax(1))
    # scalar multipliers and biases of FixUp are no layers: they stay as they are
    subset = tuple(n for n, p in module.named_parameters() if p.dim() > 1)
    subset = subset if network == "fixup" else None
    for label, settings in methods(network).items():
        fitted = fit(module, split.train, method=Laplace(subset=subset, tuning=settings))
        if label in (f"theta* simple, {'normalised' if network == 'resnet' else 'single'}",):
            warned = any("under-confident" in line for line in fitted.posterior.report.warnings)
            tuning = ByEvidence(validation=split.held_out)
            shrunk = fit(module, split.train, method=Laplace(subset=subset, tuning=tuning))
            factor = shrunk.posterior.report.diagnostics["covariance_factor"]
            add_links(add, "default + validation", shrunk, split)
            add_links(add, "default", fitted, split, LINKS)
        else:
            add_links(add, label, fitted, split)
    oracle, precision = best_single(apply, subset, split)
    add("oracle", lambda part: oracle[part])
    peer = peer_of(module, split)
    add("laplace-torch", lambda part: peer[part])
    return {
        "data": name,
        "network": network,
        "seed": seed,
        "weights": apply.layout.size,
        "train_nll": round(float(functional.cross_entropy(logits["train"], split.train[1])), 5),
        "temperature": round(float(temperature), 4),
        "warned": warned,
        "oracle_precision": precision,
        "covariance_factor": round(factor, 5),
        "rows": rows,
        "cpu_seconds": round(time.process_time() - begin, 1),
    }


def add_links(
    add: Callable[[str, Callable[[str], Tensor]], None],
    label: str,
    fitted: Predictor,
    split: Split,
    links: Mapping[str, object] | None = None,
) -> None:
    """Scores a fit under its own link, or under several from the same moments."""
    inputs = {"test": split.test[0], "outliers": split.outliers}
    if links is None:
        found = {part: fitted(x).mean for part, x in inputs.items()}
        add(label, found.__getitem__)
        return
    found = {part: fitted(x) for part, x in inputs.items()}
    add(label, lambda part: found[part].mean)
    network = fitted.network
    with torch.no_grad():
        means = {part: network.apply(network.weights, x) for part, x in inputs.items()}
    for name, link in links.items():
        add(
            f"{label}, {name}",
            lambda part, link=link: linked(link, (means[part], found[part].covariance)),
        )


def best_single(
    network: object, subset: tuple[str, ...] | None, split: Split
) -> tuple[dict[str, Tensor], float]:
    """One precision for all weights, the best of a grid on held-out data."""
    problem = Problem(network, Categorical(), GaussianPrior(), as_batches(split.train))
    layout = network.layout.select(*subset) if subset else network.layout
    measured = KFAC().build(problem, network.weights, layout)
    mean = {name: network.weights[name] for name in layout.names}

    def posterior(precision: float) -> Gaussian:
        flat = torch.full((layout.size,), precision, dtype=torch.float64)
        covariance = cast(inverse(shift(measured.operator, flat)), torch.float32)
        return Gaussian(mean, covariance, measured.layers)

    def predict(precision: float, inputs: Tensor) -> Tensor:
        return linked(Probit(), output_moments(posterior(precision), network, inputs))

    inputs, targets = split.held_out
    grid = [10.0**k for k in range(6)]
    losses = [
        float(functional.nll_loss(predict(value, inputs).clamp_min(1e-12).log(), targets))
        for value in grid
    ]
    best = grid[losses.index(min(losses))]
    parts = {"test": split.test[0], "outliers": split.outliers}
    return {part: predict(best, x) for part, x in parts.items()}, best


def peer_of(module: nn.Module, split: Split) -> dict[str, Tensor]:
    """laplace-torch with its defaults: last layer, Kronecker factors, evidence, probit."""
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # this folder has a laplace.py
    from laplace import Laplace as Other
    from torch.utils.data import DataLoader, TensorDataset

    found = Other(module, "classification")
    found.fit(DataLoader(TensorDataset(*split.train), batch_size=250))
    found.optimize_prior_precision()
    return {
        part: torch.cat([found(rows) for rows in x.split(100)]).detach()
        for part, x in {"test": split.test[0], "outliers": split.outliers}.items()
    }


def file_of(name: str, network: str, seed: int) -> Path:
    return RECORDS / f"{name}-{network}-{seed}.json"


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    RECORDS.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for network in NETWORKS:
            for name in chosen(SETS, sys.argv[1:]):
                file = file_of(name, network, seed)
                if file.exists():
                    continue
                record = run(name, network, seed)
                file.write_text(json.dumps(record, indent=1) + "\n")
                print(file.stem, record["cpu_seconds"], record["rows"]["default"], flush=True)


if __name__ == "__main__":
    main()
