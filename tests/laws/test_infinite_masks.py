"""Causal attention keeps a mask of zeros and infinities among its buffers: nothing minds it."""

import math

import pytest
import torch
from torch import nn

import coset

INPUTS = torch.arange(24).reshape(4, 6) % 7
TARGETS = torch.tensor([0, 1, 2, 0])


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(8, 3)
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.hidden = nn.Linear(4, 8)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

    def forward(self, tokens):
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).mT + self.mask
        return self.head(torch.relu(self.hidden(x + scores.softmax(-1) @ self.value(x)))).mean(1)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Causal()


def test_symmetries_are_removed_and_matched(module, generator):
    group, weights = coset.discover(module, INPUTS), coset.weights_of(module)
    moved = group.act(group.sample(generator=generator), weights)
    canonical = coset.canonicalise(group, moved)
    assert torch.equal(canonical["mask"], module.mask)
    counted = (w for name, w in weights.items() if name != "mask" and "bias" not in name)
    mass = sum(float(w.double().square().sum()) for w in counted)
    assert float(coset.minimise_mass(group, weights).initial_mass) == pytest.approx(mass)
    found = coset.match(group, moved, to=weights)
    assert found.squared_distance < 1e-9
    assert torch.equal(found.weights["mask"], module.mask)
    many = coset.match_many(group, coset.stack([weights, moved]))
    assert torch.equal(many.weights["mask"][1], module.mask)


def test_lines_and_trainings_keep_the_mask(module):
    a = coset.weights_of(module)
    b = {name: tensor if name == "mask" else 2 * tensor for name, tensor in a.items()}
    assert torch.equal(coset.interpolate(a, b, 0.5)["mask"], module.mask)
    assert math.isfinite(coset.barrier(module, a, b, (INPUTS, TARGETS), points=3).height)
    method = coset.DeepEnsemble(2, coset.MaximumAPosteriori(epochs=2))
    predictor = coset.fit(module, (INPUTS, TARGETS), method=method)
    assert predictor(INPUTS).mean.isfinite().all()


def test_other_infinities_are_refused(module):
    group, weights = coset.discover(module, INPUTS), coset.weights_of(module)
    wrong = {**weights, "mask": weights["mask"] + 0.5}
    with pytest.raises(coset.CosetError, match="15 numbers in 'mask'"):
        coset.match(group, wrong, to=weights)
