"""A fit of Laplace that is killed and taken up again is the uninterrupted one, bit for bit."""

import math
from dataclasses import replace

import pytest
import torch
from laplace_problems import classifier, regressor, train
from torch import nn

from coset import (
    KFAC,
    Checkpoint,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    Laplace,
    LastLayer,
    LowRank,
    MultivariateNoise,
    Subnetwork,
    fit,
)

pytestmark = pytest.mark.usefixtures("double")


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def classes():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    targets = torch.arange(600) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    inputs = centres[targets] + torch.randn(600, 2)
    module = train(classifier(), inputs, targets, steps=60)
    torch.set_default_dtype(torch.float32)
    return module, (inputs, targets), {}


@pytest.fixture(scope="module")
def numbers():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    inputs = torch.linspace(-2, 2, 600).unsqueeze(1)
    targets = torch.sin(2 * inputs) + 0.1 * torch.randn_like(inputs)
    module = train(regressor(), inputs, targets, steps=100)
    torch.set_default_dtype(torch.float32)
    return module, (inputs, targets), {"likelihood": GaussianNoise()}


@pytest.fixture
def in_stretches(monkeypatch):
    """Passes are written down after few rows, and no Jacobian is kept as a matrix."""
    monkeypatch.setattr("coset.inference.laplace.budget.STRETCH", 2e4)
    monkeypatch.setattr("coset.inference.laplace.budget.FLOOR", 0.0)
    monkeypatch.setattr("coset.curvature.jacobian._COLUMNS", 0)


METHODS = {
    "some rows": Laplace(effort=8.0),
    "all rows": Laplace(effort=math.inf),
    "plain": Laplace(KFAC(corrected=False)),
    "full": Laplace(Full()),
    "diagonal": Laplace(DiagonalOnly()),
    "low rank": Laplace(LowRank(5)),
    "last layer": Laplace(subset=LastLayer()),
    "subnetwork": Laplace(subset=Subnetwork(9)),
    "untuned": Laplace(tuning=None),
}


def run(case, method, *, killed_after=1.0):
    """The predictor, and how often progress was told; killed beyond a share of the work."""
    module, data, options = case
    told = []

    def progress(done, line):
        told.append(line)
        if done > killed_after:
            raise Killed

    generator = torch.Generator().manual_seed(3)
    predictor = fit(module, data, method=method, generator=generator, progress=progress, **options)
    return predictor, len(told)


def same(one, other, inputs):
    assert one.log_evidence == other.log_evidence
    assert one.posterior.report.diagnostics == other.posterior.report.diagnostics
    assert one.posterior.report.warnings == other.posterior.report.warnings
    ours, theirs = one(inputs), other(inputs)
    assert torch.equal(ours.covariance, theirs.covariance)
    assert torch.equal(ours.mean, theirs.mean)


def check(case, method, folder):
    plain, count = run(case, method)
    method = replace(method, checkpoint=Checkpoint(folder))
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(Killed):
            run(case, method, killed_after=share)
    torch.rand(1)  # somebody else has drawn since
    again, left = run(case, method)
    same(plain, again, case[1][0][:20])
    return count, left


@pytest.mark.parametrize("name", METHODS)
def test_classes_taken_up_are_the_same(name, classes, tmp_path, in_stretches):
    count, left = check(classes, METHODS[name], tmp_path)
    if name in ("some rows", "all rows"):
        assert left < 0.6 * count  # most passes were read, not made again
        assert len(list(tmp_path.glob("step-*.safetensors"))) > 5


@pytest.mark.parametrize("name", ["some rows", "all rows", "plain", "last layer"])
def test_numbers_taken_up_are_the_same(name, numbers, tmp_path, in_stretches):
    check(numbers, METHODS[name], tmp_path)


def test_correlated_noise_taken_up_is_the_same(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(60, 2)
    data = inputs, inputs @ torch.randn(2, 2) + 0.1 * torch.randn(60, 2)
    case = nn.Linear(2, 2), data, {"likelihood": MultivariateNoise()}
    check(case, Laplace(), tmp_path)


def test_stretches_measure_the_same_curvature(classes, monkeypatch):
    """Sums of stretches round otherwise, and nothing more."""
    inputs = classes[1][0][:20]
    whole = run(classes, Laplace(effort=math.inf))[0](inputs).covariance
    monkeypatch.setattr("coset.inference.laplace.budget.STRETCH", 2e4)
    parts = run(classes, Laplace(effort=math.inf))[0](inputs).covariance
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)


def test_a_damaged_step_and_another_run_are_refused(classes, tmp_path):
    method = Laplace(checkpoint=Checkpoint(tmp_path))
    run(classes, method)
    with pytest.raises(CosetError, match=r"settings\.effort"):
        run(classes, replace(method, effort=8.0))
    other = classes[0], (classes[1][0] + 1, classes[1][1]), {}
    with pytest.raises(CosetError, match="record of a run"):
        run(other, method)
    step = sorted(tmp_path.glob("step-*.safetensors"))[0]
    content = bytearray(step.read_bytes())
    content[-9] ^= 1
    step.write_bytes(bytes(content))
    with pytest.raises(CosetError, match=step.name):
        run(classes, method)
