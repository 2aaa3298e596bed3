"""Small files of this version, and what they predict; ``python tests/golden_predictors.py`` writes.

Files that are there are never written again: a later version must read them as they are.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import coset
from coset import (
    HMC,
    SWAG,
    Bernoulli,
    DeepEnsemble,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    HeteroscedasticGaussian,
    Laplace,
    LaplaceBridge,
    LastLayer,
    Linearised,
    LowRank,
    MatrixFree,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    MultivariateNoise,
    Predictor,
    Probit,
    RebasedGaussian,
    SampledSoftmax,
    Snapshots,
    Subnetwork,
    Tiled,
    fit,
    symmetrised,
)

FOLDER = Path(__file__).parent / "golden"
BASE = MaximumAPosteriori(epochs=3)


def inputs() -> torch.Tensor:
    """Six inputs of two numbers, written down so that no generator is asked."""
    numbers = [-2.0, -1.0, -0.5, 0.25, 1.0, 3.0]
    return torch.tensor([[a, b] for a, b in zip(numbers, reversed(numbers), strict=True)])


def perceptron() -> nn.Module:
    """Two inputs, two outputs, with a dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 2))


def normalised() -> nn.Module:
    """With running statistics and a counter, which are no parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def segmenter() -> nn.Module:
    """For pictures."""
    torch.manual_seed(0)
    return nn.Conv2d(1, 2, 3, padding=1)


def classes(**options: object) -> Predictor:
    """A fit to two classes."""
    return fit(perceptron(), (inputs(), (inputs()[:, 0] > 0).long()), **options)


def numbers(likelihood: object, **options: object) -> Predictor:
    """A regression of one number, or of two."""
    narrow = isinstance(likelihood, HeteroscedasticGaussian)
    targets = inputs()[:, :1].sin() if narrow else inputs().sin()
    return fit(perceptron(), (inputs(), targets), likelihood=likelihood, **options)


def ruled(rule: object) -> Predictor:
    """A Laplace approximation with another rule."""
    return replace(classes(method=Laplace()), rule=rule)


def _symmetrised() -> Predictor:
    group = coset.discover(normalised(), inputs())
    wide = fit(normalised(), (inputs(), (inputs()[:, 0] > 0).long()), method=BASE)
    return replace(wide, posterior=symmetrised(wide.posterior, group))


def _tiled() -> Predictor:
    pictures = inputs().repeat(1, 8).reshape(6, 1, 4, 4)
    targets = (pictures[:, 0] > 0).long()
    found = fit(segmenter(), (pictures, targets), method=DeepEnsemble(2, BASE))
    return replace(found, rule=Tiled(found.rule, 2))


def _calibrated(method: str) -> Callable[[], Predictor]:
    def made() -> Predictor:
        data = (inputs(), (inputs()[:, 0] > 0).long())
        return classes(method=BASE).calibrated(data, method=method, level=0.8)

    return made


def _variances() -> Predictor:
    found = numbers(GaussianNoise(0.5), method=Laplace())
    return found.calibrated((inputs(), inputs().sin()), method="temperature")


def _updated() -> Predictor:
    return classes(method=Laplace()).update((inputs() + 1, (inputs()[:, 0] > 0).long()))


CASES: dict[str, Callable[[], Predictor]] = {
    "point": lambda: classes(method=BASE),
    "snapshots": lambda: classes(method=replace(BASE, snapshots=Snapshots((1, 2)))),
    "ensemble": lambda: classes(method=DeepEnsemble(2, BASE)),
    "chains": lambda: classes(method=HMC(warmup=20, draws=2, chains=2, max_steps=4)),
    "dropout": lambda: classes(method=MCDropout(BASE)),
    "mean-field": lambda: classes(method=MeanField(epochs=3)),
    "swag": lambda: classes(method=SWAG(rank=2, base=BASE, epochs=3)),
    "unit-blocks": lambda: classes(method=RebasedGaussian(DeepEnsemble(3, BASE), per_unit=True)),
    "kfac": lambda: classes(method=Laplace()),
    "full": lambda: classes(method=Laplace(Full())),
    "diagonal": lambda: classes(method=Laplace(DiagonalOnly())),
    "low-rank": lambda: classes(method=Laplace(LowRank(2))),
    "last-layer": lambda: classes(method=Laplace(subset=LastLayer())),
    "subnetwork": lambda: classes(method=Laplace(subset=Subnetwork(4))),
    "matrix-free": lambda: classes(method=Laplace(MatrixFree(2))),
    "row-blocks": lambda: classes(
        method=Laplace(tuning=None),
        prior=GaussianPrior(
            {
                "0.weight": 2.0,
                "0.bias": 2.0,
                "3.weight": torch.tensor([[1.0], [4.0]]),
                "3.bias": torch.tensor([1.0, 4.0]),
            }
        ),
    ),
    "multi-mode": lambda: classes(method=MultiMode(SWAG(rank=2, base=BASE, epochs=3), 2)),
    "updated": _updated,
    "prior": lambda: classes(
        method=Laplace(tuning=None),
        prior=GaussianPrior(
            {"0.weight": 2.0, "0.bias": 1.0, "3.weight": torch.ones(2, 3), "3.bias": 3.0}
        ),
    ),
    "noise": lambda: numbers(GaussianNoise(torch.tensor([0.1, 0.2])), method=Laplace()),
    "correlated-noise": lambda: numbers(MultivariateNoise(torch.eye(2)), method=BASE),
    "noise-by-input": lambda: numbers(HeteroscedasticGaussian(), method=BASE),
    "answers": lambda: fit(
        perceptron(), (inputs(), (inputs() > 0).float()), method=BASE, likelihood=Bernoulli()
    ),
    "probit": lambda: ruled(Linearised(Probit())),
    "bridge": lambda: ruled(Linearised(LaplaceBridge())),
    "softmax-draws": lambda: ruled(Linearised(SampledSoftmax(8))),
    "temperature": _calibrated("temperature"),
    "vector": _calibrated("vector"),
    "conformal": _calibrated("conformal"),
    "variances": _variances,
    "symmetrised": _symmetrised,
    "tiles": _tiled,
}
MODULES = {"symmetrised": normalised, "tiles": segmenter}


def module_of(name: str) -> nn.Module:
    """The architecture of a file."""
    return MODULES.get(name, perceptron)()


def inputs_of(name: str) -> torch.Tensor:
    """What a file is asked for."""
    return inputs().repeat(1, 8).reshape(6, 1, 4, 4) if name == "tiles" else inputs()


def told(name: str, predictor: Predictor) -> dict[str, object]:
    """What a predictor says, as JSON."""
    found = predictor(inputs_of(name))
    variance = None if found.variance is None else found.variance.flatten().tolist()
    return {
        "mean": found.mean.flatten().tolist(),
        "variance": variance,
        "log_evidence": predictor.log_evidence,
    }


def main() -> None:
    """Writes the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in CASES.items():
        path = FOLDER / f"{name}.safetensors"
        if not path.exists():
            predictor = make()
            predictor.save(path)
            path.with_suffix(".json").write_text(json.dumps(told(name, predictor)) + "\n")


if __name__ == "__main__":
    main()
