"""Cells of the talk's tables: what they read, what they build, and what they score."""

import math

import pytest
import torch

from coset.posterior.predict import Predictions
from coset.studies.cells.evidence_tables import (
    architecture,
    compare_forms,
    data_of,
    loss,
    point_clouds,
)
from coset.studies.registry import study_named

SMALL = {"data": "digits", "train": 6, "test": 4}
OWN = {
    "transformer": {"points": 5, "widths": [4]},
    "cnn": {"widths": [3, 4]},
    "resnet": {"depths": [1, 1], "widths": [2, 3]},
    "preresnet": {"depths": [1, 1], "widths": [2, 3]},
    "fixup": {"depths": [1, 1], "widths": [2, 3]},
    "unet": {"widths": [2, 3]},
}


@pytest.mark.parametrize("name", OWN)
def test_every_architecture_reads_its_data(name):
    parameters = SMALL | OWN[name] | {"network": name}
    (train, test), likelihood = data_of(parameters, 0)
    module = architecture(parameters, train, 0)
    outputs = module.eval()(train[0])
    likelihood.check(outputs, train[1])
    assert len(train[0]) == 6
    assert len(test[0]) == 4
    again, _ = data_of(parameters, 0)
    assert torch.equal(again[0][0], train[0])
    other = architecture(parameters, train, 1).eval()(train[0])
    assert name == "fixup" or not torch.equal(other, outputs)  # whose last layer begins at zero


def test_clouds_follow_the_ink():
    """Shares of points against shares of ink, to five standard errors: one run in a million."""
    image = torch.tensor([[[[1.0, 0.0], [3.0, 0.0]]]]).expand(4000, -1, -1, -1)
    clouds = point_clouds(image, 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    assert bool((clouds[:, 1] == -1).all())  # all ink is in the left column
    low = float((clouds[:, 0] == 1).double().mean())
    assert low == pytest.approx(0.75, abs=5 * math.sqrt(0.75 * 0.25 / 4000))


def test_the_loss_of_pixels_is_that_of_a_gaussian_for_each():
    torch.manual_seed(0)
    mean, variance, targets = (
        torch.randn(3, 1, 2, 2),
        torch.rand(3, 1, 2, 2) + 0.1,
        torch.rand(3, 1, 2, 2),
    )
    said = Predictions(mean.unsqueeze(0), variance)
    law = torch.distributions.Normal(mean, variance.sqrt())
    assert loss(said, targets) == pytest.approx(-float(law.log_prob(targets).mean()), rel=1e-5)


def test_differences_are_those_of_the_losses():
    shared = {**SMALL, "train": 30, "test": 20, "network": "fixup", "depths": [1], "widths": [3]}
    training = {"optimiser": "adam", "rate": 0.01, "epochs": 2, "batch": 10, "decay": 1e-5}
    found = compare_forms(shared | training, 0)
    for label in ("single", "multiple"):
        weights, full = found[f"loss_weights_{label}"], found[f"loss_full_{label}"]
        simple = found[f"loss_simple_{label}"]
        assert found[f"full_below_weights_{label}"] == weights - full
        assert found[f"simple_below_full_{label}"] == full - simple
        assert found[f"gained_{label}"] == weights - simple
        assert 10 ** found[f"decades_{label}"] == pytest.approx(weights / simple)
    assert found["control_classes"] == 0


def test_claims_of_the_tables_name_cells_that_are_there():
    study = study_named("marginal-likelihood")
    tables = [claim for claim in study.claims if claim.name.startswith("table")]
    assert len(tables) == 13
    for claim in tables:
        for scale in ("small", "paper"):
            assert sum(cell.fits(claim.cells) for cell in study.cells[scale]) == 1, claim.name
