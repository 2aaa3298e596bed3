import numpy as np
import pytest
import torch
from PIL import Image
from written_sets import write_cifar10, write_mnist, write_svhn, write_tiny_imagenet

from coset.data.dataset import Dataset, holding_out, standardise
from coset.data.datasets import digits, load
from coset.data.partners import fit_images, outliers_for
from coset.errors import CosetError


def test_grey_partner_is_resized(data_folder):
    write_mnist(data_folder / "fashion_mnist")
    outliers = outliers_for(digits())
    assert outliers.name == "fashion_mnist"
    assert str(data_folder) in outliers.origin
    assert tuple(outliers.test_inputs.shape) == (4, 1, 8, 8)
    assert tuple(outliers.train_inputs.shape) == (0, 1, 8, 8)
    assert outliers.test_inputs.min() >= 0
    assert outliers.test_inputs.max() <= 1


def test_colour_and_grey_fit_each_other(data_folder):
    write_mnist(data_folder / "mnist")
    write_cifar10(data_folder / "cifar10")
    cifar, mnist = load("cifar10"), load("mnist")
    assert tuple(outliers_for(cifar, "mnist").test_inputs.shape) == (4, 3, 32, 32)
    assert tuple(outliers_for(mnist, "cifar10").test_inputs.shape) == (3, 1, 28, 28)


def test_outliers_follow_the_standardisation(data_folder):
    write_svhn(data_folder / "svhn")
    write_cifar10(data_folder / "cifar10")
    raw = load("cifar10")
    scaled = standardise(raw)
    by = scaled.statistics
    expected = (outliers_for(raw).test_inputs - by.input_mean) / by.input_std
    torch.testing.assert_close(outliers_for(scaled).test_inputs, expected)


def test_classes_known_to_the_set_are_no_outliers(data_folder):
    write_tiny_imagenet(data_folder / "tiny_imagenet")
    (data_folder / "tiny_imagenet" / "words.txt").write_text("n01\ttabby, tabby cat\nn02\tapple\n")
    write_cifar10(data_folder / "cifar10", count=20)
    cifar = load("cifar10")
    outliers = outliers_for(cifar, "tiny_imagenet")
    assert [outliers.classes[label] for label in outliers.test_targets] == ["apple"]
    without_cats, _ = holding_out(cifar, [cifar.classes.index("cat")])
    assert len(outliers_for(without_cats, "tiny_imagenet").test_inputs) == 2


def test_classes_are_shared_in_both_directions(data_folder):
    """A network that knows trolleybuses has seen a kind of truck, though no gondola is one."""
    write_cifar10(data_folder / "cifar10", count=40)
    images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    known = Dataset("tiny", images, labels, images, labels, classes=("trolleybus", "apple"))
    outliers = outliers_for(known, "cifar10")
    found = {outliers.classes[label] for label in outliers.test_targets.tolist()}
    assert "truck" not in found
    assert {"automobile", "ship"} <= found


def test_a_partner_with_the_same_classes_is_refused(data_folder):
    write_mnist(data_folder / "mnist")
    with pytest.raises(CosetError, match="no class of its own"):
        outliers_for(digits(), "mnist")


def test_refusals():
    with pytest.raises(CosetError, match="got zzz as the outliers for digits"):
        outliers_for(digits(), "zzz")
    table = torch.zeros(3, 2), torch.zeros(3, 1)
    with pytest.raises(CosetError, match="no partner"):
        outliers_for(Dataset("table", *table, *table))
    with pytest.raises(CosetError, match=r"\(2, 8, 8\)"):
        fit_images(torch.zeros(1, 2, 8, 8), (1, 8, 8))
    with pytest.raises(CosetError, match=r"to bring to \(13,\)"):
        fit_images(torch.zeros(1, 1, 8, 8), (13,))


def test_resizing_agrees_with_pillow():
    rng = np.random.default_rng(0)
    array = rng.random((64, 64)).astype(np.float32)
    expected = np.asarray(Image.fromarray(array).resize((28, 20), Image.Resampling.BILINEAR))
    result = fit_images(torch.from_numpy(array)[None, None], (1, 20, 28))
    np.testing.assert_allclose(result[0, 0], expected, atol=1e-5)


def test_luminance_agrees_with_pillow():
    array = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    expected = np.asarray(Image.fromarray(array).convert("L"))
    images = torch.from_numpy(array).permute(2, 0, 1)[None].double() / 255
    result = fit_images(images, (1, 9, 9))[0, 0] * 255
    np.testing.assert_allclose(result, expected, atol=1.0)  # Pillow rounds to bytes


def test_bytes_are_refused():
    with pytest.raises(CosetError, match="uint8"):
        fit_images(torch.full((1, 3, 8, 8), 200, dtype=torch.uint8), (1, 8, 8))


def test_standardised_pictures_keep_their_range():
    images = torch.tensor([-2.0, -2.0, 3.0, 3.0]).expand(1, 1, 4, 4)
    torch.testing.assert_close(fit_images(images, (1, 8, 8)).aminmax(), images.aminmax())


def test_nothing_to_do_keeps_the_values():
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(fit_images(images, (3, 4, 4)), images)
