import pytest
import torch
from torch import nn
from training_problems import classification, convolutional, perceptron

from coset.bayes import Categorical, GaussianNoise, GaussianPrior, Problem, as_batches
from coset.errors import CosetError
from coset.inference import SGD, Adam, Constant, Cosine, MaximumAPosteriori, OneCycle
from coset.posterior import PointMass
from coset.weights import functionalise


def linear_problem(rows=30, std=0.5, precision=3.0):
    inputs = torch.randn(rows, 4)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + std * torch.randn(rows, 1)
    network = functionalise(nn.Sequential(nn.Linear(4, 1, bias=False)))
    likelihood = GaussianNoise(std)
    return Problem(network, likelihood, GaussianPrior(precision), as_batches((inputs, targets)))


def ridge(problem, variance, precision):
    inputs, targets = problem.train.inputs, problem.train.targets
    gram = inputs.T @ inputs + variance * precision * torch.eye(4)
    return torch.linalg.solve(gram, inputs.T @ targets).T


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("optimiser", [SGD(0.05), Adam(0.05)])
def test_the_conjugate_problem_reaches_ridge_regression(generator, optimiser):
    """``(XᵀX + σ² λ I)⁻¹ Xᵀ y`` is the mode of the linear-Gaussian posterior."""
    problem = linear_problem()
    method = MaximumAPosteriori(optimiser, OneCycle(), epochs=2000, batch_size=30)
    found = method.fit(problem, generator=generator).weights["0.weight"]
    torch.testing.assert_close(found, ridge(problem, 0.25, 3.0), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("double")
def test_unknown_noise_reaches_the_joint_mode(generator):
    """At the joint mode ridge with the learnt noise gives the weights, and their residuals it."""
    problem = linear_problem().with_likelihood(GaussianNoise())
    method = MaximumAPosteriori(Adam(0.05), epochs=3000, batch_size=30)
    posterior = method.fit(problem, generator=generator)
    std = posterior.report.likelihood.std
    found = posterior.weights["0.weight"]
    torch.testing.assert_close(found, ridge(problem, std**2, 3.0), rtol=0, atol=1e-5)
    residuals = problem.train.targets - problem.train.inputs @ found.T
    assert std == pytest.approx(float(residuals.square().mean().sqrt()), rel=1e-6)
    loss = -GaussianNoise(std).log_prob(problem.train.inputs @ found.T, problem.train.targets)
    assert posterior.report.diagnostics["loss"] == pytest.approx(float(loss.mean()))


def test_noise_is_measured_on_held_out_data_when_there_are_any(generator):
    problem = linear_problem().with_likelihood(GaussianNoise())
    inputs = torch.randn(50, 4)
    held_out = inputs, torch.randn(50, 1) * 3
    posterior = MaximumAPosteriori(epochs=5, validation=held_out).fit(problem, generator=generator)
    residuals = held_out[1] - inputs @ posterior.weights["0.weight"].T
    found = posterior.report.likelihood.std
    assert found == pytest.approx(float(residuals.square().mean().sqrt()), rel=1e-5)


def test_the_defaults_learn_the_digits(generator):
    from sklearn.datasets import load_digits

    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    order = torch.randperm(len(inputs), generator=generator)
    train, test = order[:1400], order[1400:]
    network = functionalise(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    data = as_batches((inputs[train], targets[train]))
    problem = Problem(network, Categorical(), GaussianPrior(1.0), data)
    posterior = MaximumAPosteriori().fit(problem, generator=generator)
    outputs = network.apply(posterior.weights, inputs[test])
    assert (outputs.argmax(1) == targets[test]).float().mean() > 0.95


def test_the_defaults_learn_a_curve_and_its_noise(generator):
    inputs = torch.linspace(-2, 2, 150).unsqueeze(1)
    curve = (2 * inputs).sin()
    targets = curve + 0.1 * torch.randn(150, 1)
    network = functionalise(nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)))
    problem = Problem(
        network, GaussianNoise(), GaussianPrior(1.0), as_batches((inputs, targets.flatten()))
    )
    posterior = MaximumAPosteriori().fit(problem, generator=generator)
    error = (network.apply(posterior.weights, inputs) - curve).square().mean().sqrt()
    assert error < 0.06
    assert 0.08 < posterior.report.likelihood.std < 0.13


