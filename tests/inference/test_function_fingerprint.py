"""A file is read into the function that was fitted, and into no other of its shapes."""

import pytest
import torch
from torch import nn

import coset
from coset import CosetError, GaussianNoise
from methods import LAPLACES, METHODS


class Net(nn.Module):
    def __init__(self, function=torch.tanh):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 5), nn.Linear(5, 2), function
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.dropout(self.function(self.first(x))))


class Tokens(nn.Module):
    def __init__(self, reverse=False):
        super().__init__()
        self.table, self.last, self.reverse = nn.Embedding(7, 4), nn.Linear(8, 2), reverse

    def forward(self, ids, scale):
        found = self.table(ids) * scale.unsqueeze(-1)
        return self.last((found.flip(1) if self.reverse else found).flatten(1))


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


@pytest.mark.parametrize("name", ["map", "ensemble", "dropout", "mean field", "SWAG", "HMC"])
def test_another_activation_is_refused(name, tmp_path):
    torch.manual_seed(0)
    predictor = coset.fit(Net(), data(), method=METHODS[name])
    predictor.save(tmp_path / "file")
    with pytest.raises(CosetError, match="a module of the same shapes"):
        coset.load(tmp_path / "file", Net(torch.relu))
    again = coset.load(tmp_path / "file", Net())
    inputs = data()[0]
    assert torch.equal(again(inputs).mean, predictor(inputs).mean)
    again.save(tmp_path / "again")  # which still knows it
    with pytest.raises(CosetError, match="a module of the same shapes"):
        coset.load(tmp_path / "again", Net(nn.functional.gelu))


@pytest.mark.parametrize("name", ["KFAC", "full", "last layer", "subnetwork", "matrix-free"])
def test_another_activation_is_refused_around_trained_weights(name, tmp_path):
    torch.manual_seed(0)
    coset.fit(Net(), data(), method=LAPLACES[name]).save(tmp_path / "file")
    with pytest.raises(CosetError, match="a module of the same shapes"):
        coset.load(tmp_path / "file", Net(torch.sigmoid))
    coset.load(tmp_path / "file", Net())


def test_several_inputs_and_tokens(tmp_path):
    ids = torch.randint(7, (12, 2), generator=torch.Generator().manual_seed(0))
    train = (ids, torch.rand(12, 2)), torch.arange(12) % 2
    torch.manual_seed(0)
    coset.fit(Tokens(), train).save(tmp_path / "file")
    with pytest.raises(CosetError, match="a module of the same shapes"):
        coset.load(tmp_path / "file", Tokens(reverse=True))
    coset.load(tmp_path / "file", Tokens())


def test_a_network_that_does_not_read_noise_is_not_known_again(tmp_path):
    class Picky(Net):
        def forward(self, x):
            if (x < 0).any():
                raise ValueError("positive inputs only")
            return super().forward(x)

    inputs, _ = data()
    torch.manual_seed(0)
    predictor = coset.fit(Picky(), (inputs.abs(), inputs[:, :2]), likelihood=GaussianNoise(1.0))
    predictor.save(tmp_path / "file")
    coset.load(tmp_path / "file", Picky(torch.relu))
