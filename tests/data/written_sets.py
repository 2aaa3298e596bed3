"""Small data sets in the official formats, written by the tests themselves."""

import gzip
import struct

import numpy as np
from PIL import Image
from scipy.io import savemat


def bytes_of(rng, *shape):
    return rng.integers(0, 256, shape, np.uint8)


def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, *, train=6, test=4, zipped=True, seed=0):
    """The four idx files; gives the arrays written."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = bytes_of(rng, count, 28, 28)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, count, np.uint8)
    for name, array in arrays.items():
        raw = idx_bytes(array)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(raw))
        else:
            (folder / name).write_bytes(raw)
    return arrays


def write_cifar10(folder, *, count=3, seed=0):
    """Six binary batches; gives pictures and labels, training batches first."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test_batch.bin"]
    pictures = bytes_of(rng, len(names), count, 3, 32, 32)
    labels = rng.integers(0, 10, (len(names), count), np.uint8)
    for name, x, y in zip(names, pictures, labels, strict=True):
        (folder / name).write_bytes(np.hstack([y[:, None], x.reshape(count, -1)]).tobytes())
    return pictures, labels


def write_cifar100(folder, *, count=3, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    pictures, coarse, fine = bytes_of(rng, 2, count, 3, 32, 32), 7, [0, 50, 99][:count]
    for name, x in zip(("train.bin", "test.bin"), pictures, strict=True):
        rows = [bytes([coarse, label]) + p.tobytes() for label, p in zip(fine, x, strict=True)]
        (folder / name).write_bytes(b"".join(rows))
    return pictures, fine


def write_svhn(folder, *, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = bytes_of(rng, 3, 32, 32, 3)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        mat = {"X": pictures.transpose(1, 2, 3, 0), "y": np.array([[1], [10], [9]], np.uint8)}
        savemat(folder / name, mat)
    return pictures


def write_tiny_imagenet(folder):
    """Two classes, one colour each, so that JPEG keeps them; one validation picture is grey."""
    for wnid, colour in (("n02", (250, 10, 10)), ("n01", (10, 10, 250))):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (64, 64), colour).save(images / f"{wnid}_{number}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64), (250, 10, 10)).save(folder / "val" / "images" / "val_0.JPEG")
    Image.new("L", (64, 64), 99).save(folder / "val" / "images" / "val_1.JPEG")
    box = "0\t0\t62\t62"
    (folder / "val" / "val_annotations.txt").write_text(
        f"val_0.JPEG\tn02\t{box}\nval_1.JPEG\tn01\t{box}\n"
    )
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tapple\nn99\tother\n")


def write_class_folders(folder, classes, *, side, value=0):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for drawing in range(2):
            picture = Image.new("L", (side, side), 255)
            picture.putpixel((number, drawing), value)
            picture.save(folder / name / f"{drawing}.png")
