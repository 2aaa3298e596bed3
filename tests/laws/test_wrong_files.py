"""Files whose content is wrong under a right digest: a refusal or a result, never a traceback."""

import functools

import pytest
import torch
from torch import nn

import coset
from corrupted import corrupted
from coset import (
    CosetError,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    MultivariateNoise,
)
from coset.store import load_record, save_record
from methods import LAPLACES, METHODS

FEW, MANY = 12, 400
"""Corrupted files of each kind."""

SAVED = {
    name: {**METHODS, **LAPLACES}[name]
    for name in (
        "map",
        "ensemble",
        "dropout",
        "SWAG",
        "mean field",
        "rebased, low rank",
        "rebased, unit by unit",
        "multi-Laplace",
        "multi-dropout",
        *LAPLACES,
    )
}
NOISES = {
    "noise of each output": GaussianNoise(torch.tensor([0.1, 0.2])),
    "noise covariance": MultivariateNoise(torch.eye(2)),
}
PRECISIONS = {"0.weight": 2.0, "0.bias": 2.0, "3.weight": torch.ones(2, 5), "3.bias": 1.0}


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2))


@functools.cache
def saved(name, folder):
    inputs, classes = data()
    if name in NOISES:
        options = {"method": Laplace(curvature=Full(), tuning=None), "likelihood": NOISES[name]}
        predictor = coset.fit(
            perceptron(), (inputs, inputs[:, :2]), prior=GaussianPrior(PRECISIONS), **options
        )
    else:
        predictor = coset.fit(perceptron(), (inputs, classes), method=SAVED[name])
    predictor.save(folder / "right")
    return load_record(folder / "right")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def read_and_use(path):
    """Everything that one does with a predictor; what is said where it cannot be done."""
    try:
        predictor = coset.load(path, perceptron())
        repr(predictor)
        predictor(data()[0][:4])
        predictor.posterior.sample(2, generator=torch.Generator().manual_seed(0))
        predictor.save(path.with_name("again"))
    except CosetError as refusal:
        return str(refusal)
    return ""


def check_files(name, folder, seeds):
    tensors, facts = saved(name, folder)
    refusals = []
    for seed in seeds:
        save_record(folder / "wrong", *corrupted(tensors, facts, f"{name} {seed}"))
        refusals.append(read_and_use(folder / "wrong"))
    assert any(refusals)
    assert not any("\n" in refusal for refusal in refusals)
    save_record(folder / "right", tensors, facts)
    assert not read_and_use(folder / "right")


@pytest.mark.parametrize("name", [*SAVED, *NOISES])
def test_a_wrong_predictor_is_refused_or_predicts(name, folder):
    check_files(name, folder, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAVED, *NOISES])
def test_many_wrong_predictors_are_refused_or_predict(name, folder):
    check_files(name, folder, range(FEW, MANY))


def test_a_predictor_for_another_type_of_numbers_is_refused_by_name(folder):
    tensors, facts = saved("last layer", folder)
    name = "posterior.fixed.0.bias"
    save_record(folder / "wrong", {**tensors, name: tensors[name][:2]}, facts)
    with pytest.raises(
        CosetError, match=r"wrong: got fixed tensors with '0\.bias' of shape \(2,\)"
    ):
        coset.load(folder / "wrong", perceptron())
    save_record(folder / "wrong", {**tensors, name: tensors[name].half()}, facts)
    with pytest.raises(
        CosetError, match=r"wrong: got a posterior with '0\.bias' of type torch\.fl"
    ):
        coset.load(folder / "wrong", perceptron())
