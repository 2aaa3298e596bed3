"""Torch's default dtype changes no result: that of the network counts."""

import pytest
import torch
from torch import nn

import coset
from methods import LAPLACES, METHODS

ALL = {**METHODS, **LAPLACES}


def numbers(name, dtype, default):
    before = torch.get_default_dtype()
    inputs = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = (inputs[:, 0] > 0).long()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2)).to(dtype)
    torch.set_default_dtype(default)
    try:
        predictor = coset.fit(module, (inputs, targets), method=ALL[name])
        predictions = predictor(inputs)
        report = predictor.posterior.report
        drawn = predictor.posterior.sample(2, generator=torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(before)
    tensors = [predictions.mean, predictions.members, *drawn.values()]
    return tensors, (report.log_evidence, dict(report.diagnostics))


def check(name, dtype):
    (one, told), (other, also) = (
        numbers(name, dtype, default) for default in (torch.float32, torch.float64)
    )
    assert [t.dtype for t in one] == [t.dtype for t in other]
    assert all(map(torch.equal, one, other))
    assert str(told) == str(also)  # texts, for some numbers are none


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name", ["map", "dropout", "mean field", "SWAG", "SGHMC", "HMC", "NUTS", "KFAC", "full"]
)
def test_the_default_dtype_changes_no_fit(name, dtype):
    check(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_default_dtype_changes_no_fit_of_any_method(name, dtype):
    check(name, dtype)