def test_a_point_mass_with_all_tensors_comes_back(generator):
    problem = classification(convolutional(), (1, 6, 6))
    posterior = MaximumAPosteriori(epochs=1).fit(problem, generator=generator)
    assert isinstance(posterior, PointMass)
    assert set(posterior.weights) == set(problem.network.weights)
    assert posterior.report.likelihood is None
    assert posterior.report.diagnostics["steps"] == 1


def test_start_is_where_training_starts(generator):
    problem = classification(perceptron())
    start = {name: tensor + 1 for name, tensor in problem.network.weights.items()}
    still = MaximumAPosteriori(SGD(1e-12), epochs=1).fit(problem, start=start, generator=generator)
    fresh = MaximumAPosteriori(SGD(1e-12), epochs=1).fit(problem, generator=generator)
    for name, tensor in start.items():
        torch.testing.assert_close(still.weights[name], tensor)
        assert not torch.allclose(fresh.weights[name], tensor)
        assert not torch.allclose(fresh.weights[name], problem.network.weights[name])


def test_equal_seeds_equal_weights():
    problem = classification(perceptron(0.3))
    method = MaximumAPosteriori(epochs=2, batch_size=8)
    first, second, other = (
        method.fit(problem, generator=torch.Generator().manual_seed(seed)).weights
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_bad_input_is_refused(generator):
    problem = classification(perceptron())
    method = MaximumAPosteriori(epochs=1)
    weights = problem.network.weights
    wrong = {**weights, "0.weight": torch.zeros(7, 4)}
    with pytest.raises(CosetError, match=r"'0.weight' of shape \(7, 4\); needed \(8, 4\)"):
        method.fit(problem, start=wrong, generator=generator)
    missing = {name: tensor for name, tensor in weights.items() if name != "3.bias"}
    with pytest.raises(CosetError, match=r"no '3\.bias'"):
        method.fit(problem, start=missing, generator=generator)
    data = as_batches((torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])))
    labels = Problem(problem.network, problem.likelihood, problem.prior, data)
    with pytest.raises(CosetError, match="labels from 0 to 3; needed labels from 0 to 2"):
        method.fit(labels, generator=generator)
    data = as_batches((torch.randn(5, 9), torch.zeros(5, dtype=torch.long)))
    shape = Problem(problem.network, problem.likelihood, problem.prior, data)
    with pytest.raises(CosetError, match=r"inputs of shape \(5, 9\)"):
        method.fit(shape, generator=generator)
    held_out = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])
    with pytest.raises(CosetError, match="labels from 0 to 3"):
        MaximumAPosteriori(validation=held_out).fit(problem, generator=generator)


@pytest.mark.parametrize(
    "settings",
    [{"epochs": 0}, {"batch_size": 0}, {"clip": 0.0}, {"clip": -1.0}, {"patience": 0}],
)
def test_settings_that_cannot_be_trained_with_are_refused(settings):
    with pytest.raises(CosetError, match=next(iter(settings))):
        MaximumAPosteriori(**settings)


def test_an_empty_loader_is_refused():
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(0, 4), torch.zeros(0)), batch_size=2
    )
    with pytest.raises(CosetError, match="empty"):
        as_batches(loader)


def test_a_dataset_read_example_by_example_gives_the_same(generator):
    class Rows(torch.utils.data.Dataset):
        def __init__(self, inputs, targets):
            self.inputs, self.targets = inputs, targets

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, index):
            return self.inputs[index], self.targets[index]

    problem = classification(perceptron())
    rows = as_batches(Rows(problem.train.inputs, problem.train.targets))
    streamed = Problem(problem.network, problem.likelihood, problem.prior, rows)
    method = MaximumAPosteriori(schedule=Cosine(), epochs=2, batch_size=8)
    first = method.fit(problem, generator=torch.Generator().manual_seed(4)).weights
    second = method.fit(streamed, generator=torch.Generator().manual_seed(4)).weights
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_constant_schedule_is_a_choice(generator):
    problem = classification(perceptron())
    posterior = MaximumAPosteriori(schedule=Constant(), epochs=1).fit(problem, generator=generator)
    assert posterior.report.diagnostics["epochs"] == 1
