"""Log-probabilities against torch.distributions, Hessians against autograd, all in float64."""

import math

import pytest
import torch
from torch import distributions
from torch.func import hessian, vmap

from coset import Bernoulli, Categorical, CosetError, GaussianNoise, HeteroscedasticGaussian

pytestmark = pytest.mark.usefixtures("double")

N, C = 5, 4


def labels():
    return torch.tensor([0, 3, 1, 1, 2])


def binary():
    return torch.tensor([[0, 1, 1, 0]] * N).double()


CASES = {
    "categorical": (Categorical(), C, labels),
    "bernoulli": (Bernoulli(), C, binary),
    "noise": (GaussianNoise(0.7), C, lambda: torch.randn(N, C)),
    "noise per output": (
        GaussianNoise(torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)),
        C,
        lambda: torch.randn(N, C),
    ),
    "heteroscedastic": (HeteroscedasticGaussian(), 2 * C, lambda: torch.randn(N, C)),
}


def reference(name, outputs, targets):
    match name:
        case "categorical":
            return distributions.Categorical(logits=outputs).log_prob(targets)
        case "bernoulli":
            return distributions.Bernoulli(logits=outputs).log_prob(targets).sum(1)
        case "noise" | "noise per output":
            std = torch.as_tensor(CASES[name][0].std)
            return distributions.Normal(outputs, std).log_prob(targets).sum(1)
    mean, log_variance = outputs[:, :C], outputs[:, C:]
    return distributions.Normal(mean, (log_variance / 2).exp()).log_prob(targets).sum(1)


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_that_of_torch_distributions(name):
    likelihood, width, targets = CASES[name]
    outputs = 2 * torch.randn(N, width)
    wanted = targets()
    torch.testing.assert_close(
        likelihood.log_prob(outputs, wanted), reference(name, outputs, wanted), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", [name for name in CASES if name != "heteroscedastic"])
def test_hessian_is_that_of_autograd(name):
    likelihood, width, targets = CASES[name]
    outputs, wanted = 2 * torch.randn(N, width), targets()

    def negative(output, target):
        return -likelihood.log_prob(output.unsqueeze(0), target.unsqueeze(0))[0]

    exact = vmap(hessian(negative))(outputs, wanted)
    torch.testing.assert_close(likelihood.hessian(outputs), exact, rtol=0, atol=1e-12)


def test_heteroscedastic_hessian_is_the_expected_one():
    """The Hessian averaged over targets y = μ + σ ε, by exact Gauss–Hermite quadrature."""
    likelihood = HeteroscedasticGaussian()
    output = torch.tensor([0.3, -0.8])
    nodes = torch.tensor([-math.sqrt(3.0), 0.0, math.sqrt(3.0)])
    weights = torch.tensor([1 / 6, 2 / 3, 1 / 6])
    targets = output[0] + nodes * (output[1] / 2).exp()

    def negative(f, target):
        return -likelihood.log_prob(f.unsqueeze(0), target.reshape(1, 1))[0]

    each = torch.stack([hessian(negative)(output, target) for target in targets])
    expected = torch.tensordot(weights, each, dims=1)
    torch.testing.assert_close(likelihood.hessian(output[None])[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pixels", [(), (2, 3)])
def test_root_times_its_transpose_is_the_hessian(name, pixels):
    likelihood, width, _ = CASES[name]
    outputs = 3 * torch.randn(N, width, *pixels)
    root, full = likelihood.hessian_root(outputs), likelihood.hessian(outputs)
    assert full.shape == (N, *pixels, width, width)
    torch.testing.assert_close(root @ root.mT, full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_pixels_are_data_that_are_summed(name):
    likelihood, width, _ = CASES[name]
    outputs = torch.randn(N, width, 2, 3)
    targets = {
        "categorical": lambda: torch.randint(C, (N, 2, 3)),
        "bernoulli": lambda: torch.randint(2, (N, C, 2, 3)).double(),
    }.get(name, lambda: torch.randn(N, C, 2, 3))()

    flat_outputs = outputs.movedim(1, -1).reshape(-1, width)
    flat_targets = targets if name == "categorical" else targets.movedim(1, -1)
    flat_targets = flat_targets.reshape(N * 6, *flat_targets.shape[3:])
    each = likelihood.log_prob(flat_outputs, flat_targets).reshape(N, 6)
    torch.testing.assert_close(likelihood.log_prob(outputs, targets), each.sum(1))
    torch.testing.assert_close(
        likelihood.hessian(outputs).reshape(N * 6, width, width), likelihood.hessian(flat_outputs)
    )
    means = likelihood.mean(outputs).movedim(1, -1).flatten(0, 2)
    torch.testing.assert_close(means, likelihood.mean(flat_outputs))
    likelihood.check(outputs, targets)


def test_noise_variance_is_known_for_regression_only():
    outputs = torch.randn(N, C)
    assert Categorical().noise_variance(outputs) is None
    assert Bernoulli().noise_variance(outputs) is None
    std = torch.tensor([0.1, 0.5, 1.0, 2.0])
    assert torch.equal(GaussianNoise(std).noise_variance(outputs)[3], std.square())
    torch.testing.assert_close(
        HeteroscedasticGaussian().noise_variance(outputs), outputs[:, 2:].exp()
    )


def test_saturated_outputs_stay_finite():
    outputs = torch.tensor([[400.0, -400.0]])
    for likelihood in (Categorical(), Bernoulli()):
        assert likelihood.hessian(outputs).isfinite().all()
        assert likelihood.hessian_root(outputs).isfinite().all()
    assert Bernoulli().hessian_root(outputs).diagonal(dim1=-2, dim2=-1).min() > 0


def test_estimated_noise_maximises_the_likelihood():
    outputs, targets = torch.randn(50, 2), torch.randn(50, 2)
    best = GaussianNoise().estimate(outputs, targets)
    top = best.log_prob(outputs, targets).sum()
    for factor in (0.99, 1.01):
        assert GaussianNoise(best.std * factor).log_prob(outputs, targets).sum() < top


def test_unknown_noise_is_refused_where_it_is_needed():
    with pytest.raises(CosetError, match="unknown size"):
        GaussianNoise().log_prob(torch.zeros(1, 1), torch.zeros(1, 1))


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0])])
def test_noise_is_positive(std):
    with pytest.raises(CosetError, match="positive"):
        GaussianNoise(std)


