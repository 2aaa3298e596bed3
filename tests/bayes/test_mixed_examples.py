"""Networks whose outputs for an example depend on the other examples of its batch."""

import pytest
import torch
from torch import nn

import coset
from coset import HMC, CosetError, Laplace, MaximumAPosteriori


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Scaled(nn.Module):
    """Mixes in a forward of its own, before a layer that does not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x / x.std())


class Attention(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attend = nn.TransformerEncoderLayer(
            4, 1, 8, dropout=0.0, batch_first=batch_first, activation="gelu"
        )
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.attend(x).mean(1))


class Noisy(nn.Module):
    """Draws by itself, but each example alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn_like(x))


def labels(count=12):
    return torch.arange(count) % 2


@pytest.mark.parametrize("method", [Laplace(), MaximumAPosteriori(epochs=2), HMC()], ids=repr)
def test_they_are_refused_and_the_layer_is_named(method):
    module = nn.Sequential(nn.Linear(3, 4), Centred(), nn.Linear(4, 2))
    with pytest.raises(CosetError, match="other examples of its batch, by its layer '1'"):
        coset.fit(module, (torch.randn(12, 3), labels()), method=method)


@pytest.mark.parametrize("rows", [2, 3, 12])
def test_a_forward_of_its_own_is_named(rows):
    with pytest.raises(CosetError, match=r"by Scaled\.forward"):
        coset.fit(Scaled(), (torch.randn(rows, 3), labels(rows)))


def test_attention_across_examples_is_refused():
    train = torch.randn(12, 5, 4), labels()
    with pytest.raises(CosetError, match="other examples of its batch"):
        coset.fit(Attention(batch_first=False), train, method=MaximumAPosteriori(epochs=1))
    coset.fit(Attention(batch_first=True), train, method=MaximumAPosteriori(epochs=1))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.GRU(3, 4, batch_first=True)),
        Noisy(),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_are_taken(module, scale, dtype):
    if isinstance(module[1] if isinstance(module, nn.Sequential) else None, nn.GRU):
        module = nn.Sequential(*module, Last())
    train = (scale * torch.randn(12, 3)).to(dtype), labels()
    coset.Problem.of(module.to(dtype), train)


class Last(nn.Module):
    def forward(self, found):
        return found[0][:, -1]
