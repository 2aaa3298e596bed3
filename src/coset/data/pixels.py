"""Data sets with a target for each pixel: labels (CamVid) or metres (NYU Depth, Middlebury)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from coset.data.formats import decode, picture_size, read_bytes, read_npz, read_picture
from coset.data.lookup import locate
from coset.data.pictures import unit_range
from coset.errors import CosetError
from coset.printing import brief

CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car"),
    *("pedestrian", "bicyclist"),
)

_AGAIN = "fetch the file again"


@dataclass(frozen=True, eq=False)
class PixelDataset:
    """Pictures ``(n, 3, h, w)`` in [0, 1] with a target for each pixel, ``(n, h, w)``, in parts.

    Targets are labels of ``classes``, ``void`` where nobody labelled; or depths, NaN where none
    was measured. Give the void label to the likelihood: ``Categorical(ignore=11)``.
    """

    name: str
    train: tuple[Float[Tensor, "n 3 h w"], Shaped[Tensor, "n h w"]]
    validation: tuple[Float[Tensor, "n 3 h w"], Shaped[Tensor, "n h w"]]
    test: tuple[Float[Tensor, "n 3 h w"], Shaped[Tensor, "n h w"]]
    classes: tuple[str, ...] = ()
    void: int | None = None
    origin: str = ""

    __repr__ = brief

    def __str__(self) -> str:
        sizes = [len(part[0]) for part in (self.train, self.validation, self.test)]
        shape = "×".join(map(str, self.test[0].shape[1:]))
        kind = f"{len(self.classes)} classes a pixel" if self.classes else "a number a pixel"
        return (
            f"{self.name}: {sizes[0]} training, {sizes[1]} validation and {sizes[2]} test "
            f"pictures of {shape}, {kind}, from {self.origin}"
        )


def camvid() -> PixelDataset:
    """CamVid: 367 + 101 + 233 street pictures, 11 classes and void, label 11 (Brostow et al. 2009).

    Neighbouring pictures are frames of one video: keep to the parts there are. The compact copy has
    pictures of 3×120×160; official folders (``train`` and ``trainannot``, ``val`` and ``valannot``,
    ``test`` and ``testannot``, labels as grey PNG) are read at their own size.
    """
    found = locate("camvid")
    read = _compact_camvid if found.is_compact else _camvid_folders
    train, validation, test = (read(found.path, part) for part in ("train", "val", "test"))
    return PixelDataset(
        "camvid",
        train,
        validation,
        test,
        classes=CAMVID_CLASSES,
        void=len(CAMVID_CLASSES),
        origin=found.origin,
    )


def nyu_depth() -> PixelDataset:
    """NYU Depth v2: indoor pictures with depths in metres, NaN where none (Silberman et al. 2012).

    Read from the folders ``nyu2_train`` (scenes of ``1.jpg`` with ``1.png``, eight bits for ten
    metres) and ``nyu2_test`` (``00000_colors.png`` with ``00000_depth.png``, millimetres). There is
    no official validation part; it comes back with length 0.
    """
    found = locate("nyu_depth")
    scenes = sorted((found.path / "nyu2_train").glob("*/*.jpg"))
    train = _depth_part([(path, path.with_suffix(".png")) for path in scenes], 10.0 / 255)
    colours = sorted((found.path / "nyu2_test").glob("*_colors.png"))
    pairs = [(path, path.with_name(path.name.replace("_colors", "_depth"))) for path in colours]
    test = _depth_part(pairs, 1e-3)
    none = (test[0][:0], test[1][:0])
    return PixelDataset("nyu_depth", train, none, test, origin=found.origin)


_FOCAL, _BASELINE, _OFFSET = 994.978, 0.193001, 31.086
"""Of the motorcycle: focal length in pixels, metres between the cameras, shift of their centres."""


def motorcycle() -> PixelDataset:
    """The motorcycle of Middlebury 2014, left and right view, in metres (Scharstein et al. 2014).

    One scene, 2 pictures of 3×500×741, for a look at something real and for shift, not to train on:
    it comes as the test part.  A disparity ``d`` of the left view is a depth ``f b / (d + o)``; the
    right view has those of the left at their places in it, the nearest where several meet.  Depths
    are NaN where there is none.  The files are those in the wheel of scikit-image.
    """
    found = locate("motorcycle")
    views = _colours([found.path / f"motorcycle_{side}.png" for side in ("left", "right")])
    path = found.path / "motorcycle_disp.npz"
    (read,) = read_npz(path, "arr_0")
    if read.shape != views.shape[2:] or not np.issubdtype(read.dtype, np.floating):
        raise CosetError(
            f"got {path} with {read.dtype} of shape {read.shape}",
            f"needed a disparity for each of {views.shape[2]}×{views.shape[3]} pixels",
            _AGAIN,
        )
    left = torch.from_numpy(read.astype(np.float32))
    left = torch.where(left.isfinite(), left, torch.nan)
    depths = _FOCAL * _BASELINE / (torch.stack([left, _seen_from_right(left)]) + _OFFSET)
    pictures = unit_range(torch.from_numpy(views.copy()))
    none = (pictures[:0], depths[:0])
    return PixelDataset("motorcycle", none, none, (pictures, depths), origin=found.origin)


def _seen_from_right(disparities: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """What is at column ``x`` of the left view is at ``x - d`` of the right one."""
    width = disparities.shape[1]
    places = (torch.arange(width) - disparities.nan_to_num(torch.inf)).round()
    seen = places >= 0
    columns = torch.where(seen, places, 0.0).long()
    values = torch.where(seen, disparities, -torch.inf)
    nearest = torch.full_like(disparities, -torch.inf)
    nearest = nearest.scatter_reduce(1, columns, values, "amax")
    return torch.where(nearest.isfinite(), nearest, torch.nan)


_Part: TypeAlias = tuple[Tensor, Tensor]


def _compact_camvid(path: Path, part: str) -> _Part:
    pictures, labels = read_npz(path, f"{part}_images", f"{part}_labels")
    return _labelled(pictures.transpose(0, 3, 1, 2), labels, path)


def _camvid_folders(folder: Path, part: str) -> _Part:
    paths = sorted((folder / part).glob("*.png"))
    labels = [folder / f"{part}annot" / path.name for path in paths]
    _require_some(paths, folder / part)
    pictures = _colours(paths)
    return _labelled(pictures, _pixels(labels, pictures.shape[2:]), folder / part)


def _labelled(pictures: NDArray[np.uint8], labels: NDArray[Any], path: Path) -> _Part:
    if pictures.dtype != np.uint8 or labels.shape != (len(pictures), *pictures.shape[2:]):
        raise CosetError(
            f"got {path} with pictures {pictures.shape} of {pictures.dtype} and labels "
            f"{labels.shape}",
            "needed pictures of bytes and a label for each pixel",
            _AGAIN,
        )
    if labels.size and int(labels.max()) > len(CAMVID_CLASSES):
        raise CosetError(
            f"got the label {int(labels.max())} in {path}",
            f"needed 0 to {len(CAMVID_CLASSES)}, the last for void",
            "map the labels to the eleven classes first",
        )
    return unit_range(torch.from_numpy(pictures.copy())), torch.from_numpy(labels.astype(np.int64))


def _depth_part(pairs: Sequence[tuple[Path, Path]], metres: float) -> _Part:
    _require_some(pairs, "nyu2_train and nyu2_test")
    pictures = _colours([picture for picture, _ in pairs])
    steps = torch.from_numpy(_pixels([depth for _, depth in pairs], pictures.shape[2:]))
    depth = steps.to(torch.float32) * metres
    return unit_range(torch.from_numpy(pictures.copy())), depth.masked_fill_(steps == 0, torch.nan)


def _require_some(found: Sequence[object], place: object) -> None:
    if not found:
        raise CosetError(f"got no picture in {place}", "needed at least one", _AGAIN)


def _colours(paths: Sequence[Path]) -> NDArray[np.uint8]:
    blobs = [(str(path), read_bytes(path)) for path in paths]
    return decode(blobs, "RGB", picture_size(*blobs[0]))


def _pixels(paths: Sequence[Path], size: tuple[int, ...]) -> NDArray[np.int64]:
    """One whole number for each pixel, from grey pictures of eight or sixteen bits."""
    values = np.empty((len(paths), *size), np.int64)
    for row, path in enumerate(paths):
        found = read_picture(str(path), read_bytes(path))
        if found.shape != size:
            what = "colours" if found.ndim == 3 else f"{found.shape}"
            raise CosetError(
                f"got {path} with {what}",
                f"needed one number for each of {size[0]}×{size[1]} pixels",
                "turn a palette of colours into labels first" if found.ndim == 3 else _AGAIN,
            )
        values[row] = found
    return values


PIXEL_LOADERS: dict[str, Callable[[], PixelDataset]] = {
    "camvid": camvid,
    "motorcycle": motorcycle,
    "nyu_depth": nyu_depth,
}