def test_one_output_may_come_without_its_axis():
    outputs, targets = torch.randn(N, 1), torch.randn(N)
    noise = GaussianNoise(1.0)
    assert torch.equal(
        noise.log_prob(outputs, targets), noise.log_prob(outputs, targets.unsqueeze(1))
    )


BAD = [
    (Categorical(), torch.zeros(3, 2), torch.zeros(3), "whole numbers"),
    (Categorical(), torch.zeros(3, 2), torch.tensor([0, 1, 2]), "labels from 0 to 1"),
    (Categorical(), torch.zeros(3, 2), torch.tensor([0, 1, -1]), "labels from -1"),
    (Categorical(), torch.zeros(3, 2), torch.zeros(4, dtype=torch.long), "shape"),
    (Categorical(), torch.zeros(3), torch.zeros(3, dtype=torch.long), "output axis"),
    (Bernoulli(), torch.zeros(3, 2), torch.full((3, 2), 0.5), "yes-or-no"),
    (Bernoulli(), torch.zeros(3, 2), torch.zeros(3), "shape"),
    (GaussianNoise(1.0), torch.zeros(3, 2), torch.zeros(3, 1), "shape"),
    (GaussianNoise(1.0), torch.zeros(1, 2), torch.tensor([[0, math.inf]]), "finite"),
    (HeteroscedasticGaussian(), torch.zeros(3, 3), torch.zeros(3, 1), "two a target"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "targets", "message"), BAD)
def test_targets_that_do_not_belong_are_refused(likelihood, outputs, targets, message):
    with pytest.raises(CosetError, match=message):
        likelihood.check(outputs, targets)


def test_noise_that_is_no_number_is_named():
    with pytest.raises(CosetError, match="got a noise of 'small'; needed a positive standard"):
        GaussianNoise("small")


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float16])
@pytest.mark.parametrize("likelihood", [GaussianNoise(0.5), HeteroscedasticGaussian()], ids=repr)
def test_targets_of_another_type_are_taken_for_the_type_of_the_outputs(likelihood, kind):
    outputs, targets = torch.randn(3, 2).float(), torch.arange(3.0).float()[:, None]
    if isinstance(likelihood, GaussianNoise):
        outputs = outputs[:, :1]
    found = likelihood.log_prob(outputs, targets.to(kind))
    assert found.dtype == torch.float32
    assert torch.equal(found, likelihood.log_prob(outputs, targets))
