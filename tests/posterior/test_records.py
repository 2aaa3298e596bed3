import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    FitReport,
    GaussianNoise,
    GaussianPrior,
    HeteroscedasticGaussian,
    Mixture,
    MonteCarlo,
    PointMass,
    Samples,
)
from coset.posterior.records import describe, restore

WEIGHTS = {"0.weight": torch.randn(2, 3), "0.bias": torch.randn(2)}
STACK = {name: torch.stack([tensor] * 3) for name, tensor in WEIGHTS.items()}
REPORT = FitReport(
    likelihood=GaussianNoise(torch.tensor([0.1, 0.2])),
    prior=GaussianPrior({"0.weight": torch.rand(2, 1), "0.bias": 2.0}),
    log_evidence=-1.25,
    diagnostics={"loss": 0.1 + 0.2},
    warnings=("did not converge",),
)
VALUES = {
    "point": PointMass(WEIGHTS, REPORT),
    "samples": Samples({"w": torch.randn(3, 2)}, torch.randn(3)),
    "mixture": Mixture((PointMass(WEIGHTS, REPORT), Samples(STACK)), torch.zeros(2)),
    "categorical": Categorical(),
    "bernoulli": Bernoulli(),
    "noise": GaussianNoise(0.5),
    "unknown noise": GaussianNoise(),
    "heteroscedastic": HeteroscedasticGaussian(),
    "prior": GaussianPrior(0.3),
    "rule": MonteCarlo(draws=7),
}


def same(first, second):
    """Equality that looks into tensors."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second) and first.dtype == second.dtype
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if hasattr(first, "__dataclass_fields__"):
        names = first.__dataclass_fields__
        return type(first) is type(second) and all(
            same(getattr(first, name), getattr(second, name)) for name in names
        )
    return first == second


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_come_back_through_json(value):
    facts, tensors = describe(value, "x")
    assert same(restore(json.loads(json.dumps(facts)), tensors), value)


def test_numbers_of_numpy_are_numbers():
    """As likelihoods and priors take them."""
    facts, tensors = describe(GaussianNoise(np.float32(0.5)), "x")
    assert restore(json.loads(json.dumps(facts)), tensors) == GaussianNoise(0.5)
    facts, tensors = describe(GaussianPrior({"w": np.array([1.0, 2.0])}), "x")
    back = restore(json.loads(json.dumps(facts)), tensors)
    assert torch.equal(back.precision["w"], torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_tensors_are_named_after_their_place():
    _, tensors = describe(VALUES["mixture"], "posterior")
    assert "posterior.components.0.weights.0.bias" in tensors


def test_other_classes_are_not_written():
    @dataclass(frozen=True)
    class Categorical:  # a stranger by a known name
        pass

    for stranger in (object(), Categorical(), lambda: 1):
        with pytest.raises(CosetError, match="cannot be saved"):
            describe(stranger, "likelihood")


@pytest.mark.parametrize(
    "facts",
    [
        {"family": "Popen", "fields": {}},
        {"family": "PointMass", "fields": {"weights": {}, "evil": 1}},
        {"tensor": "missing"},
        {"nothing": "known"},
    ],
)
def test_other_facts_are_not_read(facts):
    with pytest.raises(CosetError):
        restore(facts, {})
