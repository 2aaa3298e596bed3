import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from coset import (
    HMC,
    KFAC,
    SGHMC,
    SWAG,
    DeepEnsemble,
    GaussianNoise,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    Problem,
    fit,
)
from coset.inference.cost import Cost, cost_of, foretell

BASE = MaximumAPosteriori(epochs=3)


def network():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def problem(rows=100):
    torch.manual_seed(0)
    return Problem.of(network(), (torch.randn(rows, 2), torch.arange(rows) % 3))


@pytest.mark.parametrize(
    ("method", "gradients"),
    [
        (BASE, 300),
        (DeepEnsemble(4, BASE), 1200),
        (MCDropout(BASE), 300),
        (SWAG(rank=2, base=BASE, epochs=5), 800),
        (MeanField(epochs=7), 700),
        (MultiMode(MeanField(epochs=7), 2), 1400),
        (SGHMC(burn_in=10, draws=5, thinning=2, chains=3, batch_size=32), 3 * 20 * 32),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_gradients_of_training_are_counted_by_hand(method, gradients):
    assert cost_of(method, problem()) == Cost(0, gradients)


def test_what_cannot_be_counted_before_is_not():
    assert cost_of(HMC(), problem()) is None
    assert list(foretell(HMC(), problem(), least=0.0)) == []


def test_laplace_counts_the_passes_of_its_plan():
    whole, last = (cost_of(Laplace(subset=s), problem(10)) for s in (None, LastLayer()))
    # outputs; a look and two columns for it; 16 directions there and back; three rough looks of two
    # columns along the axes; the last one
    tuning = 1 + (1 + 2 * 2) + 16 * 2 * 2 + 3 * (1 + 2 * 3)
    assert whole == Cost(10 * (tuning + 1 + 2 * 3))
    assert last == Cost(20)
    plain = Laplace(KFAC(corrected=False), tuning=None)
    assert cost_of(plain, problem(10)) == Cost(10 * (2 + 2 * 2))
    assert cost_of(Laplace(effort=4.0), problem(500)).forward <= 12 * 500


def test_columns_of_regression_are_its_outputs():
    torch.manual_seed(0)
    data = torch.randn(10, 2), torch.randn(10, 5)
    given = Problem.of(nn.Linear(2, 5), data, likelihood=GaussianNoise(1.0))
    assert cost_of(Laplace(tuning=None), given) == Cost(10 * (2 + 5 * 2 + 1 + 5 * 3))


def test_a_long_fit_says_what_would_be_cheaper(monkeypatch):
    speed = Cost(0.1, 1.0)
    monkeypatch.setattr("coset.inference.cost.speed_of", lambda problem: speed)
    said = list(foretell(Laplace(), problem(15_000), least=5.0))
    assert said == [
        "Laplace() on 15,000 rows: about 1 d 16 h, for some 98 runs of each row",
        "cheaper: Laplace(subset=LastLayer()), about 50 min; Laplace(effort=3), about 3 h 44 min",
    ]
    (first, _) = foretell(Laplace(effort=4.0), problem(15_000), least=5.0)
    assert first.endswith("curvature from all through 1 random column")
    (line,) = foretell(BASE, problem(10), least=5.0)
    assert line == "MaximumAPosteriori() on 10 rows: about 30 s, for some 3 gradients of each row"
    assert list(foretell(BASE, problem(1), least=5.0)) == []


def test_measuring_the_speed_changes_no_result(capsys, monkeypatch):
    """The look at a clock draws nothing: a network with noise of its own fits the same."""

    class Noisy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs + 0.1 * torch.randn_like(inputs))

    monkeypatch.setattr("coset.predictor.PATIENCE", 0.0)
    data, module = (torch.randn(20, 2), torch.arange(20) % 3), Noisy(2, 3)
    fits = [fit(module, data, method=BASE, progress=each).posterior for each in (False, True)]
    assert "MaximumAPosteriori() on 20 rows" in capsys.readouterr().err
    for name, tensor in fits[0].weights.items():
        assert torch.equal(tensor, fits[1].weights[name])


def test_a_fit_on_a_terminal_says_its_cost_before_it_begins():
    pty = pytest.importorskip("pty")
    script = textwrap.dedent(
        """
        import torch
        from torch import nn
        import coset, coset.predictor, coset.progress
        coset.predictor.PATIENCE = coset.progress.PATIENCE = 0.0
        torch.manual_seed(0)
        data = torch.randn(20, 2), torch.arange(20) % 3
        coset.fit(nn.Linear(2, 3), data)
        """
    )
    master, slave = pty.openpty()
    done = subprocess.run([sys.executable, "-c", script], stderr=slave, check=False)
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0, shown
    assert "Laplace() on 20 rows: about 0 s, for some" in shown
    assert shown.index("Laplace()") < shown.index("0 %"), shown
