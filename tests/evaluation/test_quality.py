import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import coset
from coset import CosetError, GaussianPrior, Predictor, functionalise, metrics
from coset.bayes import Categorical
from coset.evaluation import COLUMNS, posterior_quality_table
from coset.posterior import PointMass, Samples


@pytest.fixture
def network():
    return functionalise(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)))


def trained(network, members, generator, scale=1.0):
    """Independent networks; their hidden units are in any order."""
    return {
        name: scale * torch.randn(members, *tensor.shape, generator=generator)
        for name, tensor in network.weights.items()
    }


def predictor(network, posterior):
    return Predictor(network, posterior, Categorical(), GaussianPrior())


@pytest.fixture
def data(generator):
    test = (torch.randn(60, 3, generator=generator), torch.randint(5, (60,), generator=generator))
    return test, 5 * torch.randn(40, 3, generator=generator)


def flat(network, members):
    return network.layout.flatten(members)


def test_the_row_is_that_of_the_functions_in_the_posters_units(network, data, generator):
    test, outliers = data
    reference = trained(network, 12, generator)
    members = trained(network, 6, generator, scale=2.0)
    model = predictor(network, Samples(members))
    row = posterior_quality_table({"ours": model}, reference, test, outliers)["ours"]
    assert list(row) == [column.title for column in COLUMNS.values()]
    p, y = model(test[0]), test[1]
    scores = [metrics.maximum_probability_score(model(x).mean) for x in (test[0], outliers)]
    discrepancy = metrics.maximum_mean_discrepancy(flat(network, members), flat(network, reference))
    expected = {
        "MMD": 10 * discrepancy,
        "Acc": 100 * metrics.accuracy(p.mean, y),
        "ECE": 100 * metrics.expected_calibration_error(p.mean, y),
        "ACE": 1000 * metrics.classwise_calibration_error(p.mean, y),
        "Brier": 100 * metrics.brier(p.mean, y),
        "AUPR": 100 * metrics.aupr(*scores),
        "FPR95": 100 * metrics.fpr_at_95(*scores),
        "IDMI": 100 * metrics.mutual_information(p.members).mean(),
        "OODMI": 100 * metrics.mutual_information(model(outliers).members).mean(),
    }
    for title, value in expected.items():
        assert row[title] == pytest.approx(float(value), rel=1e-4, abs=1e-4)
    assert math.isnan(row["NS"])


def test_the_reference_itself_is_nearest(network, data, generator):
    reference = trained(network, 40, generator)
    point = {name: tensor[0] for name, tensor in reference.items()}
    table = posterior_quality_table(
        {
            "same law": predictor(network, Samples(trained(network, 40, generator))),
            "one mode": predictor(network, PointMass(point)),
        },
        Samples(reference),
        *data,
    )
    assert table["same law"]["MMD"] < 1
    assert table["one mode"]["MMD"] > 5
    assert table["one mode"]["IDMI"] == pytest.approx(0, abs=1e-3)


def test_symmetries_are_removed_from_both_sides(network, data, generator, monkeypatch):
    """Members that are one network with its units reordered: far apart, and one point without."""

    def sort_units(group, weights):
        order = weights["0.bias"].argsort()
        return {
            "0.weight": weights["0.weight"][order],
            "0.bias": weights["0.bias"][order],
            "2.weight": weights["2.weight"][:, order],
            "2.bias": weights["2.bias"],
        }

    monkeypatch.setattr(coset, "canonicalise", sort_units, raising=False)
    one = {name: tensor[0] for name, tensor in trained(network, 1, generator).items()}

    def reordered(count):
        members = []
        for _ in range(count):
            order = torch.randperm(4, generator=generator)
            shuffled = {
                "0.weight": one["0.weight"][order],
                "0.bias": one["0.bias"][order],
                "2.weight": one["2.weight"][:, order],
                "2.bias": one["2.bias"],
            }
            members.append(shuffled)
        return {name: torch.stack([member[name] for member in members]) for name in one}

    model = predictor(network, PointMass(one))
    group = SimpleNamespace()
    row = posterior_quality_table({"one": model}, reordered(30), *data, group=group)["one"]
    assert row["MMD"] > 1
    assert row["NS"] == pytest.approx(0, abs=1e-6)


def test_a_posterior_over_the_last_layer_takes_the_rest_from_the_network(network, data, generator):
    reference = trained(network, 10, generator)
    last = {name: tensor for name, tensor in reference.items() if name.startswith("2.")}
    row = posterior_quality_table({"last": predictor(network, Samples(last))}, reference, *data)
    whole = {
        name: last.get(name, tensor.expand(10, *tensor.shape))
        for name, tensor in network.weights.items()
    }
    expected = 10 * metrics.maximum_mean_discrepancy(flat(network, whole), flat(network, reference))
    assert row["last"]["MMD"] == pytest.approx(float(expected), abs=1e-4)


def test_bad_calls_say_which(network, data, generator):
    reference = trained(network, 4, generator)
    with pytest.raises(CosetError, match="no posteriors"):
        posterior_quality_table({}, reference, *data)
    model = predictor(network, Samples(reference))
    with pytest.raises(CosetError, match="unknown 'w'"):
        posterior_quality_table({"a": model}, {"w": torch.zeros(3, 2)}, *data)
