"""Long runs: killed and taken up again, told about, refused when they cannot work."""

import pytest
import torch
from sampled_problems import data, likelihood, perceptron, trained
from torch import nn

from coset import (
    ByEvidence,
    Checkpoint,
    CosetError,
    GaussianNoise,
    Laplace,
    MultivariateNoise,
    fit,
)
from coset.curvature.matrix_free import (
    ConjugateGradients,
    LanczosQuadrature,
    MatrixFree,
    StochasticDescent,
)
from coset.inference.laplace.part import Subnetwork
from coset.inference.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("double")

SOLVERS = {
    "conjugate gradients": ConjugateGradients(tolerance=1e-3),
    "descent": StochasticDescent(epochs=4, batch=5),
}


class Killed(Exception):
    pass


def run(folder, solver, kind="classes", kill=None, seed=0, samples=3):
    torch.manual_seed(0)
    pair = data(kind)
    module = trained(perceptron(), pair, likelihood(kind), steps=50)
    calls = []

    def progress(share, line):
        calls.append((share, line))
        if kill is not None and len(calls) > kill:
            raise Killed

    checkpoint = None if folder is None else Checkpoint(folder, every=3)
    tuning = ByEvidence(steps=2)
    predictor = fit(
        module,
        pair,
        method=Laplace(MatrixFree(samples, solver), tuning=tuning, checkpoint=checkpoint),
        likelihood=GaussianNoise() if kind == "regression" else likelihood(kind),
        generator=torch.Generator().manual_seed(seed),
        progress=progress,
    )
    return predictor, calls


@pytest.mark.parametrize("kind", ["regression", "classes"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_killed_run_goes_on_bit_for_bit(kind, solver, tmp_path):
    whole, calls = run(None, solver, kind)
    for kill in range(2, len(calls), max(1, len(calls) // 2)):
        folder = tmp_path / str(kill)
        with pytest.raises(Killed):
            run(folder, solver, kind, kill)
        again, rest = run(folder, solver, kind)
        assert len(rest) < len(calls) or kill < 8
        for name, tensor in whole.posterior.deviations.items():
            assert torch.equal(tensor, again.posterior.deviations[name])
        assert again.posterior.report.diagnostics == whole.posterior.report.diagnostics
        assert again.likelihood == whole.likelihood


def test_a_run_may_be_killed_after_any_of_its_records(tmp_path, monkeypatch):
    solver = SOLVERS["conjugate gradients"]
    whole, _ = run(None, solver)
    write, written = RunRecord.write, []

    def dying(self, state):
        write(self, state)
        written.append(state)
        if len(written) == last:
            raise Killed

    monkeypatch.setattr(RunRecord, "write", dying)
    last = 0
    run(tmp_path / "whole", solver)
    for last in range(1, len(written)):
        written.clear()
        with pytest.raises(Killed):
            run(tmp_path / str(last), solver)
        again, _ = run(tmp_path / str(last), solver)
        for name, tensor in whole.posterior.deviations.items():
            assert torch.equal(tensor, again.posterior.deviations[name]), last
        assert again.log_evidence == whole.log_evidence


def test_a_finished_run_is_read_back(tmp_path):
    first, _ = run(tmp_path, SOLVERS["conjugate gradients"])
    again, calls = run(tmp_path, SOLVERS["conjugate gradients"])
    assert torch.equal(
        first.posterior.deviations["0.weight"], again.posterior.deviations["0.weight"]
    )
    assert not [line for _, line in calls if "iteration" in line]


def test_the_record_of_another_run_is_refused(tmp_path):
    run(tmp_path, SOLVERS["conjugate gradients"])
    with pytest.raises(CosetError, match="seed"):
        run(tmp_path, SOLVERS["conjugate gradients"], seed=1)
    with pytest.raises(CosetError, match=r"settings\.samples 3; needed settings\.samples 4"):
        run(tmp_path, SOLVERS["conjugate gradients"], samples=4)


def test_progress_rises_to_one():
    _, calls = run(None, SOLVERS["conjugate gradients"])
    shares = [share for share, _ in calls]
    assert shares == sorted(shares)
    assert calls[-1] == (1.0, "done")
    assert any("residual" in line for _, line in calls)


def attempt(module=None, *, curvature=None, pair=None, **options):
    pair = data("classes") if pair is None else pair
    method = Laplace(curvature=curvature or MatrixFree(2), **options)
    return fit(module or perceptron(), pair, method=method)


def test_too_few_iterations_are_named_with_the_residual():
    with pytest.raises(CosetError, match=r"residual of .* after 1 iterations.*preconditioner"):
        attempt(curvature=MatrixFree(2, ConjugateGradients(tolerance=1e-9, iterations=1)))


def test_what_would_not_fit_is_refused_with_what_would():
    wide = nn.Linear(2, 2 * 10**5)
    pair = torch.randn(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(CosetError, match=r"600,000 weights and 1000 samples.*samples=\d+"):
        attempt(wide, curvature=MatrixFree(1000, memory=2 << 30), pair=pair)
    with pytest.raises(CosetError, match="LastLayer"):
        attempt(wide, curvature=MatrixFree(4, memory=1 << 20), pair=pair)


def test_batch_norm_without_running_statistics_is_refused():
    module = nn.Sequential(
        nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
    )
    with pytest.raises(CosetError, match="batch norm '1' without running statistics"):
        attempt(module)


class Steep(nn.Module):
    """Finite outputs with a derivative that is not: a root at zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x).abs().sqrt()


def test_derivatives_that_are_not_finite_are_refused():
    with pytest.raises(CosetError, match="not finite"):
        attempt(Steep())
    broken = perceptron()
    with torch.no_grad():
        broken[0].weight.fill_(torch.nan)
    with pytest.raises(CosetError, match="not finite"):
        attempt(broken)


def test_a_rate_that_diverges_is_named():
    solver = StochasticDescent(epochs=20, batch=5, rate=1e30)
    with pytest.raises(CosetError, match=r"rate of 1\.0e\+30"):
        attempt(curvature=MatrixFree(2, solver))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples=0"),
        ({"features": "g"}, "features='g'"),
        ({"memory": -1}, "memory=-1"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(CosetError, match=message):
        MatrixFree(**options)


def test_solver_settings_are_checked():
    for broken in (
        lambda: ConjugateGradients(tolerance=0),
        lambda: StochasticDescent(batch=0),
        lambda: StochasticDescent(momentum=1.0),
        lambda: LanczosQuadrature(probes=1),
    ):
        with pytest.raises(CosetError, match="needed"):
            broken()


def test_choices_that_exclude_each_other_are_refused():
    with pytest.raises(CosetError, match="Subnetwork"):
        attempt(subset=Subnetwork(3))
    with pytest.raises(CosetError, match="newton"):
        attempt(curvature=MatrixFree(2, StochasticDescent()), tuning=ByEvidence(mean="newton"))
    with pytest.raises(CosetError, match="unknown size"):
        fit(
            perceptron(),
            data("regression"),
            method=Laplace(curvature=MatrixFree(2), tuning=None),
            likelihood=GaussianNoise(),
        )
    with pytest.raises(CosetError, match=r"unknown covariance with MatrixFree\(\)"):
        fit(
            perceptron(),
            data("regression"),
            method=Laplace(curvature=MatrixFree(2)),
            likelihood=MultivariateNoise(),
        )


def test_many_data_go_in_batches():
    assert isinstance(MatrixFree().settled(10_000), ConjugateGradients)
    assert isinstance(MatrixFree().settled(10_001), StochasticDescent)
