from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from coset.data.datasets import LOADERS, UCI, digits, load, mauna_loa_co2, standard_split, uci
from coset.errors import CosetError


def test_digits_are_those_of_scikit_learn():
    found, reference = digits(), load_digits()
    images = torch.cat([found.train_inputs, found.test_inputs])
    labels = torch.cat([found.train_targets, found.test_targets])
    assert images.dtype == torch.float32
    np.testing.assert_array_equal(images[:, 0].numpy() * 16, reference.images)
    np.testing.assert_array_equal(labels.numpy(), reference.target)
    assert len(found.test_targets) == 450
    assert "package" in found.origin
    assert str(found).startswith("digits: 1347 training and 450 test inputs of 1×8×8, 10 classes")


def test_most_test_digits_are_from_other_hands():
    """Whoever wrote filled in a form, which asked for the digits in order three times first."""
    found = digits()
    labels = torch.cat([found.train_targets, found.test_targets]).tolist()
    form = 3 * list(range(10))
    begins = [at for at in range(len(labels)) if labels[at : at + 30] == form]
    cut = len(found.train_targets)
    assert [at - cut for at in begins if abs(at - cut) < 100] == [-60, 68]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("MNIST", "mnist"),
        ("Fashion-MNIST", "fashion_mnist"),
        ("cifar", "cifar10"),
        ("TinyImageNet", "tiny_imagenet"),
        ("boston", "uci/boston"),
    ],
)
def test_unknown_names_get_a_hint(typed, meant):
    with pytest.raises(CosetError, match=f"{typed}.*did you mean .*{meant}"):
        load(typed)


def test_a_name_like_no_other():
    with pytest.raises(CosetError, match=r"'zzz'; needed one of digits, .*; choose one"):
        load("zzz")


@pytest.mark.parametrize("name", [3, None, Path("mnist")])
def test_a_name_is_a_text(name):
    with pytest.raises(CosetError, match=r"got name=.*; needed a text"):
        load(name)


def test_load_knows_every_set():
    assert len(LOADERS) == 11 + len(UCI)
    assert load("digits").classes == tuple("0123456789")


def write_yacht(folder):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(308, 7)).round(4)
    (folder / "uci").mkdir()
    np.savetxt(folder / "uci" / "yacht.txt", table, fmt="%.4f")
    return table


def test_uci_from_a_table(data_folder):
    table = write_yacht(data_folder)
    found = uci("yacht", split=3)
    assert tuple(found.train_inputs.shape) == (277, 6)
    assert tuple(found.test_targets.shape) == (31, 1)
    assert found.name == "uci/yacht"
    assert found.classes == ()
    _, test = standard_split(308, 3)
    np.testing.assert_allclose(found.test_inputs, table[test, :-1], rtol=1e-6)
    np.testing.assert_allclose(found.test_targets[:, 0], table[test, -1], rtol=1e-6)
    assert load("uci/yacht").train_inputs.shape == (277, 6)


def test_standard_split_by_the_documented_rule():
    """The rule as its authors wrote it, with the global legacy generator."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(1)  # noqa: NPY002
        for split in range(4):
            order = np.random.choice(range(77), 77, replace=False)  # noqa: NPY002
            train, test = standard_split(77, split)
            np.testing.assert_array_equal(train, order[: round(77 * 0.9)])
            np.testing.assert_array_equal(test, order[round(77 * 0.9) :])
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_uci_refuses(data_folder):
    write_yacht(data_folder)
    with pytest.raises(CosetError, match=r"'yatch'.*did you mean yacht"):
        uci("yatch")
    for split in (-1, 20):
        with pytest.raises(CosetError, match=f"split {split} of yacht; needed 0 to 19"):
            uci("yacht", split)
    for split in (1.5, "0", None):
        with pytest.raises(CosetError, match="got split"):
            uci("yacht", split)
    with pytest.raises(CosetError, match="got name=None; needed a text"):
        uci(None)
    with pytest.raises(CosetError, match=r"got no .*boston\.txt"):
        uci("boston")
    path = data_folder / "uci" / "yacht.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(CosetError, match=r"inputs \(307, 6\).*needed 308 rows of 6"):
        uci("yacht")
    path.write_text("\n".join(line + " 1" for line in lines))
    with pytest.raises(CosetError, match="row of 8"):
        uci("yacht")


@pytest.fixture
def co2(data_folder):
    (data_folder / "mauna_loa_co2").mkdir()
    (data_folder / "mauna_loa_co2" / "co2.csv").write_text(
        "date,co2\n19580329,316.1\n19880702,350.5\n19880709,\n20010101,370.2\n"
    )


@pytest.mark.usefixtures("co2")
def test_co2_years_and_gaps():
    found = mauna_loa_co2()
    # 29 March is day 87 after 1 January; 2 July of a leap year is day 183 of 366.
    expected = [1958 + 87 / 365, 1988 + 183 / 366]
    np.testing.assert_allclose(found.train_inputs[:, 0], expected, rtol=1e-7)
    np.testing.assert_allclose(found.train_targets[:, 0], [316.1, 350.5], rtol=1e-6)
    assert found.test_inputs.tolist() == [[2001.0]]
    assert len(mauna_loa_co2(until=1960.0).train_inputs) == 1


@pytest.mark.usefixtures("co2")
@pytest.mark.parametrize("until", [1900.0, 2050.0])
def test_co2_needs_weeks_on_both_sides(until):
    with pytest.raises(CosetError, match=f"until={until}; needed a year between 1958.24 and 2001"):
        mauna_loa_co2(until=until)


@pytest.mark.usefixtures("co2")
def test_co2_until_a_word():
    with pytest.raises(CosetError, match="got until='1990'"):
        mauna_loa_co2(until="1990")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "no row"),
        ("19580329,\n", "no reading"),
        ("19580329,316.1\n199", "row of 1"),
        ("19580329,316.1\n199104,355.0", "Month out of range"),
        ("19580329,316.1\n1e300,355.0", "out of range"),
        ("19580329,inf\n", "inf in row 1"),
    ],
)
def test_co2_cut_short_is_named(rows, words, data_folder):
    path = data_folder / "mauna_loa_co2" / "co2.csv"
    path.parent.mkdir()
    path.write_text(f"date,co2\n{rows}")
    with pytest.raises(CosetError, match=rf"co2\.csv, .*{words}"):
        mauna_loa_co2()


def test_digits_with_a_gap_are_refused(data_folder):
    (data_folder / "digits").mkdir()
    (data_folder / "digits" / "digits.csv").write_text("," * 64 + "3\n")
    with pytest.raises(CosetError, match=r"digits\.csv, .*nan in row 1"):
        digits()
