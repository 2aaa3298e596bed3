"""One function for each data set, and ``load`` to find it by name."""

import difflib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coset.data.classes import DIGITS
from coset.data.dataset import Dataset
from coset.data.formats import Labels, Reals, needed, read_npz, read_table
from coset.data.lookup import locate
from coset.data.pictures import RECIPES, read_pictures
from coset.data.sources import ways_to_get
from coset.errors import CosetError, require_kind
from coset.vocabulary import Progress

UCI: dict[str, tuple[str, int, int, int]] = {
    "boston": ("bostonHousing", 506, 13, 20),
    "concrete": ("concrete", 1030, 8, 20),
    "energy": ("energy", 768, 8, 20),
    "kin8nm": ("kin8nm", 8192, 8, 20),
    "naval": ("naval-propulsion-plant", 11934, 16, 20),
    "power": ("power-plant", 9568, 4, 20),
    "protein": ("protein-tertiary-structure", 45730, 9, 5),
    "wine": ("wine-quality-red", 1599, 11, 20),
    "yacht": ("yacht", 308, 6, 20),
}
"""UCI regression sets: key in the compact file, rows, inputs, number of standard splits."""


def digits() -> Dataset:
    """The 1797 digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak 1998).

    There is no official split: the last 450 are the test part here. The file is ordered by the
    people who wrote, about 130 digits each, so that all but 68 of the test digits are from other
    hands than the training digits.

    >>> found = digits()
    >>> tuple(found.train_inputs.shape), tuple(found.test_inputs.shape)
    ((1347, 1, 8, 8), (450, 1, 8, 8))
    """
    found = locate("digits")
    table = read_table(needed(found.path, "digits.csv"), 65, delimiter=",", gaps=False)
    images = torch.tensor(table[:, :64] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(table[:, 64].astype(np.int64))
    cut = 3 * len(labels) // 4
    return Dataset(
        "digits",
        *(images[:cut], labels[:cut], images[cut:], labels[cut:]),
        classes=DIGITS,
        origin=found.origin,
        partners=("fashion_mnist", "notmnist", "kmnist", "omniglot"),
    )


def mnist(*, progress: Progress | None = None) -> Dataset:
    """MNIST: 60 000 + 10 000 handwritten digits, 1×28×28 (LeCun et al. 1998)."""
    return read_pictures("mnist", progress=progress)


def fashion_mnist(*, progress: Progress | None = None) -> Dataset:
    """Fashion-MNIST: 60 000 + 10 000 pieces of clothing, 1×28×28 (Xiao et al. 2017)."""
    return read_pictures("fashion_mnist", progress=progress)


def kmnist(*, progress: Progress | None = None) -> Dataset:
    """Kuzushiji-MNIST: cursive Japanese characters, 1×28×28 (Clanuwat et al. 2018).

    60 000 + 10 000 from the official files; the compact copy has the test part only.
    """
    return read_pictures("kmnist", progress=progress)


def notmnist(*, progress: Progress | None = None) -> Dataset:
    """notMNIST: letters A to J of many typefaces, 1×28×28 (Bulatov 2011); a test part only.

    Some labels are wrong by nature: a set of outliers, not one to measure accuracy on.
    """
    return read_pictures("notmnist", progress=progress)


def omniglot(*, progress: Progress | None = None) -> Dataset:
    """Omniglot: 20 drawings of each of many characters, 1×105×105 (Lake et al. 2015).

    The background alphabets, as a test part only; ink is 1. The compact copy has 242 of the 964
    characters.
    """
    return read_pictures("omniglot", progress=progress)


def cifar10(*, progress: Progress | None = None) -> Dataset:
    """CIFAR-10: 50 000 + 10 000 pictures, 3×32×32 (Krizhevsky 2009).

    The compact copy has the first 1500 and 400 of each class.
    """
    return read_pictures("cifar10", progress=progress)


def cifar100(*, progress: Progress | None = None) -> Dataset:
    """CIFAR-100 with its fine labels: 50 000 + 10 000 pictures, 3×32×32 (Krizhevsky 2009)."""
    return read_pictures("cifar100", progress=progress)


def svhn(*, progress: Progress | None = None) -> Dataset:
    """Street View House Numbers, cropped: 73 257 + 26 032 digits, 3×32×32 (Netzer et al. 2011)."""
    return read_pictures("svhn", progress=progress)


def tiny_imagenet(*, progress: Progress | None = None) -> Dataset:
    """TinyImageNet: 100 000 + 10 000 pictures of 200 classes, 3×64×64 (Stanford CS231n 2015).

    The validation pictures are the test part, for labels of the test pictures were never
    published. The whole training part takes 4.9 GB; the compact copy has 500 pictures of each of
    20 classes. Training pictures come class by class in turn, so that the first so many hold
    all classes alike.
    """
    return read_pictures("tiny_imagenet", progress=progress)


def uci(name: str, split: int = 0) -> Dataset:
    """A UCI regression set in raw units, with one of its standard splits.

    The splits are those of Hernández-Lobato and Adams (2015), which the literature compares on:
    90 % of the rows train. ``standardise`` brings inputs and targets to mean 0 and deviation 1.

    Args:
        name: A key of ``UCI``.
        split: Which split, from 0; there are 20, of protein 5.
    """
    require_kind(str, name=name)
    if name not in UCI:
        raise _unknown(name, list(UCI), "UCI set")
    key, rows, columns, splits = UCI[name]
    if split not in range(splits):
        raise CosetError(
            f"got split {split} of {name}",
            f"needed 0 to {splits - 1}",
            "choose one of the standard splits",
        )
    inputs, targets, origin = _uci_table(name, key, columns)
    if inputs.shape != (rows, columns) or targets.shape != (rows,):
        raise CosetError(
            f"got {name} with inputs {inputs.shape} and targets {targets.shape} ({origin})",
            f"needed {rows} rows of {columns} inputs and a target",
            f"do one of: {ways_to_get('uci')}",
        )
    x, y = _single(inputs), _single(targets[:, None])
    train, test = standard_split(rows, int(split))
    return Dataset(f"uci/{name}", x[train], y[train], x[test], y[test], origin=origin)


def _uci_table(name: str, key: str, columns: int) -> tuple[Reals, Reals, str]:
    found = locate("uci")
    if found.is_compact:
        inputs, targets = read_npz(found.path, f"{key}/x", f"{key}/y")
        return inputs, targets, found.origin
    path = found.path / f"{name}.txt"
    if not path.is_file():
        raise CosetError(f"got no {path}", "needed that table", f"do one of: {ways_to_get('uci')}")
    table = read_table(path, columns + 1)
    return table[:, :-1], table[:, -1], found.origin


def _single(values: Reals) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def standard_split(rows: int, split: int) -> tuple[Labels, Labels]:
    """Training and test rows of a standard UCI split.

    NumPy's legacy generator with seed 1 shuffles the rows anew for each split in turn; the first
    ``round(0.9 rows)`` train.

    >>> train, test = standard_split(10, 0)
    >>> train.tolist(), test.tolist()
    ([2, 9, 6, 4, 0, 3, 1, 7, 8], [5])
    """
    legacy = np.random.RandomState(1)
    order = [legacy.permutation(rows) for _ in range(split + 1)][-1]
    cut = round(0.9 * rows)
    return order[:cut], order[cut:]


def mauna_loa_co2(*, until: float = 1990.0) -> Dataset:
    """Weekly CO2 at Mauna Loa, 1958 to 2001, in parts per million (Keeling and Whorf 2004).

    The input is the time in years, the target the concentration; weeks without a reading are left
    out. There is no standard split: the test part is the future.

    Args:
        until: Weeks before this time train, the others test.
    """
    require_kind(float, until=until)
    found = locate("mauna_loa_co2")
    path = needed(found.path, "co2.csv")
    table = read_table(path, 2, delimiter=",", skip=1)
    table = table[~np.isnan(table).any(1)]
    years = _years(table[:, 0], path)
    times, readings = _single(years[:, None]), _single(table[:, 1:])
    past = torch.tensor(years < until)
    if past.all() or not past.any():
        raise CosetError(
            f"got until={until}",
            f"needed a year between {years.min():.2f} and {years.max():.2f}",
            "leave weeks on both sides",
        )
    return Dataset(
        "mauna_loa_co2",
        *(times[past], readings[past], times[~past], readings[~past]),
        origin=found.origin,
    )


def _years(days: Reals, path: Path) -> Reals:
    """Days written as yyyymmdd in years, the parts of a year by its own length."""
    try:
        if not len(days):
            raise ValueError("no reading")
        texts = [f"{day:08.0f}" for day in days.tolist()]
        dates = np.array([f"{t[:-4]}-{t[-4:-2]}-{t[-2:]}" for t in texts], "datetime64[D]")
    except ValueError as error:
        raise CosetError(
            f"got {path}, no table of weeks ({error})",
            "needed days as yyyymmdd, each with its reading",
            "fetch the file again",
        ) from error
    starts = dates.astype("datetime64[Y]")
    lengths = (starts + 1).astype("datetime64[D]") - starts.astype("datetime64[D]")
    since = dates - starts.astype("datetime64[D]")
    found: Reals = 1970 + starts.astype(np.int64) + since / lengths
    return found


LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "kmnist": kmnist,
    "notmnist": notmnist,
    "omniglot": omniglot,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "tiny_imagenet": tiny_imagenet,
    "mauna_loa_co2": mauna_loa_co2,
    **{f"uci/{name}": partial(uci, name) for name in UCI},
}


def load(name: str, *, progress: Progress | None = None) -> Dataset:
    """Load a set by its name, a key of ``LOADERS``.

    >>> load("digits").name
    'digits'

    Args:
        name: Such as ``mnist`` or ``uci/boston``.
        progress: Told how far a download has come.

    Raises:
        CosetError: There is no set of that name; close ones are named.
    """
    require_kind(str, name=name)
    if name not in LOADERS:
        raise _unknown(name, list(LOADERS), "data set")
    return LOADERS[name](progress=progress) if name in RECIPES else LOADERS[name]()


def _unknown(name: str, known: list[str], what: str) -> CosetError:
    # MNIST, Fashion-MNIST and cifar-10 are how people write them.
    plain = {re.sub(r"[^a-z0-9]", "", key): key for key in known}
    close = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", name.lower()), plain, cutoff=0.5)
    advice = f"did you mean {' or '.join(plain[key] for key in close)}?" if close else "choose one"
    return CosetError(f"got the {what} {name!r}", f"needed one of {', '.join(known)}", advice)
