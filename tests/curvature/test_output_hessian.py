"""The output Hessian of the last layer, without columns."""

import pytest
import torch
from torch import nn

from coset import KFAC, Bernoulli, Categorical, GaussianPrior, Problem, functionalise
from coset.bayes import as_batches
from coset.curvature.output_hessian import along, summed


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_the_definition(likelihood):
    outputs = 2 * torch.randn(5, 4, dtype=torch.float64)
    basis = torch.randn(4, 3, dtype=torch.float64)
    full, labels = likelihood.hessian(outputs), torch.zeros(5)
    torch.testing.assert_close(summed(likelihood, outputs, labels), full.sum(0))
    expected = torch.einsum("ck,ncd,dk->nk", basis, full, basis)
    torch.testing.assert_close(along(likelihood, outputs, labels, basis), expected)


@pytest.mark.parametrize("corrected", [False, True])
def test_a_last_layer_alone_is_as_it_is_among_others(corrected):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    network = functionalise(module)
    inputs = torch.randn(30, 3, dtype=torch.float64)
    batches = as_batches((inputs, torch.arange(30) % 4), batch_size=8)
    problem = Problem(network, Categorical(), GaussianPrior(), batches)
    recipe = KFAC(corrected=corrected)
    last = network.layout.select("2.*")
    alone = recipe.build(problem, network.weights, last).operator
    together = recipe.build(problem, network.weights, network.layout).operator
    torch.testing.assert_close(alone.blocks[0].table, together.blocks[1].table)
    # the trace is that of the definition: Σ |J|² weighted by the Hessian
    hidden = module[1](module[0](inputs))
    sizes = 1 + hidden.square().sum(1)
    traces = Categorical().hessian(module(inputs)).diagonal(dim1=1, dim2=2).sum(1)
    expected = (sizes * traces).sum() if corrected else sizes.mean() * traces.sum()
    torch.testing.assert_close(alone.blocks[0].table.sum(), expected.detach())
