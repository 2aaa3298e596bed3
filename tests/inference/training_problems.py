"""Small problems to train on, and an independent loop in plain torch to compare with."""

import copy

import torch
from torch import nn

from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.weights import functionalise


def perceptron(dropout=0.0):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class DataDependent(nn.Module):
    """A network that vmap cannot follow: it looks at its own numbers."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, inputs):
        outputs = self.inner(inputs)
        return outputs if float(outputs.detach().sum()) != 0.5 else -outputs


def classification(module, shape=(4,), rows=23, likelihood=None, prior=None):
    inputs = torch.randn(rows, *shape)
    targets = torch.arange(rows) % 3
    inputs = inputs + targets.view(-1, *[1] * len(shape))
    return Problem(
        functionalise(module),
        likelihood or Categorical(),
        prior or GaussianPrior(2.0),
        as_batches((inputs, targets)),
    )


def train_plainly(module, problem, start, build, recipe, seed):
    """One member in plain torch: an nn.Module in training mode, autograd, a torch optimiser."""
    module = copy.deepcopy(module).train()
    module.load_state_dict(start, strict=False)
    size = problem.train.size
    optimiser = build(module.parameters(), problem.prior.precision / size)
    generator = torch.Generator().manual_seed(seed)
    steps = recipe.passes(size) * recipe.batches(size)
    rates = [group["lr"] for group in optimiser.param_groups]
    step = 0
    for _ in range(recipe.passes(size)):
        order = torch.randperm(size, generator=generator)
        for index in order.tensor_split(recipe.batches(size)):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * recipe.schedule.factor(step / steps)
            optimiser.zero_grad()
            outputs = module(problem.train.inputs[index])
            loss = nn.functional.cross_entropy(outputs, problem.train.targets[index])
            loss.backward()
            if recipe.clip is not None:
                flat = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
                for parameter in module.parameters():
                    parameter.grad *= min(1.0, recipe.clip / float(flat.norm()))
            optimiser.step()
            step += 1
    return {name: tensor for name, tensor in module.state_dict().items() if name in start}


def assert_same(ours, reference, tolerance=1e-10):
    assert set(ours) == set(reference)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, reference[name], rtol=0, atol=tolerance)
