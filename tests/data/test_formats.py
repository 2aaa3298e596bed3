import gzip

import numpy as np
import pytest
import written_sets
from scipy.io import savemat

from coset.data import classes, formats
from coset.errors import CosetError


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_gives_back_what_was_written(tmp_path, zipped):
    written = written_sets.write_mnist(tmp_path, zipped=zipped)
    part = formats.read_idx_pair(tmp_path, "test", classes.DIGITS)
    np.testing.assert_array_equal(part.pictures[:, 0], written["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(part.labels, written["t10k-labels-idx1-ubyte"])
    assert part.labels.dtype == np.int64


BROKEN_IDX = {
    "empty": (b"", "bytes none"),
    "other magic": (b"\0\0\x0d\x01\0\0\0\x01" + bytes(4), "00 00 0d 01"),
    "cut header": (written_sets.idx_bytes(np.zeros((2, 2)))[:7], "rank"),
    "cut body": (written_sets.idx_bytes(np.zeros((2, 2)))[:-1], "needed 4"),
    "too long": (written_sets.idx_bytes(np.zeros((2, 2))) + b"x", "with 5 values"),
}


@pytest.mark.parametrize("case", BROKEN_IDX)
def test_broken_idx_is_named(tmp_path, case):
    raw, words = BROKEN_IDX[case]
    path = tmp_path / "some-idx"
    path.write_bytes(raw)
    with pytest.raises(CosetError, match=words) as caught:
        formats.read_idx(path)
    assert "some-idx" in str(caught.value)


def test_cut_gzip_is_refused(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(written_sets.idx_bytes(np.arange(200)))[:-9])
    with pytest.raises(CosetError, match=r"labels\.gz, unreadable"):
        formats.read_idx(path)


def test_idx_labels_must_fit_pictures_and_classes(tmp_path):
    written_sets.write_mnist(tmp_path, zipped=False)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(written_sets.idx_bytes(np.zeros(5)))
    with pytest.raises(CosetError, match="6 pictures"):
        formats.read_idx_pair(tmp_path, "train", classes.DIGITS)
    labels.write_bytes(written_sets.idx_bytes(np.array([0, 1, 2, 3, 4, 10])))
    with pytest.raises(CosetError, match="labels 0 to 10"):
        formats.read_idx_pair(tmp_path, "train", classes.DIGITS)
    labels.unlink()
    with pytest.raises(CosetError, match="got no train-labels"):
        formats.read_idx_pair(tmp_path, "train", classes.DIGITS)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(written_sets.idx_bytes(np.zeros(4)))
    with pytest.raises(CosetError, match="rank 1"):
        formats.read_idx_pair(tmp_path, "test", classes.DIGITS)


def test_cifar10_batches(tmp_path):
    pictures, labels = written_sets.write_cifar10(tmp_path)
    files = ("data_batch_1.bin", "data_batch_2.bin")
    part = formats.read_cifar(tmp_path, files, classes.CIFAR10, label_bytes=1)
    np.testing.assert_array_equal(part.pictures, pictures[:2].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(part.labels, labels[:2].ravel())


def test_cifar100_takes_the_fine_label(tmp_path):
    pictures, fine = written_sets.write_cifar100(tmp_path)
    part = formats.read_cifar(tmp_path, ["test.bin"], classes.CIFAR100, label_bytes=2)
    np.testing.assert_array_equal(part.pictures, pictures[1])
    assert [part.classes[label] for label in part.labels] == ["apple", "mouse", "worm"]
    assert part.labels.tolist() == fine


def test_cut_or_changed_cifar_batch(tmp_path):
    written_sets.write_cifar10(tmp_path)
    path = tmp_path / "test_batch.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CosetError, match=r"9218 bytes; needed whole records of 3073"):
        formats.read_cifar(tmp_path, [path.name], classes.CIFAR10, label_bytes=1)
    path.write_bytes(b"\xff" + whole[1:])
    with pytest.raises(CosetError, match=r"255 in .*test_batch\.bin"):
        formats.read_cifar(tmp_path, [path.name], classes.CIFAR10, label_bytes=1)


def test_svhn_ten_is_zero(tmp_path):
    pictures = written_sets.write_svhn(tmp_path)
    part = formats.read_svhn(tmp_path / "train_32x32.mat", classes.DIGITS)
    np.testing.assert_array_equal(part.pictures, pictures.transpose(0, 3, 1, 2))
    assert part.labels.tolist() == [1, 0, 9]


def test_broken_svhn(tmp_path):
    written_sets.write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for raw in (b"", b"no matlab at all", whole[: len(whole) // 2]):
        path.write_bytes(raw)
        with pytest.raises(CosetError, match="train_32x32"):
            formats.read_svhn(path, classes.DIGITS)
    savemat(path, {"X": np.zeros((32, 32, 3), np.uint8), "y": np.zeros((1, 1))})
    with pytest.raises(CosetError, match=r"X \(32, 32, 3\), y \(1, 1\); needed X"):
        formats.read_svhn(path, classes.DIGITS)
    savemat(path, {"other": np.zeros(2)})
    with pytest.raises(CosetError, match="with neither"):
        formats.read_svhn(path, classes.DIGITS)


def test_tiny_imagenet_folders(tmp_path):
    written_sets.write_tiny_imagenet(tmp_path)
    train = formats.read_tiny_imagenet(tmp_path, "train")
    assert train.classes == ("goldfish", "apple")  # sorted by wnid
    assert train.labels.tolist() == [0, 1, 0, 1]  # the classes in turn
    np.testing.assert_allclose(train.pictures[1::2, :, 5, 5], [[250, 10, 10]] * 2, atol=4)
    test = formats.read_tiny_imagenet(tmp_path, "test")
    assert test.labels.tolist() == [1, 0]
    assert test.pictures.shape == (2, 3, 64, 64)
    np.testing.assert_allclose(test.pictures[1], 99, atol=2)


def test_rows_come_class_by_class_in_their_order():
    labels = np.random.default_rng(0).integers(0, 7, 100)
    rows = formats.class_by_class(labels)
    assert sorted(rows) == list(range(100))
    for label in range(7):
        assert [row for row in rows if labels[row] == label] == [
            row for row in range(100) if labels[row] == label
        ]
    full = int(np.bincount(labels).min())
    assert labels[rows[: 7 * full]].tolist() == list(range(7)) * full
    assert formats.class_by_class([]) == []


def test_broken_tiny_imagenet(tmp_path):
    written_sets.write_tiny_imagenet(tmp_path)
    picture = tmp_path / "val" / "images" / "val_0.JPEG"
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CosetError, match=r"val_0\.JPEG"):
        formats.read_tiny_imagenet(tmp_path, "test")
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t1\t1\n")
    with pytest.raises(CosetError, match="n77"):
        formats.read_tiny_imagenet(tmp_path, "test")
    (tmp_path / "val" / "val_annotations.txt").unlink()
    with pytest.raises(CosetError, match="val_annotations"):
        formats.read_tiny_imagenet(tmp_path, "test")


def test_class_folders(tmp_path):
    written_sets.write_class_folders(tmp_path, "AB", side=28)
    part = formats.read_class_folders(tmp_path, "AB", 28)
    assert part.labels.tolist() == [0, 0, 1, 1]
    assert part.pictures[3, 0, 1, 1] == 0
    assert part.pictures[3].astype(int).sum() == 255 * (28 * 28 - 1)
    with pytest.raises(CosetError, match=r"\(28, 28\); needed \(30, 30\)"):
        formats.read_class_folders(tmp_path, "AB", 30)
    (tmp_path / "A" / "0.png").write_bytes(b"")
    assert len(formats.read_class_folders(tmp_path, "AB", 28, skip_damaged=True).labels) == 3
    with pytest.raises(CosetError, match=r"0\.png"):
        formats.read_class_folders(tmp_path, "AB", 28)
    with pytest.raises(CosetError, match="no picture"):
        formats.read_class_folders(tmp_path, "XY", 28)


def test_pillow_missing_says_what_to_install(tmp_path, monkeypatch):
    written_sets.write_class_folders(tmp_path, "A", side=28)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(CosetError, match=r"needed Pillow .*; pip install pillow$"):
        formats.read_class_folders(tmp_path, "A", 28)


def test_npz(tmp_path):
    path = tmp_path / "some.npz"
    array = written_sets.bytes_of(np.random.default_rng(0), 40, 40)
    np.savez(path, x=array)
    np.testing.assert_array_equal(formats.read_npz(path, "x")[0], array)
    with pytest.raises(CosetError, match=r"some\.npz with x; needed y"):
        formats.read_npz(path, "x", "y")
    whole = path.read_bytes()
    changed, packed = bytearray(whole), bytearray(whole)
    changed[700] ^= 1
    packed[whole.index(b"PK\1\2") + 10] = 77  # a method of packing that there is not
    for raw in (b"", b"plain words", whole[:900], bytes(changed), bytes(packed)):
        path.write_bytes(raw)
        with pytest.raises(CosetError, match=r"some\.npz"):
            formats.read_npz(path, "x")


def test_npz_never_unpickles(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    path = tmp_path / "trap.npz"
    np.savez(path, x=np.array([Trap()], object))
    with pytest.raises(CosetError, match="plain arrays"):
        formats.read_npz(path, "x")


def test_npy_renamed_to_npz_is_refused(tmp_path):
    path = tmp_path / "array.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(CosetError, match=r"array\.npz"):
        formats.read_npz(path, "x")


def test_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n3,\n\n")
    table = formats.read_table(path, 2, delimiter=",", skip=1)
    np.testing.assert_array_equal(table, [[1, 2], [3, np.nan]])
    with pytest.raises(CosetError, match="nan in row 2"):
        formats.read_table(path, 2, delimiter=",", skip=1, gaps=False)
    for text, words in (
        ("1 2 3\n", "row of 3"),
        ("1 x\n", "'x'"),
        ("1 2\n3 nan\n", "nan in row 2"),
        ("1 -1e999\n", "-inf in row 1"),
        ("\n", "no row"),
    ):
        path.write_text(text)
        with pytest.raises(CosetError, match=words):
            formats.read_table(path, 2)
