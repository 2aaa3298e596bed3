from dataclasses import replace

import numpy as np
import pytest
import torch

from coset.data.dataset import (
    Dataset,
    Statistics,
    holding_out,
    standardise,
    standardise_inputs,
    statistics,
    validation_split,
)
from coset.errors import CosetError


@pytest.fixture
def pictures(generator):
    def part(count):
        images = torch.rand(count, 3, 4, 5, generator=generator, dtype=torch.float64)
        return images, torch.arange(count) % 4

    return Dataset("pictures", *part(30), *part(10), classes=tuple("abcd"), partners=("others",))


@pytest.fixture
def table(generator):
    def part(count):
        inputs = torch.randn(count, 3, generator=generator, dtype=torch.float64) * 7 + 2
        return inputs, 3 * inputs[:, :1] - 1

    return Dataset("table", *part(40), *part(9))


def test_standardise_pictures_by_channel(pictures):
    result = standardise(pictures)
    train = pictures.train_inputs.numpy()
    mean, std = train.mean((0, 2, 3)), train.std((0, 2, 3))
    expected = (pictures.test_inputs.numpy() - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(result.test_inputs.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(result.train_inputs.mean((0, 2, 3)), 0, atol=1e-12)
    assert torch.equal(result.train_targets, pictures.train_targets)


def test_standardise_a_table_with_its_targets(table):
    result = standardise(table)
    np.testing.assert_allclose(result.train_inputs.std(0, correction=0), 1, rtol=1e-12)
    np.testing.assert_allclose(result.train_targets.std(0, correction=0), 1, rtol=1e-12)
    raw = result.test_targets * result.statistics.target_std + result.statistics.target_mean
    np.testing.assert_allclose(raw, table.test_targets, rtol=1e-12)


def test_a_constant_column_stays_finite():
    inputs = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]])
    result = standardise(Dataset("constant", inputs, inputs[:, 1:], inputs, inputs[:, 1:]))
    torch.testing.assert_close(result.train_inputs[:, 0], torch.zeros(3), check_dtype=False)


def test_statistics_of_single_precision_are_summed_in_double(generator):
    inputs = 1000 + torch.rand(100_000, 2, generator=generator)
    single = statistics(Dataset("long", inputs, inputs, inputs, inputs))
    np.testing.assert_allclose(single.input_mean, inputs.double().mean(0), rtol=1e-7)
    np.testing.assert_allclose(single.input_std, inputs.double().std(0, correction=0), rtol=1e-7)


def test_statistics_of_single_precision_follow_the_dtype(table):
    single = Dataset("single", *(part.float() for part in (*table.train, *table.test)))
    result = standardise(single)
    assert result.train_inputs.dtype == result.train_targets.dtype == torch.float32


def test_whole_numbers_have_a_mean_between_them():
    inputs, targets = torch.tensor([[0, 5], [1, 7]]), torch.tensor([[1], [2]])
    counts = Dataset("counts", inputs.byte(), targets, inputs.byte(), targets)
    by = statistics(counts)
    assert by.input_mean.tolist() == [0.5, 6.0]
    assert by.target_std.tolist() == [0.5]
    assert standardise(counts).train_targets.tolist() == [[-1.0], [1.0]]
    assert standardise(counts).test_inputs.tolist() == [[-1.0, -1.0], [1.0, 1.0]]


def test_statistics_of_other_channels_are_refused(pictures, table):
    grey = replace(
        pictures, train_inputs=torch.rand(30, 1, 4, 5), test_inputs=torch.rand(10, 1, 4, 5)
    )
    with pytest.raises(CosetError, match=r"shape \(1, 4, 5\) and statistics of shape \(3, 1, 1\)"):
        standardise(grey, by=statistics(pictures))
    with pytest.raises(CosetError, match=r"statistics of shape \(3,\)"):
        standardise_inputs(torch.zeros(4, 1), statistics(table))


