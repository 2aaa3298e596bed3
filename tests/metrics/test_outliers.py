import pytest
import torch

from coset.metrics import energy_score, maximum_logit_score, maximum_probability_score


def test_scores_against_the_formulas(generator):
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    p = torch.softmax(logits, -1)
    torch.testing.assert_close(maximum_probability_score(p), -p.max(1).values)
    torch.testing.assert_close(maximum_logit_score(logits), -logits.max(1).values)
    torch.testing.assert_close(
        energy_score(logits, temperature=2.0), -2 * (logits / 2).exp().sum(1).log()
    )


def test_energy_tends_to_the_maximum_logit(generator):
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    cold = energy_score(logits, temperature=1e-4)
    torch.testing.assert_close(cold, maximum_logit_score(logits), atol=1e-3, rtol=0)


def test_a_flat_prediction_scores_higher_than_a_sure_one():
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    flat, sure = maximum_probability_score(p)
    assert flat > sure
    assert float(flat) == pytest.approx(-0.5)
