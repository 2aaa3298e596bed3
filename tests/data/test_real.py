"""The real sets in the folder that COSET_DATA names: counts and moments known from elsewhere."""

import os

import numpy as np
import pytest
import torch

from coset.data import CORRUPTIONS, UCI, corrupt, load, outliers_for, standardise, uci
from coset.data.datasets import standard_split
from coset.data.formats import read_npz
from coset.data.pictures import read_pictures

pytestmark = [
    pytest.mark.data,
    pytest.mark.usefixtures("real_data"),
    pytest.mark.skipif(
        not os.environ.get("COSET_DATA"),
        reason="COSET_DATA is not set: it names the folder with the real data sets",
    ),
]


@pytest.mark.parametrize(
    ("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)]
)
def test_whole_sets_have_the_known_moments(name, mean, std):
    found = load(name)
    assert tuple(found.train_inputs.shape) == (60000, 1, 28, 28)
    assert tuple(found.test_inputs.shape) == (10000, 1, 28, 28)
    assert float(found.train_inputs.double().mean()) == pytest.approx(mean, abs=1e-4)
    assert float(found.train_inputs.double().std()) == pytest.approx(std, abs=1e-4)
    counts = found.train_targets.bincount().tolist()
    known = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts == (known if name == "mnist" else [6000] * 10)


def test_cifar10_part():
    found = load("cifar10")
    assert found.train_targets.bincount().tolist() == [1500] * 10
    assert found.test_targets.bincount().tolist() == [400] * 10
    known = torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float32)
    torch.testing.assert_close(found.train_inputs.mean((0, 2, 3)), known, atol=0.01, rtol=0)


@pytest.mark.parametrize("name", ["kmnist", "notmnist"])
def test_sets_with_a_test_part_only(name):
    found = load(name)
    assert len(found.train_inputs) == 0
    assert found.test_targets.bincount().tolist() == [1000] * 10


def test_omniglot_has_twenty_drawings_of_each():
    found = load("omniglot")
    assert found.test_targets.bincount().tolist() == [20] * 242
    assert found.test_inputs.unique().tolist() == [0.0, 1.0]
    assert 0.02 < float(found.test_inputs.mean()) < 0.1  # thin ink on an empty page


def test_tiny_imagenet_against_cifar10():
    cifar = load("cifar10")
    outliers = outliers_for(cifar, "tiny_imagenet")
    assert tuple(outliers.test_inputs.shape[1:]) == (3, 32, 32)
    names = {outliers.classes[label] for label in outliers.test_targets.tolist()}
    assert len(outliers.test_targets) == 50 * len(names)
    assert not names & {"tabby", "school bus", "bullfrog", "goose", "Chihuahua"}
    assert {"banana", "teapot"} <= names


@pytest.mark.parametrize(
    ("name", "rows", "each"), [("tiny_imagenet", 2000, 100), ("cifar10", 3000, 300)]
)
def test_the_first_so_many_hold_all_classes_alike(name, rows, each):
    """What the recipes of zoos take; CIFAR-10 is in its published order, at random."""
    found = read_pictures(name, parts=("train",))
    counts = found.train_targets[:rows].bincount()
    counts = counts[counts > 0]
    assert len(counts) == rows // each
    slack = 0 if name == "tiny_imagenet" else 5 * (each * (1 - each / rows)) ** 0.5
    assert ((counts - each).abs() <= slack).all()


def test_every_stored_uci_split_is_regenerated(real_data):
    checked = 0
    for key, rows, _, splits in UCI.values():
        (stored,) = read_npz(real_data / "uci_regression.npz", f"{key}/test_index")
        assert len(stored) == splits
        for split, rows_of_test in enumerate(stored):
            train, test = standard_split(rows, split)
            np.testing.assert_array_equal(np.sort(test), np.sort(rows_of_test))
            assert len(np.union1d(train, test)) == rows
            checked += 1
    assert checked == 165


@pytest.mark.parametrize(
    ("name", "known"), [("boston", 4.59), ("concrete", 10.3), ("energy", 3.06), ("yacht", 8.95)]
)
def test_ridge_regression_reaches_the_known_error(name, known):
    """Mean root-mean-square error over the 20 splits, in raw units, as measured elsewhere."""
    errors = []
    for split in range(20):
        found = standardise(uci(name, split))
        x, y = found.train_inputs.double(), found.train_targets.double()
        gram = x.T @ x + torch.eye(x.shape[1], dtype=x.dtype)
        residual = found.test_inputs.double() @ torch.linalg.solve(gram, x.T @ y)
        residual = (residual - found.test_targets) * found.statistics.target_std
        errors.append(float(residual.square().mean().sqrt()))
    assert np.mean(errors) == pytest.approx(known, rel=0.02)


@pytest.mark.parametrize("name", UCI)
def test_uci_sets_standardise(name):
    found = standardise(uci(name))
    assert found.train_inputs.isfinite().all()
    moments = found.train_inputs.double()
    torch.testing.assert_close(moments.mean(0), torch.zeros_like(moments[0]), atol=1e-4, rtol=0)
    deviation = moments.std(0, correction=0)
    assert ((deviation - 1).abs() < 1e-3).logical_or(deviation < 1e-3).all()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_of_natural_pictures_are_monotone(kind):
    clean = read_pictures("cifar10", parts=("test",)).test_inputs[:300]
    errors = [
        float((corrupt(clean, kind, s, generator=torch.Generator().manual_seed(1)) - clean).norm())
        for s in range(1, 6)
    ]
    assert errors == sorted(errors)
    assert errors[0] > 0
