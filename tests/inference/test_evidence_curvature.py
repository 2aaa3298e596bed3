"""What the evidence of a structure is, beside the exact one, and that it is told."""

import pytest
import torch
from torch import nn

import coset
from coset import (
    KFAC,
    Bernoulli,
    ByEvidence,
    Categorical,
    DiagonalOnly,
    Full,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    LowRank,
)

pytestmark = pytest.mark.usefixtures("double")


def problems():
    inputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    return [
        (Categorical(), inputs, labels),
        (Bernoulli(), inputs, torch.stack([labels, 1 - labels], dim=1)),
        (GaussianNoise(0.3), inputs, inputs[:, :2].sin()),
    ]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("precision", [0.01, 1.0, 100.0])
def test_structures_lie_on_their_side_of_the_exact_one(kind, precision):
    """``det M ≤ Π diag(Qᵀ M Q)`` for blocks and for any orthogonal ``Q`` (Hadamard, Fischer)."""
    likelihood, *data = problems()[kind]
    found = {}
    for curvature in (KFAC(), DiagonalOnly(), LowRank(4), Full()):
        predictor = coset.fit(
            network(),
            tuple(data),
            method=Laplace(curvature=curvature, tuning=None),
            likelihood=likelihood,
            prior=GaussianPrior(precision),
        )
        found[predictor.posterior.report.evidence_curvature] = predictor.log_evidence
    assert found["KFAC"] < found["Full"]
    assert found["DiagonalOnly"] < found["Full"]
    assert found["LowRank"] > found["Full"]


def test_it_is_told_where_the_number_is_printed(tmp_path):
    (classes, *labelled), _, (noise, *measured) = problems()
    told = {
        "by KFAC: usually below that of the exact curvature": (classes, labelled, KFAC()),
        "by LowRank: usually above that of the exact curvature": (classes, labelled, LowRank(4)),
    }
    for line, (likelihood, data, curvature) in told.items():
        method = Laplace(curvature=curvature)
        predictor = coset.fit(network(), tuple(data), method=method, likelihood=likelihood)
        assert line in repr(predictor)
        predictor.save(tmp_path / "file")
        assert line in repr(coset.load(tmp_path / "file", network()))
    # a small regression is tuned with the exact curvature, whatever its posterior keeps
    predictor = coset.fit(network(), tuple(measured), likelihood=noise)
    assert "usually" not in repr(predictor)
    assert predictor.posterior.report.evidence_curvature == "Full"
    more = predictor.update((measured[0][:5], measured[1][:5]))
    assert "by KFAC" in repr(more)  # whose structure the new data are added in


def test_a_network_without_an_evidence_tells_nothing():
    method = Laplace(tuning=ByEvidence(steps=1))
    (classes, *data), *_ = problems()
    assert coset.fit(network(), tuple(data), method=method, likelihood=classes).log_evidence
    point = coset.fit(network(), tuple(data), method=coset.MaximumAPosteriori(epochs=1))
    assert "log evidence" not in repr(point)