def test_standardise_refuses(pictures):
    with pytest.raises(CosetError, match="already"):
        standardise(standardise(pictures))
    outliers = Dataset("strange", *(part[:0] for part in pictures.train), *pictures.test)
    with pytest.raises(CosetError, match="no training part"):
        standardise(outliers)
    by = statistics(pictures)
    moved = standardise(outliers, by=by)
    assert torch.equal(moved.test_inputs, standardise_inputs(pictures.test_inputs, by))
    assert moved.statistics is by
    assert isinstance(by, Statistics)


def test_holding_out(pictures):
    rest, held = holding_out(pictures, [3, 1])
    assert rest.classes == ("a", "c")
    assert held.classes == ("b", "d")
    assert rest.partners == held.partners == ("others",)
    assert rest.name == "pictures without b, d"
    assert len(rest.train_inputs) + len(held.train_inputs) == 30
    assert len(rest.test_inputs) + len(held.test_inputs) == 10
    for part, names in ((rest, "ac"), (held, "bd")):
        for inputs, targets, whole in (
            (*part.train, pictures.train),
            (*part.test, pictures.test),
        ):
            old = [i for i, label in enumerate(whole[1].tolist()) if "abcd"[label] in names]
            assert torch.equal(inputs, whole[0][old])
            assert [names[label] for label in targets] == ["abcd"[label] for label in whole[1][old]]


@pytest.mark.parametrize("classes", [[], [0, 1, 2, 3], [4], [-1]])
def test_holding_out_refuses(pictures, table, classes):
    with pytest.raises(CosetError, match="hold out of pictures"):
        holding_out(pictures, classes)
    with pytest.raises(CosetError, match="hold out of table"):
        holding_out(table, classes)


@pytest.mark.parametrize("classes", [[0.0], [True, False, False, False], torch.tensor([1]), "a"])
def test_what_are_no_labels_cannot_be_held_out(pictures, classes):
    with pytest.raises(CosetError, match="hold out of pictures"):
        holding_out(pictures, classes)
    with pytest.raises(CosetError, match="got classes=2; needed a list"):
        holding_out(pictures, 2)


def test_labels_of_numpy_can_be_held_out(pictures):
    assert holding_out(pictures, np.array([3]))[1].classes == ("d",)


def test_validation_split(pictures):
    def split(seed):
        return validation_split(pictures, 0.2, generator=torch.Generator().manual_seed(seed))

    rest, (inputs, targets) = split(0)
    assert len(inputs) == len(targets) == 6
    joined = torch.cat([rest.train_inputs, inputs]).flatten(1)
    assert torch.equal(joined.sort(0).values, pictures.train_inputs.flatten(1).sort(0).values)
    assert rest.test_inputs is pictures.test_inputs
    assert torch.equal(split(0)[1][0], inputs)
    assert not torch.equal(split(1)[1][0], inputs)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 0.001, 0.999, float("nan")])
def test_validation_split_refuses(pictures, fraction, generator):
    with pytest.raises(CosetError, match="got the fraction"):
        validation_split(pictures, fraction, generator=generator)


def test_validation_split_refuses_seeds_and_words(pictures, generator):
    with pytest.raises(CosetError, match=r"got generator=3; .*torch\.Generator"):
        validation_split(pictures, 0.5, generator=3)
    with pytest.raises(CosetError, match="got fraction='"):
        validation_split(pictures, "0.5", generator=generator)


def test_arrays_are_refused(table):
    with pytest.raises(CosetError, match=r"got inputs=.*needed Tensor"):
        Dataset("arrays", *(part.numpy() for part in (*table.train, *table.test)))


def test_a_set_that_does_not_fit_is_refused(pictures):
    (x, y), (u, v) = pictures.train, pictures.test
    with pytest.raises(CosetError, match="30 training inputs and 29 targets"):
        Dataset("bad", x, y[1:], u, v, classes=tuple("abcd"))
    with pytest.raises(CosetError, match="test targets of bad from 0 to 3; needed labels from 0"):
        Dataset("bad", x, y % 2, u, v, classes=tuple("abc"))
    with pytest.raises(CosetError, match=r"torch.float32 and shape \(30,\)"):
        Dataset("bad", x, y.float(), u, v, classes=tuple("abcd"))
    with pytest.raises(CosetError, match="one shape for both parts"):
        Dataset("bad", x, y, u[:, :1], v, classes=tuple("abcd"))
