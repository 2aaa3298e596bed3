"""The one exception, counts that are none, and settings of another kind."""

from dataclasses import fields

import numpy as np
import pytest
import torch

import coset
from coset.errors import CosetError, require_counts, require_kind, require_kinds
from coset.vocabulary import Progress

COUNTS = {
    "members": lambda n: coset.DeepEnsemble(n),
    "modes": lambda n: coset.MultiMode(coset.MaximumAPosteriori(), n),
    "swag rank": lambda n: coset.SWAG(n),
    "swag members": lambda n: coset.SWAG(members=n),
    "swag epochs": lambda n: coset.SWAG(epochs=n),
    "rebased rank": lambda n: coset.RebasedGaussian(coset.HMC(), n),
    "epochs": lambda n: coset.MaximumAPosteriori(epochs=n),
    "batch size": lambda n: coset.MaximumAPosteriori(batch_size=n),
    "chains": lambda n: coset.HMC(chains=n),
    "leapfrog steps": lambda n: coset.HMC(max_steps=n),
    "depth": lambda n: coset.NUTS(max_depth=n),
    "draws": lambda n: coset.SGHMC(draws=n),
    "burn-in": lambda n: coset.SGLD(burn_in=n),
    "predicted draws": lambda n: coset.MonteCarlo(n),
    "softmax draws": lambda n: coset.SampledSoftmax(n),
    "linearised samples": lambda n: coset.Linearised(samples=n),
    "curvature rank": lambda n: coset.LowRank(n),
    "matrix-free samples": lambda n: coset.MatrixFree(n),
    "subnetwork": lambda n: coset.Subnetwork(n),
    "evidence steps": lambda n: coset.ByEvidence(steps=n),
    "records": lambda n: coset.Checkpoint("folder", every=n),
    "sampled": lambda n: point().sample(n, generator=torch.Generator()),
}


def point() -> coset.PointMass:
    return coset.PointMass({"w": torch.zeros(2)})


@pytest.mark.parametrize("make", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("count", [1.5, -1, "3", True, float("nan")], ids=repr)
def test_what_is_no_count_is_named(make, count):
    with pytest.raises(CosetError, match="needed a whole number, at least"):
        make(count)


def test_counts_of_any_library_are_taken():
    require_counts(a=3, b=np.int64(1))
    require_counts(0, c=0)
    assert len(point().sample(np.int32(2), generator=torch.Generator())["w"]) == 2


def test_a_folder_is_a_path():
    with pytest.raises(CosetError, match="needed a path"):
        coset.Checkpoint(3)


METHODS = [
    "DeepEnsemble",
    "HMC",
    "Laplace",
    "MCDropout",
    "MaximumAPosteriori",
    "MeanField",
    "MultiMode",
    "NUTS",
    "RebasedGaussian",
    "SGHMC",
    "SGLD",
    "SWAG",
]
PARTS = [
    "Adam",
    "ByEvidence",
    "Cosine",
    "Cyclical",
    "Learnt",
    "Linearised",
    "OneCycle",
    "SGD",
    "Subnetwork",
]
NEEDED = {"MultiMode": {"inner": coset.MaximumAPosteriori()}, "Subnetwork": {"size": 8}}


def made(name: str, **settings: object) -> object:
    return getattr(coset, name)(**NEEDED.get(name, {}) | settings)


SETTINGS = [
    (name, field.name)
    for name in METHODS + PARTS
    for field in fields(made(name))
    if field.name != "validation"  # data, which fit reads
]


def test_all_methods_are_gone_through():
    public = {name for name in coset.NAMES if hasattr(getattr(coset, name), "fit")}
    assert public - {"Method"} == set(METHODS)


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=str)
def test_no_setting_takes_just_any_object(name, setting):
    for wrong in (object(), "no such word"):
        if (name, setting) == ("Laplace", "subset") and isinstance(wrong, str):
            continue  # a pattern of names
        with pytest.raises(CosetError, match=f"got .*{setting.split('_')[0]}"):
            made(name, **{setting: wrong})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: coset.HMC(checkpoint="run"), r"needed Checkpoint or None; write checkpoint=Check"),
        (lambda: coset.SGLD(schedule="cosine"), r"write schedule=Cyclical\(…\)"),
        (lambda: coset.MeanField(optimiser="adam"), r"for example optimiser=Adam\(\)"),
        (lambda: coset.MeanField(optimiser=coset.SGD), r"the class SGD as .* optimiser=SGD\(\)"),
        (lambda: coset.RebasedGaussian(align="weights"), r"for example align=ByWeights\(\)"),
        (lambda: coset.Laplace("kfac"), r"got curvature='kfac'; .* example curvature=KFAC\(\)"),
        (lambda: coset.Laplace(tuning=coset.KFAC), r"the class KFAC .* write tuning=ByEvidence\("),
        (lambda: coset.Linearised("probit"), r"for example link=Probit\(\)"),
        (lambda: coset.Linearised(coset.MonteCarlo()), "got link=MonteCarlo"),
        (lambda: coset.Learnt(curvature=coset.MatrixFree()), "got curvature=MatrixFree"),
        (lambda: coset.MatrixFree(solver="cg"), r"write solver=|for example solver="),
        (lambda: coset.MatrixFree(features="rough"), "got features='rough'"),
        (lambda: coset.MonteCarloFisher("kfac"), "got inner='kfac'"),
        (lambda: coset.KFAC("sum"), "got approximation='sum'"),
        (lambda: coset.KFAC(columns=0), "got columns=0; needed a whole number, at least 1"),
        (lambda: coset.SGD("fast"), "got learning_rate='fast'; needed a number"),
        (lambda: coset.Laplace(subset=3), "got subset=3; needed a text or tuple or LastLayer"),
    ],
)
def test_the_advice_says_what_to_write(make, told):
    with pytest.raises(CosetError, match=told):
        make()


def test_what_behaves_like_a_kind_is_of_it():
    class Halved:
        def factor(self, done: float) -> float:
            return 0.5

    assert coset.MaximumAPosteriori(schedule=Halved()).schedule.factor(0) == 0.5
    require_kinds(coset.Adam(np.float32(0.1), betas=[0.9, 0.99], epsilon=torch.tensor(1e-8)))


def test_functions_are_of_the_kind_of_their_arguments():
    require_kind(Progress | None, a=None, b=print, c=lambda done, line: None)
    with pytest.raises(CosetError, match=r"got d=.*; needed a function of 2 arguments or None"):
        require_kind(Progress | None, d=lambda done: None)


def test_a_value_of_many_lines_is_told_in_one():
    with pytest.raises(CosetError, match=r"got name=array\(\[\[0\., 0\.\], \[.*; needed a text"):
        require_kind(str, name=np.zeros((9, 2)))
