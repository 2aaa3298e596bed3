import pytest
import torch
from torch.distributions import Normal

from coset import CosetError, GaussianPrior, Layout

pytestmark = pytest.mark.usefixtures("double")


def weights():
    return {"conv": torch.randn(3, 2, 5, 5), "bias": torch.randn(3)}


PRECISIONS = {
    "one number": 2.5,
    "per tensor": {"conv": 0.5, "bias": 4.0},
    "per filter": {"conv": torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1, 1), "bias": 1.0},
    "per weight": {"conv": torch.rand(3, 2, 5, 5) + 0.1, "bias": torch.rand(3) + 0.1},
}


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_log_prob_is_that_of_independent_normals(precision):
    given = weights()
    prior = GaussianPrior(precision)
    expected = torch.zeros(())
    for name, tensor in given.items():
        value = precision[name] if isinstance(precision, dict) else precision
        std = torch.as_tensor(value, dtype=torch.float64).rsqrt().expand(tensor.shape)
        expected = expected + Normal(0.0, std).log_prob(tensor).sum()
    torch.testing.assert_close(prior.log_prob(given), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_flat_precisions_give_the_penalty(precision):
    given = weights()
    prior, layout = GaussianPrior(precision), Layout.of(given)
    vector = layout.flatten(given)
    flat = prior.flat(layout, vector)
    assert flat.shape == vector.shape
    torch.testing.assert_close((flat * vector.square()).sum() / 2, prior.penalty(given))


def test_gradient_of_the_penalty_is_weight_decay():
    weight = torch.randn(4, requires_grad=True)
    GaussianPrior(3.0).penalty({"w": weight}).backward()
    torch.testing.assert_close(weight.grad, 3 * weight.detach())


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), {"w": torch.tensor([1.0, -1])}])
def test_precisions_are_finite_and_not_negative(bad):
    with pytest.raises(CosetError, match="zero or larger"):
        GaussianPrior(bad)


def test_a_tensor_without_precision_is_named():
    with pytest.raises(CosetError, match="'bias'"):
        GaussianPrior({"conv": 1.0}).log_prob(weights())


def test_a_precision_that_does_not_broadcast_is_refused():
    with pytest.raises(CosetError, match=r"shape \(3,\) for 'conv'"):
        GaussianPrior({"conv": torch.ones(3), "bias": 1.0}).log_prob(weights())


@pytest.mark.parametrize("precision", ["one", None, {"w": "one"}], ids=repr)
def test_precisions_that_are_no_numbers_are_named(precision):
    with pytest.raises(CosetError, match="needed finite numbers, zero or larger"):
        GaussianPrior(precision)


def test_a_prior_of_many_precisions_is_printed_in_a_line():
    tables = {f"{k}.weight": torch.rand(64, 1, 1, 1) for k in range(20)}
    shown = repr(GaussianPrior({**tables, "last.bias": 2.0}))
    assert "\n" not in shown
    assert len(shown) < 300
    assert "21 in all" in shown
    assert repr(GaussianPrior(4.0)) == "GaussianPrior(precision=4)"
