"""Monte Carlo dropout and mixtures."""

import pytest
import torch
from torch import nn

import coset
from coset import (
    CosetError,
    DeepEnsemble,
    Laplace,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
)
from problems import logistic

BASE = MaximumAPosteriori(epochs=3)


def data():
    inputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def dropping(rate=0.4):
    return nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Dropout(rate), nn.Linear(40, 2))


def test_one_draw_is_one_function():
    predictor = coset.fit(dropping(), data(), method=MCDropout(BASE))
    twice = predictor(torch.cat([data()[0]] * 2)).members
    assert torch.equal(twice[:, :30], twice[:, 30:])
    assert float(twice.std(0).max()) > 0.01


def test_rows_differ_in_the_classic_form():
    predictor = coset.fit(dropping(), data(), method=MCDropout(BASE, per_example=True))
    twice = predictor(torch.cat([data()[0]] * 2)).members
    assert not torch.equal(twice[:, :30], twice[:, 30:])


def test_chunks_do_not_change_the_masks_of_rows():
    predictor = coset.fit(dropping(), data(), method=MCDropout(BASE, per_example=True))
    rows = data()[0][:1].expand(1200, -1)
    whole, parts = (predictor(rows, rule=coset.MonteCarlo(2, memory=m)) for m in (1 << 30, 1 << 12))
    torch.testing.assert_close(parts.members, whole.members)
    assert len(whole.members[0].unique(dim=0)) > 1100  # equal rows, masks of their own


def test_the_mean_over_masks_is_that_of_torchs_dropout():
    """4,000 draws of ours and of torch: means of outputs agree to five standard errors."""
    module = dropping()
    for per_example in (False, True):
        method = MCDropout(BASE, per_example=per_example)
        predictor = coset.fit(module, data(), method=method)
        trained = coset.assign(dropping(), predictor.posterior.weights).train()
        inputs = data()[0][:4]
        drawn = predictor.posterior.sample(4000, generator=torch.Generator().manual_seed(1))
        ours = torch.func.vmap(predictor.network.apply, in_dims=(0, None))(drawn, inputs)
        with torch.no_grad():
            theirs = torch.stack([trained(inputs) for _ in range(4000)])
        error = (ours.mean(0) - theirs.mean(0)) / (theirs.std(0) * (2 / 4000) ** 0.5)
        assert float(error.abs().max()) < 5
        torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.1, atol=0)


def test_the_rate_of_the_masks():
    predictor = coset.fit(dropping(0.4), data(), method=MCDropout(BASE))
    drawn = predictor.posterior.sample(5000, generator=torch.Generator().manual_seed(1))
    mask = drawn["dropout:0"]
    assert mask.shape == (5000, 1, 40)
    # 200,000 units: standard error 0.0011
    assert float((mask > 0).double().mean()) == pytest.approx(0.6, abs=0.006)
    torch.testing.assert_close(mask.max(), torch.tensor(1 / 0.6))


@pytest.mark.parametrize("module", [nn.Linear(3, 2), dropping(0.0)])
def test_networks_without_dropout_are_refused(module):
    with pytest.raises(CosetError, match=r"without dropout.*add nn\.Dropout"):
        coset.fit(module, data(), method=MCDropout(BASE))


def test_inputs_of_another_size_are_refused():
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    inputs = torch.randn(8, 1, 6, 6)
    predictor = coset.fit(module, (inputs, torch.arange(8) % 2), method=MCDropout(BASE))
    with pytest.raises(CosetError, match="needed a shape that its mask"):
        predictor(torch.randn(2, 1, 9, 9))


def test_modes_weigh_alike_or_by_their_evidence():
    problem = logistic()
    generator = torch.Generator().manual_seed(0)
    equal = MultiMode(MeanField(epochs=2), 3).fit(problem, generator=generator)
    torch.testing.assert_close(equal.log_weights.exp(), torch.full((3,), 1 / 3))
    weighed = MultiMode(MeanField(epochs=2), 3, by_evidence=True).fit(
        problem, generator=torch.Generator().manual_seed(0)
    )
    bounds = torch.tensor(
        [part.report.diagnostics["evidence_bound"] for part in weighed.components],
        dtype=torch.float64,
    )
    torch.testing.assert_close(weighed.log_weights, bounds.log_softmax(0))
    with pytest.raises(CosetError, match="without an evidence"):
        MultiMode(DeepEnsemble(2, BASE), 2, by_evidence=True).fit(problem, generator=generator)
    with pytest.raises(CosetError, match="modes=0"):
        MultiMode(BASE, 0)


def test_modes_of_laplace_are_trained_first_and_predict_linearised():
    method = MultiMode(Laplace(), 2, base=BASE)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    predictor = coset.fit(module, data(), method=method)
    one, other = predictor.posterior.components
    assert not torch.equal(one.mean["0.weight"], other.mean["0.weight"])
    assert isinstance(predictor.rule, coset.Linearised)
    assert predictor(data()[0]).mean.shape == (30, 2)
    weighed = coset.fit(module, data(), method=MultiMode(Laplace(), 2, by_evidence=True, base=BASE))
    evidences = torch.tensor(
        [part.report.log_evidence for part in weighed.posterior.components], dtype=torch.float64
    )
    torch.testing.assert_close(weighed.posterior.log_weights, evidences.log_softmax(0))


def test_modes_begin_where_they_are_told():
    problem = logistic()
    own = problem.network.weights
    start = {name: torch.stack([tensor, tensor + 1]) for name, tensor in own.items()}
    still = MaximumAPosteriori(epochs=1, optimiser=coset.SGD(1e-12))
    mixture = MultiMode(still, 2).fit(
        problem, start=start, generator=torch.Generator().manual_seed(0)
    )
    for number, part in enumerate(mixture.components):
        torch.testing.assert_close(part.weights["weight"], start["weight"][number])
