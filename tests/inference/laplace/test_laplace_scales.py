"""Normalised weights have no scale: Proposition 3 for every curvature."""

import copy

import pytest
import torch
from laplace_problems import CURVATURES, label, train, wave
from torch import nn

from coset import ByEvidence, Full, GaussianNoise, GaussianPrior, Laplace, fit

pytestmark = pytest.mark.usefixtures("double")


class Normed(nn.Module):
    """A norm behind the second layer; the first keeps the input's scale."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = nn.Linear(1, 6), nn.Linear(6, 5)
        self.norm, self.last = norm, nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.second(torch.tanh(self.first(x))))))


NORMS = {
    "batch": lambda: nn.BatchNorm1d(5, eps=1e-14),
    "layer": lambda: nn.LayerNorm(5, eps=1e-14),
}


def normed(kind):
    data = wave()
    return train(Normed(NORMS[kind]()), *data, steps=150), data


def rescaled(module, factors):
    """The same function with other normalised weights."""
    changed = copy.deepcopy(module)
    with torch.no_grad():
        changed.second.weight.mul_(factors.unsqueeze(1))
        changed.second.bias.mul_(factors)
        if isinstance(changed.norm, nn.BatchNorm1d):
            changed.norm.running_mean.mul_(factors)
            changed.norm.running_var.mul_(factors.square())
    return changed


def factors_for(kind, k):
    """Each filter by its own factor where the norm allows it."""
    return k ** torch.linspace(0.5, 1.5, 5) if kind == "batch" else torch.full((5,), k)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_normalised_weights_have_no_scale(kind, recipe):
    """Proposition 3: with one precision a normalised group, the scale k does not matter."""
    module, data = normed(kind)
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    found = []
    for k in (0.1, 1.0, 10.0):
        changed = rescaled(module, factors_for(kind, torch.tensor(k)))
        torch.testing.assert_close(changed(inputs), module(inputs))
        predictor = fit(changed, data, method=Laplace(recipe), likelihood=GaussianNoise())
        found.append(predictor)
    reference = found[1](inputs).variance
    for predictor, k in zip(found, (0.1, 1.0, 10.0), strict=True):
        torch.testing.assert_close(predictor(inputs).variance, reference, rtol=2e-4, atol=1e-9)
        factors = factors_for(kind, torch.tensor(k))
        scaled = torch.as_tensor(predictor.prior.of("second.weight", changed.second.weight))
        scaled = scaled * (factors.square().unsqueeze(1) if kind == "batch" else k**2)
        torch.testing.assert_close(
            scaled.expand(5, 1),
            found[1].prior.of("second.weight", changed.second.weight).expand(5, 1),
            rtol=1e-3,
            atol=0,
        )


@pytest.mark.parametrize("recipe", CURVATURES, ids=label)
def test_a_given_precision_that_scales_along_gives_the_same_predictions(recipe):
    module, data = normed("batch")
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    variances = []
    for k in (1.0, 5.0):
        factors = factors_for("batch", torch.tensor(k))
        tables = {name: 2.0 for name, _ in module.named_parameters()}
        rows = torch.linspace(1, 3, 5) / factors.square()
        tables |= {"second.weight": rows.unsqueeze(1), "second.bias": rows}
        predictor = fit(
            rescaled(module, factors), data, method=Laplace(recipe, tuning=None),
            likelihood=GaussianNoise(0.1), prior=GaussianPrior(tables),
        )  # fmt: skip
        variances.append(predictor(inputs).variance)
    torch.testing.assert_close(variances[0], variances[1], rtol=1e-8, atol=0)


def test_a_single_precision_depends_on_the_scale():
    module, data = normed("batch")
    inputs = torch.linspace(-3, 3, 9).unsqueeze(1)
    method = Laplace(Full(), tuning=ByEvidence(groups="single"))
    spreads = [
        fit(rescaled(module, torch.full((5,), k)), data, method=method,
            likelihood=GaussianNoise())(inputs).variance
        for k in (0.1, 1.0)
    ]  # fmt: skip
    assert ((spreads[0] / spreads[1]).log().abs()).max() > 0.05
