"""Every picture set, from small official files in a folder to tensors."""

import hashlib
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
import written_sets
from PIL import Image

from coset.data.classes import LETTERS
from coset.data.datasets import LOADERS, load
from coset.data.pictures import RECIPES, read_pictures
from coset.data.sources import SOURCES


def same(images, written):
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images.numpy(), written / np.float32(255), atol=1e-7)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist"])
def test_idx_sets(data_folder, name):
    written = written_sets.write_mnist(data_folder / name)
    found = load(name)
    same(found.train_inputs[:, 0], written["train-images-idx3-ubyte"])
    same(found.test_inputs[:, 0], written["t10k-images-idx3-ubyte"])
    assert found.train_targets.tolist() == written["train-labels-idx1-ubyte"].tolist()
    assert found.train_targets.dtype == torch.int64
    assert found.name == name
    assert str(data_folder / name) in found.origin


def test_cifar10(data_folder):
    pictures, labels = written_sets.write_cifar10(data_folder / "cifar10" / "cifar-10-batches-bin")
    found = load("cifar10")
    same(found.train_inputs, pictures[:5].reshape(-1, 3, 32, 32))
    same(found.test_inputs, pictures[5])
    assert found.train_targets.tolist() == labels[:5].ravel().tolist()


def test_cifar100(data_folder):
    pictures, fine = written_sets.write_cifar100(data_folder / "cifar100")
    found = load("cifar100")
    same(found.train_inputs, pictures[0])
    assert found.test_targets.tolist() == fine
    assert len(found.classes) == 100


def test_svhn(data_folder):
    pictures = written_sets.write_svhn(data_folder / "svhn")
    found = load("svhn")
    same(found.test_inputs, pictures.transpose(0, 3, 1, 2))
    assert found.train_targets.tolist() == [1, 0, 9]


def test_tiny_imagenet(data_folder):
    written_sets.write_tiny_imagenet(data_folder / "tiny_imagenet" / "tiny-imagenet-200")
    found = load("tiny_imagenet")
    assert tuple(found.train_inputs.shape) == (4, 3, 64, 64)
    assert found.classes == ("goldfish", "apple")
    assert found.test_targets.tolist() == [1, 0]


def test_notmnist(data_folder):
    written_sets.write_class_folders(data_folder / "notmnist" / "notMNIST_small", LETTERS, side=28)
    (data_folder / "notmnist" / "notMNIST_small" / "A" / "empty.png").write_bytes(b"")
    found = load("notmnist")
    assert tuple(found.train_inputs.shape) == (0, 1, 28, 28)
    assert found.test_targets.tolist() == [k // 2 for k in range(20)]


def test_omniglot_ink_is_one(data_folder):
    names = ["Greek/character01", "Greek/character02", "Latin/character01"]
    written_sets.write_class_folders(
        data_folder / "omniglot" / "images_background", names, side=105
    )
    found = load("omniglot")
    assert found.classes == tuple(names)
    assert len(found.train_inputs) == len(found.train_targets) == 0
    assert found.test_inputs.sum((1, 2, 3)).tolist() == [1.0] * 6
    assert found.test_inputs[3, 0, 1, 1] == 1


@pytest.fixture
def compact(data_folder, monkeypatch):
    """Writes a compact copy and enters its checksum in the table."""

    def write(name, /, **arrays):
        file = f"{name}_small.npz"
        np.savez_compressed(data_folder / file, **arrays)
        digest = hashlib.sha256((data_folder / file).read_bytes()).hexdigest()
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], compact=(file, digest)))

    return write


def test_compact_copies(compact):
    rng = np.random.default_rng(0)
    grey, colour = written_sets.bytes_of(rng, 4, 28, 28), written_sets.bytes_of(rng, 4, 32, 32, 3)
    y = np.arange(4, dtype=np.uint8)
    compact("mnist", x_train=grey, y_train=y, x_test=grey[:2], y_test=y[:2])
    compact("cifar10", x_train=colour, y_train=y, x_test=colour[:2], y_test=y[:2])
    compact("kmnist", x=grey, y=y)
    same(load("mnist").train_inputs[:, 0], grey)
    same(load("cifar10").test_inputs, colour[:2].transpose(0, 3, 1, 2))
    kmnist = load("kmnist")
    same(kmnist.test_inputs[:, 0], grey)
    assert tuple(kmnist.train_inputs.shape) == (0, 1, 28, 28)


def test_compact_omniglot(compact):
    ink = np.random.default_rng(0).integers(0, 2, (3, 5, 7), np.uint8)
    bits = np.packbits(ink.reshape(3, -1), axis=1)
    names = np.array(["a/character01", "b/character01"])
    compact("omniglot", x_bits=bits, shape=np.array([5, 7]), y=np.array([0, 1, 1]), name=names)
    np.testing.assert_array_equal(load("omniglot").test_inputs[:, 0].numpy(), ink)


def test_compact_tiny_imagenet(compact):
    """Its training part is sorted by class in the file, and comes class by class in turn."""
    colours = {0: (250, 10, 10), 1: (10, 250, 10), 2: (10, 10, 250)}
    arrays = {}
    for part, labels in (("train", [0, 0, 0, 1, 1, 2, 2]), ("val", [2, 0, 1])):
        blobs = []
        for label in labels:
            file = io.BytesIO()
            Image.new("RGB", (64, 64), colours[label]).save(file, "JPEG")
            blobs.append(file.getvalue())
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(blobs), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, blobs)])
        arrays[f"{part}_label"] = np.array(labels, np.uint8)
    compact("tiny_imagenet", **arrays, name=np.array(["apple", "banana", "cherry"]))
    found = load("tiny_imagenet")
    assert found.train_targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert found.test_targets.tolist() == [2, 0, 1]
    for inputs, targets in (found.train, found.test):
        shown = [colours[label] for label in targets.tolist()]
        np.testing.assert_allclose(inputs[:, :, 9, 9] * 255, shown, atol=4)


def test_only_the_parts_asked_for_are_read(data_folder):
    written_sets.write_mnist(data_folder / "mnist")
    (data_folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"broken")
    found = read_pictures("mnist", parts=("test",))
    assert tuple(found.train_inputs.shape) == (0, 1, 28, 28)
    assert len(found.test_inputs) == 4


def test_partners_are_sets_of_pictures_and_never_the_set_itself():
    for name, recipe in RECIPES.items():
        assert recipe.partners
        assert name not in recipe.partners
        assert set(recipe.partners) <= set(LOADERS)
