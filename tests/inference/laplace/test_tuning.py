"""Short ways of tuning, against the long ones."""

import pytest
import torch
from torch import nn

from coset import KFAC, Laplace, fit
from coset.curvature.sampled import MonteCarloFisher

pytestmark = pytest.mark.usefixtures("double")


def problem(classes=8):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, classes),
    )  # fmt: skip
    inputs = torch.randn(80, 1, 7, 7)
    targets = (module(inputs) + 0.1 * torch.randn(80, classes)).argmax(1)
    return module, (inputs, targets)


def tuned(module, data):
    report = fit(module, data, method=Laplace(KFAC())).posterior.report
    return report.log_evidence, report.diagnostics["effective_weights"]


@pytest.fixture
def seen(monkeypatch):
    """One entry for each curvature that is measured through random columns."""
    found = []
    build = MonteCarloFisher.build
    monkeypatch.setattr(
        MonteCarloFisher, "build", lambda *a, **k: found.append(1) or build(*a, **k)
    )
    return found


def test_random_columns_on_the_way_end_at_the_exact_curvature(seen, monkeypatch):
    module, data = problem()
    short = tuned(module, data)
    assert len(seen) == 3  # the last, after them, is exact
    monkeypatch.setattr("coset.inference.laplace.tuning._DRAWS", 100)
    long = tuned(module, data)
    assert len(seen) == 3
    assert short == pytest.approx(long, rel=0.02)


def test_few_classes_have_no_random_columns(seen):
    tuned(*problem(classes=3))
    assert seen == []


def test_a_mode_sought_in_a_span_tunes_as_newton_does(monkeypatch):
    module, data = problem()
    exact = tuned(module, data)
    monkeypatch.setattr("coset.curvature.tangent.DIRECT", 0)
    assert tuned(module, data) == pytest.approx(exact, rel=0.02)
    monkeypatch.setattr("coset.curvature.jacobian.Jacobian.of.__kwdefaults__", {"kept": 1})
    assert tuned(module, data) == pytest.approx(exact, rel=0.02)


def test_filters_that_sleep_on_all_data_keep_the_scale_of_their_weights():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    inputs, targets = torch.randn(40, 1, 8, 8), torch.randint(3, (40,))
    for _ in range(20):
        module(inputs)  # running statistics
    asleep = [3, 8]
    module[4].bias.data[asleep] = -8.0
    predictor = fit(module.eval(), (inputs, targets))
    found = predictor.posterior.report.prior.precision["3.weight"].flatten()[asleep]
    natural = 72 / module[3].weight[asleep].detach().square().sum((1, 2, 3))
    torch.testing.assert_close(found, natural)
    awake = 20 * inputs  # wakes them: rounding had left them a curvature of 1e-30 and variance 1e25
    assert bool((module[:6](awake)[:, asleep] > 0).any())
    assert float(predictor(awake).variance.max()) < 1e3
