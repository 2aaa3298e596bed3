import math

import pytest
import torch
from torch import nn

from coset import (
    CosetError,
    GaussianPrior,
    Laplace,
    Linearised,
    MaximumAPosteriori,
    MCDropout,
    MultiMode,
    Predictor,
    SampledSoftmax,
    discover,
    fit,
    functionalise,
    metrics,
    stack,
)
from coset.bayes import Categorical
from coset.evaluation import COLUMNS, posterior_quality_table
from coset.inference.folding import fold_masks
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


def test_symmetries_are_removed_from_both_sides(data, generator):
    """One network moved by its group again and again: far apart, and one point without it."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    group, network = discover(module, torch.zeros(2, 3)), functionalise(module)
    moved = [group.act(group.sample(generator=generator), network.weights) for _ in range(30)]
    model = predictor(network, PointMass(network.weights))
    row = posterior_quality_table({"one": model}, stack(moved), *data, group=group)["one"]
    assert row["MMD"] > 1
    assert row["NS"] == pytest.approx(0, abs=1e-3)


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
    with pytest.raises(CosetError, match=r"got posteriors=.*; needed a dictionary"):
        posterior_quality_table(model, reference, *data)
    with pytest.raises(CosetError, match=r"got reference=.*; needed a dictionary or Posterior"):
        posterior_quality_table({"a": model}, model, *data)
    with pytest.raises(CosetError, match=r"got a=.*; needed Predictor"):
        posterior_quality_table({"a": model.posterior}, reference, *data)
    with pytest.raises(CosetError, match="got group='all'; needed SymmetryGroup or None"):
        posterior_quality_table({"a": model}, reference, *data, group="all")


def test_a_closed_form_is_drawn_from_to_see_how_members_differ(network, data):
    """Laplace predicts in closed form, whose one member would have no mutual information at all."""
    test, outliers = data
    model = fit(network.module, test, method=Laplace())
    assert len(model(test[0]).members) == 1
    row = posterior_quality_table({"Laplace": model}, model.posterior, test, outliers)["Laplace"]
    drawn = model(test[0], rule=Linearised(SampledSoftmax()))
    expected = 100 * metrics.mutual_information(drawn.members).mean()
    assert row["IDMI"] == pytest.approx(float(expected), rel=1e-3)
    assert row["IDMI"] > 0
    mean = model(test[0]).mean
    assert row["Brier"] == pytest.approx(100 * float(metrics.brier(mean, test[1])), rel=1e-5)


def dropped(generator, last=()):
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 5), *last)
    data = torch.randn(40, 3, generator=generator), torch.randint(5, (40,), generator=generator)
    return module, data


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("modes", [1, 3])
def test_dropout_has_a_row_with_its_masks_in_the_weights(data, generator, per_example, modes):
    module, train = dropped(generator)
    method = MCDropout(MaximumAPosteriori(epochs=5), per_example=per_example)
    model = fit(module, train, method=method if modes == 1 else MultiMode(method, modes))
    reference = trained(functionalise(module), 12, generator)
    group = discover(module, train[0][:4])
    table = posterior_quality_table(
        {"dropout": model}, reference, *data, group=group, draws=30,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    row = table["dropout"]
    assert all(map(math.isfinite, row.values()))
    assert row["IDMI"] > 0
    if not per_example:  # the same draws by hand: the weights that read what is dropped have zeros
        drawn = model.posterior.sample(30, generator=torch.Generator().manual_seed(3))
        folded = fold_masks(model.network, drawn, data[0][0][:8])
        assert bool((folded["3.weight"] == 0).any())
        wanted = metrics.maximum_mean_discrepancy(
            flat(model.network, folded), flat(model.network, reference)
        )
        assert row["MMD"] == pytest.approx(10 * float(wanted), rel=1e-5)


def test_masks_that_are_in_no_weight_leave_the_distances_out(data, generator):
    module, train = dropped(generator, [nn.Dropout(0.2)])  # nothing reads the last one
    model = fit(module, train, method=MCDropout(MaximumAPosteriori(epochs=2)))
    reference = trained(functionalise(module), 12, generator)
    row = posterior_quality_table({"d": model}, reference, *data)["d"]
    assert math.isnan(row["MMD"])
    assert math.isfinite(row["Acc"])
    with pytest.raises(CosetError, match="reference with dropout"):
        posterior_quality_table({"d": model}, model.posterior, *data)
