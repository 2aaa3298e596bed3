"""The mixture over symmetries: other weights, equal marginals, the same predictions."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import coset
from coset import CosetError, DeepEnsemble, MaximumAPosteriori, Samples, discover, symmetrised
from coset.metrics import exchangeability


@pytest.fixture
def fitted(double):
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    inputs = torch.randn(40, 2)
    data = inputs, torch.randint(3, (40,))
    method = DeepEnsemble(4, MaximumAPosteriori(epochs=3))
    return net, inputs, coset.fit(net, data, method=method)


def test_draws_compute_the_same_functions_with_other_weights(fitted, generator):
    net, inputs, predictor = fitted
    moved = symmetrised(predictor.posterior, discover(net, inputs[:1]))
    drawn = moved.sample(4, generator=torch.Generator().manual_seed(3))
    plain = predictor.posterior.sample(4, generator=torch.Generator().manual_seed(3))
    network = predictor.network
    for k in range(4):
        one, other = ({n: w[k] for n, w in stack.items()} for stack in (plain, drawn))
        assert not torch.allclose(one["0.weight"], other["0.weight"])
        said = network.apply(one, inputs)
        assert torch.allclose(said, network.apply(other, inputs), atol=1e-12)
    unchanged = replace(predictor, posterior=moved)
    assert torch.equal(unchanged(inputs).members, predictor(inputs).members)


def test_equal_marginals_are_refused_before_and_accepted_after(double, generator):
    """Copies of one network with a large first unit: p far below 1e-6, then a uniform law."""
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    weights = coset.weights_of(net)
    weights["0.weight"] = weights["0.weight"].clone()
    weights["0.weight"][0] = 5.0
    posterior = Samples({n: w.expand(600, *w.shape).clone() for n, w in weights.items()})
    group = discover(net, torch.zeros(1, 2))
    moved = symmetrised(posterior, group)
    before = exchangeability(posterior.sample(600, generator=generator), "0.weight")
    after = exchangeability(moved.sample(600, generator=generator), "0.weight")
    assert before.p_value < 1e-6
    assert after.p_value > 1e-3  # false alarm: once in a thousand seeds


def test_it_can_be_saved(fitted, tmp_path):
    net, inputs, predictor = fitted
    kept = replace(predictor, posterior=symmetrised(predictor.posterior, discover(net, inputs[:1])))
    kept.save(tmp_path / "p.safetensors")
    back = coset.load(tmp_path / "p.safetensors", net)
    one, other = (
        p.posterior.sample(3, generator=torch.Generator().manual_seed(1)) for p in (kept, back)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_posterior_of_some_tensors_is_refused(fitted):
    net, inputs, predictor = fitted
    part = Samples({"0.weight": predictor.posterior.stack["0.weight"]})
    with pytest.raises(CosetError, match=r"without '0\.bias'"):
        symmetrised(part, discover(net, inputs[:1]))
