"""Layers that KFAC does not know: refused by name, and right with every choice that is left."""

import pytest
import torch
from curvature_networks import brute_jacobian
from torch import nn

from coset import (
    KFAC,
    CosetError,
    DiagonalOnly,
    Full,
    Laplace,
    LastLayer,
    LowRank,
    Subnetwork,
    fit,
    functionalise,
)

pytestmark = pytest.mark.usefixtures("double")


class Sequences(nn.Module):
    """A layer over time, an average, and a head."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(4, 3)

    def forward(self, x):
        if isinstance(self.inner, nn.MultiheadAttention):
            found = self.inner(x, x.flip(1), x, need_weights=False)
        else:
            found = self.inner(x)
        outputs = found[0] if isinstance(found, tuple) else found
        return self.head(outputs.mean(1))


class Packed(nn.Module):
    """Sequences that are packed together."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, [3] * len(x), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0]


LAYERS = {
    "added keys": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True),
        "in_proj_weight",
    ),
    "projected": (lambda: nn.LSTM(4, 6, proj_size=4, batch_first=True), "weight_ih_l0"),
}


@pytest.fixture(params=LAYERS)
def sequences(request):
    build, name = LAYERS[request.param]
    module = Sequences(build()).eval()
    return module, (torch.randn(6, 5, 4), torch.arange(6) % 3), name


def test_kronecker_factors_are_refused_with_the_choices_left(sequences):
    module, data, name = sequences
    with pytest.raises(CosetError, match=name) as caught:
        fit(module, data, method=Laplace(KFAC()))
    for choice in ("Full()", "DiagonalOnly()", "subset="):
        assert choice in str(caught.value)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_packed_sequences_are_refused():
    module = Sequences(Packed()).eval()
    with pytest.raises(CosetError, match=r"weight_ih_l0' \(read by gru\)"):
        fit(module, (torch.randn(6, 5, 4), torch.arange(6) % 3))


@pytest.mark.parametrize("recipe", [Full(), DiagonalOnly(), LowRank(4)], ids=repr)
def test_other_structures_are_right(sequences, recipe):
    module, data, _ = sequences
    predictor = fit(module, data, method=Laplace(recipe, tuning=None))
    network = functionalise(module)
    jacobian = brute_jacobian(network, network.layout, data[0])
    covariance = predictor.posterior.covariance.matmat(torch.eye(network.layout.size))
    expected = jacobian @ covariance @ jacobian.mT
    torch.testing.assert_close(predictor(data[0]).covariance, expected)
    inner = torch.linalg.inv(covariance) - torch.eye(network.layout.size)
    exact = torch.einsum(
        "ncp,ncd,ndq->pq", jacobian, predictor.likelihood.hessian(module(data[0])), jacobian
    )
    if isinstance(recipe, Full):
        torch.testing.assert_close(inner, exact.detach(), atol=1e-6, rtol=1e-6)
    if isinstance(recipe, DiagonalOnly):
        torch.testing.assert_close(inner.diagonal(), exact.diagonal().detach())


@pytest.mark.parametrize("subset", [LastLayer(), "head.*", Subnetwork(10)], ids=repr)
def test_parts_are_right(sequences, subset):
    module, data, _ = sequences
    predictor = fit(module, data, method=Laplace(subset=subset))
    assert predictor(data[0]).covariance.isfinite().all()
