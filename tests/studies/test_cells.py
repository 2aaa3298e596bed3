"""Every study at its smallest scale: what its cells give, and that its controls can be believed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from coset.engines import Serial
from coset.errors import CosetError
from coset.studies import names, run
from coset.studies.cells.data import checksum, pictures
from coset.studies.cells.deep_image_prior import draw_between, variation_chain
from coset.studies.cells.marginal_likelihood import curve
from coset.studies.cells.networks import accuracies, along_training, module_of, problem_of, trained
from coset.studies.exhibits import charts_of, explored_by, rows_of
from coset.studies.records import Record
from coset.studies.registry import study_named
from coset.studies.settings import DESCENT, DIGITS, OPTUNETS
from coset.studies.study import Claim, Exhibit, ExplorerExhibit, TableExhibit, fits
from coset.studies.verdicts import values_by_seed
from coset.zoo import populate, read_recipe
from coset.zoo.recipe import Drop, Keep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies") / "tiny"


@pytest.mark.parametrize("name", names())
def test_every_study_runs_and_its_controls_hold(name, folder):
    study = study_named(name)
    records = run(name, folder, scale="tiny", seeds=[0], engine=Serial()).of(name)
    assert {record.cell for record in records} == {cell.name for cell in study.cells["tiny"]}
    for control in study.controls:
        values = [r.values[control.quantity] for r in records if control.quantity in r.values]
        assert values, control.name
        assert max(map(abs, values)) <= control.most, control.name
    known = {quantity for record in records for quantity in record.values}
    assert {claim.quantity for claim in study.claims} <= known
    for exhibit in study.exhibits:
        if isinstance(exhibit, Exhibit):
            panels = [p for p in exhibit.panels if any(has_cell(study, s.cells) for s in p.series)]
            assert len(charts_of(exhibit, records)) == len(panels), exhibit.name
        if isinstance(exhibit, TableExhibit):
            rows = [where for _, _, where in exhibit.rows if has_cell(study, where)]
            assert len(rows_of(exhibit, records)) == len(rows), exhibit.name
        if isinstance(exhibit, ExplorerExhibit):
            assert explored_by(exhibit, records) is not None, exhibit.name


def has_cell(study, where, scales=("tiny",), seeds=(0,)):
    """Whether a run of a study has a cell with these parameters and this seed."""
    given = [
        cell.parameters | {"seed": s} for k in scales for cell in study.cells[k] for s in seeds
    ]
    return any(fits(parameters, where) for parameters in given)


@pytest.mark.parametrize("name", names())
def test_every_row_and_panel_is_of_a_cell(name):
    study = study_named(name)
    seeds = study.seeds["small"]
    for exhibit in study.exhibits:
        if isinstance(exhibit, Exhibit):
            wheres = [series.cells for panel in exhibit.panels for series in panel.series]
        elif isinstance(exhibit, TableExhibit):
            wheres = [where for _, _, where in exhibit.rows]
        else:
            wheres = [exhibit.cells]
        assert wheres
        assert all(has_cell(study, where, ("demo", "small"), seeds) for where in wheres), (
            exhibit.name
        )


def test_each_pair_of_networks_has_its_paths_and_permutations(folder):
    records = run("rebasin-barriers", folder, scale="tiny", seeds=[0], engine=Serial())
    values = next(r for r in records.of("rebasin-barriers") if r.cell == "pairs").values
    assert len(values["pairs"]) == 6  # of four networks
    everything = zip(values["losses"], values["permutations"], values["alike"], strict=True)
    for losses, tables, alike in everything:
        assert len(losses) == 2 ** len(values["factors"]) == 4
        for choice in losses:  # whatever is moved, the ends compute the same functions
            assert choice[0] == pytest.approx(losses[0][0], rel=1e-3)
            assert choice[-1] == pytest.approx(losses[0][-1], rel=1e-3)
        assert max(losses[-1]) < max(losses[0])
        for table, told in zip(tables, alike, strict=True):
            places = range(len(table))
            assert sorted(table) == list(places)
            matched = sum(told[k][table[k]] for k in places)
            assert matched > sum(told[k][k] for k in places)
            assert matched > sum(told[table[k]][k] for k in places)  # and not the other way round


def test_networks_are_trained_once_for_all_studies_of_a_run(tmp_path):
    facts = DIGITS | {"members": 2, "epochs": 1, "train": 64}
    one = trained(facts, seed=0, folder=tmp_path)
    (path,) = (tmp_path / "networks").iterdir()
    before = path.stat().st_mtime_ns
    again = trained(facts | {"part": "other"}, seed=0, folder=tmp_path)
    assert path.stat().st_mtime_ns == before
    assert all(torch.equal(one[name], again[name]) for name in one)
    other = trained(facts, seed=1, folder=tmp_path)
    assert not torch.equal(one["linear1.weight"], other["linear1.weight"])


def test_weight_decay_is_the_precision_over_the_number_of_data():
    facts = DIGITS | {"decay": 0.01, "train": 100}
    assert problem_of(facts).prior.precision == pytest.approx(1.0)


def test_training_from_check_to_check_begins_at_the_start():
    checks, stacks = along_training(DESCENT | {"checks": [0, 1], "members": 2, "train": 64}, seed=0)
    assert checks == [0, 1]
    moved = (stacks[1]["linear1.weight"] - stacks[0]["linear1.weight"]).abs().max()
    assert 0 < float(moved) < 1


def test_other_data_have_another_checksum():
    one = checksum({"data": "digits", "train": 100})
    assert one == checksum({"data": "digits", "train": 100, "members": 3})
    assert one != checksum({"data": "digits", "train": 101})
    assert checksum({"part": "toy"}) == ""


def test_held_out_classes_are_the_outliers():
    found = pictures({"data": "digits", "held_out": [8, 9], "side": 20})
    assert found.classes == 8
    assert found.outliers.shape[1:] == (1, 20, 20)
    assert int(found.train[1].max()) == 7


def test_the_curve_leaves_a_gap():
    (inputs, targets), (places, _) = curve(40, 0.1, 0)
    assert len(inputs) == len(targets) == 40
    between = (inputs > 0) & (inputs < 0.5)
    assert not between.any()
    assert len(places) == 100
    assert math.isclose(float(places.min()), -2, abs_tol=1e-6)


def test_a_zoo_that_is_there_is_shared_out_over_the_seeds(tmp_path, monkeypatch):
    zoo = populate(read_recipe("tiny"), tmp_path / "zoo", 4, engine=Serial())
    facts = {"zoo": "tiny", "members": 2}
    monkeypatch.setenv("COSET_ZOO", str(tmp_path / "zoo"))
    found = [trained(facts, seed=seed, folder=tmp_path) for seed in (0, 1)]
    name = next(iter(found[0]))
    assert torch.equal(torch.cat([f[name] for f in found]), zoo.weights()[name])
    with pytest.raises(CosetError, match="needed 6"):
        trained(facts, seed=2, folder=tmp_path)
    with pytest.raises(CosetError, match="a zoo of 'tiny'"):
        trained(facts | {"zoo": "optunet-mnist"}, seed=0, folder=tmp_path)
    monkeypatch.delenv("COSET_ZOO")
    (tmp_path / "run").mkdir()
    own = trained(facts, seed=1, folder=tmp_path / "run")
    assert torch.equal(own[name], found[1][name])


@pytest.mark.slow
@pytest.mark.data
def test_networks_of_a_zoo_see_pictures_as_in_their_training(tmp_path, monkeypatch):
    recipe = read_recipe(OPTUNETS["zoo"])
    quick = replace(recipe, training=replace(recipe.training, epochs=1), keep=Keep(()), drop=Drop())
    data = replace(quick.data, train=500, test=1000)
    zoo = populate(replace(quick, data=data), tmp_path / "zoo", 2, engine=Serial())
    monkeypatch.setenv("COSET_ZOO", str(tmp_path / "zoo"))
    facts = OPTUNETS | {"test": 1000, "members": 2}
    found = accuracies(module_of(facts), trained(facts, seed=0, folder=tmp_path), pictures(facts))
    told = [member.metrics["accuracy"] for member in zoo.members]
    assert found.tolist() == pytest.approx(told, abs=1e-6)


def test_a_cell_that_looks_for_a_cause_is_judged_and_shown_apart():
    plain, cause = ({"data": "digits"}, {"data": "digits", "cause": "rate"})
    claim = Claim("c", "s", "p", "w", "q", cells={"data": "digits"})
    records = [
        Record("s", "c", "tiny", seed, {"q": value}, 0.0, 0, 1, {}, 1, "", (), facts)
        for facts, value in ((plain, 1.0), (cause, 5.0))
        for seed in range(3)
    ]
    assert values_by_seed(claim, records) == [1.0, 1.0, 1.0]
    assert values_by_seed(replace(claim, cells={"cause": "rate"}), records) == [5.0, 5.0, 5.0]
    table = TableExhibit(
        "t", "t", "", (("all", "", {}), ("rate", "", {"cause": "rate"})), (("q", "q"),)
    )
    assert rows_of(table, records) == [["all", "1 ± 0"], ["rate", "5 ± 0"]]


def test_pixels_between_neighbours_follow_their_density():
    """20,000 draws against the distribution function by quadrature: p < 0.001 is a false alarm."""
    neighbours = torch.tensor([0.2, 0.5, 0.9, math.nan], dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    drawn = draw_between(neighbours.expand(20_000, 4), 3.0, random)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    density = (-3.0 * (grid[:, None] - neighbours[:3]).abs().sum(1)).exp()
    below = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density, grid)])
    found = kstest(drawn.numpy(), lambda x: np.interp(x, grid, below / below[-1]))
    assert found.pvalue > 0.001


def test_four_pixels_under_total_variation():
    """``E TV`` under ``exp(-λ TV)`` by quadrature, within 5 standard errors of a thinned chain."""
    chain = variation_chain(2, 2.0, 9000, 1500, torch.Generator().manual_seed(0))
    places = torch.linspace(0.0125, 0.9875, 40, dtype=torch.float64)
    square = torch.cartesian_prod(places, places, places, places)
    total = sum((square[:, i] - square[:, j]).abs() for i, j in ((0, 1), (2, 3), (0, 2), (1, 3)))
    weights = torch.softmax(-2.0 * total, 0)
    expected = float((weights * total).sum())
    seen = (chain.diff(dim=1).abs().sum((1, 2)) + chain.diff(dim=2).abs().sum((1, 2))).double()
    assert float(seen.mean()) == pytest.approx(expected, abs=5 * float(seen.std()) / 1500**0.5)


def test_records_tell_how_the_networks_of_the_zoo_were_trained():
    recipe = read_recipe(OPTUNETS["zoo"])
    pictures = recipe.data.train
    assert pictures == OPTUNETS["zoo_pictures"]
    steps = recipe.training.epochs * pictures // recipe.training.batch_size
    assert steps == OPTUNETS["zoo_steps"], "give the new steps, and new records get new keys"
