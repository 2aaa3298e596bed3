import pytest
import torch
from torch import Tensor, nn

from coset import Categorical, CosetError, GaussianNoise, GaussianPrior, Problem, functionalise
from coset.bayes import as_batches

pytestmark = pytest.mark.usefixtures("double")


def regression(rows=6):
    data = torch.randn(rows, 3), torch.randn(rows, 1)
    network = functionalise(nn.Sequential(nn.Linear(3, 1)))
    return Problem(network, GaussianNoise(0.5), GaussianPrior(2.0), as_batches(data, batch_size=2))


def test_log_joint_of_all_data_is_likelihood_plus_prior():
    problem = regression()
    inputs, targets = problem.train.inputs, problem.train.targets
    weights = problem.network.weights
    outputs = inputs @ weights["0.weight"].T + weights["0.bias"]
    likelihood = torch.distributions.Normal(outputs, 0.5).log_prob(targets).sum()
    prior = sum(torch.distributions.Normal(0, 0.5**0.5).log_prob(w).sum() for w in weights.values())
    joint = problem.log_joint(weights, (inputs, targets))
    torch.testing.assert_close(joint, likelihood + prior, rtol=0, atol=1e-10)


def test_batches_estimate_the_log_likelihood_without_bias():
    problem = regression()
    weights = problem.network.weights
    whole = problem.log_likelihood(weights, (problem.train.inputs, problem.train.targets))
    parts = torch.stack([problem.log_likelihood(weights, batch) for batch in problem.train])
    torch.testing.assert_close(parts.mean(), whole)


def test_buffers_have_no_prior():
    network = functionalise(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    batches = as_batches((torch.randn(4, 3), torch.tensor([0, 1, 0, 1])))
    problem = Problem(network, Categorical(), GaussianPrior(1.0), batches)
    moved = {**network.weights, "1.running_mean": torch.full((2,), 9.0)}
    assert problem.log_prior(moved) == problem.log_prior(network.weights)


def test_check_finds_a_bad_label_in_a_late_batch():
    labels = torch.tensor([0, 1, 0, 1, 0, 2])
    batches = as_batches((torch.randn(6, 3), labels), batch_size=2)
    problem = Problem(functionalise(nn.Linear(3, 2)), Categorical(), GaussianPrior(), batches)
    with pytest.raises(CosetError, match="labels from 0 to 2"):
        problem.check()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("shape", [(6, 3), (6, 1, 3)])
def test_check_finds_a_number_that_is_not_finite_in_a_late_batch(bad, shape):
    inputs = torch.randn(shape)
    inputs[4, ..., 1] = bad
    network = functionalise(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    data = as_batches((inputs, torch.arange(6) % 2), batch_size=4)
    with pytest.raises(CosetError, match="inputs that are not finite, in example 4"):
        Problem(network, Categorical(), GaussianPrior(), data).check()


def test_with_likelihood_changes_nothing_else():
    problem = regression()
    other = problem.with_likelihood(GaussianNoise(2.0))
    assert other.likelihood == GaussianNoise(2.0)
    assert problem.likelihood == GaussianNoise(0.5)
    assert other.network is problem.network


class Returning(nn.Module):
    """A network that returns its outputs inside something."""

    def __init__(self, pack):
        super().__init__()
        self.layer, self.pack = nn.Linear(3, 2), pack

    def forward(self, x):
        return self.pack(self.layer(x))


@pytest.mark.parametrize(
    "pack",
    [lambda x: (x, x), lambda x: {"logits": x}, lambda x: [x], torch.sum, lambda x: x[:1]],
    ids=["tuple", "dict", "list", "a number", "one row"],
)
def test_outputs_that_are_no_rows_of_a_tensor_are_named(pack):
    with pytest.raises(CosetError, match=r"returns (tuple|dict|list|shape).*wrap it"):
        Problem.of(Returning(pack), (torch.randn(4, 3), torch.arange(4) % 2))


def test_a_network_without_parameters_is_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(3, 2)]  # torch does not look into lists

        def forward(self, x):
            return self.layers[0](x)

    with pytest.raises(CosetError, match=r"without parameters.*attributes of the module"):
        Problem.of(Hidden(), (torch.randn(4, 3), torch.arange(4) % 2))


def test_inputs_of_another_type_than_the_weights_are_told_which():
    data = torch.randn(4, 3, dtype=torch.float32), torch.arange(4) % 2
    with pytest.raises(CosetError, match=r"weights are torch.float64: give inputs"):
        Problem.of(nn.Linear(3, 2), data)


def test_one_output_for_two_classes_asks_for_bernoulli():
    with pytest.raises(CosetError, match=r"Bernoulli\(\)"):
        Problem.of(nn.Linear(3, 1), (torch.randn(4, 3), torch.arange(4) % 2))


class Through(nn.Module):
    """A layer whose outputs go through something."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(2, 3), change

    def forward(self, inputs):
        return self.change(self.layer(inputs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Tensor.detach, "outputs do not depend on its parameters; .* look for detach"),
        (torch.no_grad()(lambda outputs: outputs * 2), "outputs do not depend on its parameters"),
        (lambda outputs: outputs.relu_().mul_(2), "torch cannot differentiate .* in place"),
    ],
    ids=["detached", "without gradient", "in place"],
)
def test_networks_without_gradients_are_named(change, words):
    data = torch.randn(4, 2), torch.arange(4) % 3
    with torch.no_grad():  # a caller's setting does not matter
        Problem.of(Through(torch.tanh), data)
        with pytest.raises(CosetError, match=words):
            Problem.of(Through(change), data)


def test_batch_norm_without_running_statistics_is_named():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(CosetError, match="batch norm '1' without running statistics"):
        Problem.of(module, (torch.randn(4, 2), torch.arange(4) % 3))


class Halving(nn.Module):
    """A network that writes into its inputs: every pass over the data would halve them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs.mul_(0.5))


def test_networks_that_write_into_their_inputs_are_refused_before_they_do():
    inputs, targets = torch.randn(6, 3), torch.zeros(6, dtype=torch.long)
    before = inputs.clone()
    with pytest.raises(CosetError, match="writes into its inputs"):
        Problem.of(Halving(), (inputs, targets))
    assert torch.equal(inputs, before)
