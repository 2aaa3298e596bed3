import pytest
import torch
from metric_cases import predictions
from sklearn.metrics import accuracy_score, log_loss

from coset.metrics import accuracy, brier, negative_log_likelihood
from coset.metrics.scores import confident_answers


@pytest.fixture
def case(generator):
    return predictions(generator=generator)


def test_accuracy_is_that_of_scikit_learn(case):
    p, y = case
    assert float(accuracy(p, y)) == pytest.approx(accuracy_score(y, p.argmax(1)), abs=1e-15)


def test_accuracy_takes_the_first_of_equal_probabilities():
    assert accuracy(torch.full((2, 2), 0.5), torch.tensor([0, 1])) == 0.5


def test_ties_are_those_of_argmax(generator):
    counts = torch.randint(1, 4, (300, 3), generator=generator).double()
    p = counts / counts.sum(1, keepdim=True)
    y = torch.randint(3, (300,), generator=generator)
    confidence, right = confident_answers(p, y)
    assert right.equal(p.argmax(1) == y)
    assert confidence.equal(p.amax(1))


def test_one_class_is_always_right():
    assert accuracy(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)) == 1


def test_negative_log_likelihood_is_that_of_scikit_learn(case):
    p, y = case
    expected = log_loss(y, p, labels=range(5))
    assert float(negative_log_likelihood(p, y)) == pytest.approx(expected, abs=1e-12)


def test_impossible_targets_are_infinitely_surprising():
    assert negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).isinf()


def test_brier_is_the_squared_distance_to_the_one_hot_target(case):
    p, y = case
    expected = (p - torch.nn.functional.one_hot(y, 5)).square().sum(1).mean()
    assert float(brier(p, y)) == pytest.approx(float(expected), abs=1e-14)


def test_float32_keeps_six_digits_of_a_million_inputs(generator):
    p, y = predictions(1_000_000, 3, generator=generator)
    for metric in (accuracy, negative_log_likelihood, brier):
        assert float(metric(p.float(), y)) == pytest.approx(float(metric(p, y)), rel=2e-6)
