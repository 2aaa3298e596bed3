import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from written_sets import write_cifar10, write_mnist

from coset.data import lookup
from coset.data.download import Remote
from coset.data.lookup import cache_folder, locate
from coset.data.sources import SOURCES, Package
from coset.errors import CosetError


@pytest.fixture
def everywhere(monkeypatch, tmp_path, data_folder):
    """MNIST in all four places; gives the places in the order of looking."""
    package, served = tmp_path / "package", tmp_path / "served"
    places = [data_folder / "mnist", package, cache_folder() / "mnist", served]
    for number, place in enumerate(places):
        write_mnist(place, seed=number)
    remotes = tuple(
        Remote((p.as_uri(),), f"md5:{hashlib.md5(p.read_bytes()).hexdigest()}")
        for p in sorted(served.iterdir())
    )
    row = replace(SOURCES["mnist"], package=Package("install it", lambda: package), remotes=remotes)
    monkeypatch.setitem(SOURCES, "mnist", row)
    return places


def test_the_order_of_looking(everywhere):
    data, package, cache, _ = everywhere
    for place in (data, package, cache):
        found = locate("mnist")
        assert found.path == place
        assert str(place) in found.origin
        shutil.rmtree(place)
    found = locate("mnist")  # downloaded into the cache
    assert found.path == cache
    assert len(list(cache.iterdir())) == 4
    served = everywhere[3]
    for path in served.iterdir():
        assert (cache / path.name).read_bytes() == path.read_bytes()
    shutil.rmtree(served)
    assert locate("mnist").path == cache  # and needs no network any more


def test_a_download_that_broke_off_is_taken_up_again(everywhere):
    data, package, cache, _ = everywhere
    shutil.rmtree(data)
    shutil.rmtree(package)
    (cache / "train-images-idx3-ubyte.gz").unlink()
    kept = (cache / "train-labels-idx1-ubyte.gz").read_bytes()
    assert locate("mnist").path == cache
    assert (cache / "train-labels-idx1-ubyte.gz").read_bytes() == kept


def test_official_files_before_a_compact_copy(data_folder, monkeypatch):
    compact = data_folder / "cifar10_15k_4k.npz"
    np.savez(compact, x=np.zeros(3))
    digest = hashlib.sha256(compact.read_bytes()).hexdigest()
    row = replace(SOURCES["cifar10"], compact=(compact.name, digest))
    monkeypatch.setitem(SOURCES, "cifar10", row)
    assert locate("cifar10").path == compact
    assert locate("cifar10").is_compact
    inner = data_folder / "cifar10" / "cifar-10-batches-bin"
    write_cifar10(inner)
    found = locate("cifar10")
    assert found.path == inner
    assert not found.is_compact


def test_an_empty_folder_hides_nothing(data_folder, monkeypatch):
    compact = data_folder / "uci_regression.npz"
    np.savez(compact, x=np.zeros(3))
    digest = hashlib.sha256(compact.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "uci", replace(SOURCES["uci"], compact=(compact.name, digest)))
    (data_folder / "uci").mkdir()
    assert locate("uci").path == compact
    (data_folder / "uci" / "yacht.txt").write_text("0 1")
    assert locate("uci").path == data_folder / "uci"


def test_what_another_process_has_brought_meanwhile_is_taken(monkeypatch):
    def fail(_remote, folder, **_):
        write_mnist(folder)
        raise CosetError("the folder is not empty")

    monkeypatch.setattr(lookup, "fetch", fail)
    assert locate("mnist").path == cache_folder() / "mnist"


def test_a_tampered_compact_copy_is_refused(data_folder):
    np.savez(data_folder / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(CosetError, match=r"mnist\.npz with checksum .*; needed sha256:06af5d"):
        locate("mnist")


@pytest.mark.parametrize("name", SOURCES)
def test_offline_and_absent_names_the_set_and_every_way(name, monkeypatch):
    source = SOURCES[name]
    if source.package:
        package = replace(source.package, folder=lambda: None)
        monkeypatch.setitem(SOURCES, name, replace(source, package=package))
    with pytest.raises(CosetError) as caught:
        locate(name)
    message = str(caught.value)
    assert f"no copy of {name}" in message
    wanted = [*source.files, f"folder {name} under COSET_DATA"]
    wanted += [source.compact[0]] if source.compact else []
    wanted += [source.package.install] if source.package else []
    wanted += [remote.urls[0] for remote in source.remotes]
    for word in wanted:
        assert word in message
    assert not (cache_folder() / name).exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar10", "data_batch_1"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
        ("cifar100", "train"),
        ("cifar100", "cifar-100-python/train"),
    ],
)
@pytest.mark.parametrize("where", ["data", "cache"])
def test_pickles_are_never_opened(name, file, where, data_folder):
    root = data_folder if where == "data" else cache_folder()
    path = root / name / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cbuiltins\neval\n(Vexit(3)\ntR.")
    with pytest.raises(CosetError, match=r"pickles; needed the binary version.*binary\.tar\.gz"):
        locate(name)


def test_a_half_folder_is_refused_rather_than_replaced(data_folder):
    write_mnist(data_folder / "mnist")
    (data_folder / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CosetError, match="without t10k-labels-idx1-ubyte; needed"):
        locate("mnist")
    (data_folder / "mnist.npz").write_bytes(b"a compact copy does not stand in for it either")
    with pytest.raises(CosetError, match="without t10k-labels-idx1-ubyte; needed"):
        locate("mnist")


def test_folders_that_may_not_be_read_are_named(monkeypatch, data_folder):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)  # root may read everywhere
    with pytest.raises(CosetError, match=f"got {data_folder}: Permission denied; needed a place"):
        locate("mnist")


def test_folders_of_variables_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(CosetError, match=r"COSET_DATA=.*nowhere"):
        locate("mnist")
    monkeypatch.delenv("COSET_DATA")
    monkeypatch.setenv("FASHION_MNIST_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(CosetError, match=r"FASHION_MNIST_DIR=.*nowhere"):
        locate("fashion_mnist")


def test_fashion_mnist_of_the_debian_package(monkeypatch, tmp_path):
    write_mnist(tmp_path / "fashion")
    monkeypatch.setenv("FASHION_MNIST_DIR", str(tmp_path / "fashion"))
    assert locate("fashion_mnist").path == tmp_path / "fashion"
    (tmp_path / "fashion" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CosetError, match="without t10k-labels-idx1-ubyte"):
        locate("fashion_mnist")


def test_an_installed_package_is_found_without_importing_it(monkeypatch, tmp_path):
    folder = tmp_path / "statsmodels" / "datasets" / "co2"
    folder.mkdir(parents=True)
    (folder / "co2.csv").write_text("date,co2\n")
    (tmp_path / "statsmodels" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("mauna_loa_co2").path == folder


def test_the_cache_folder(monkeypatch):
    assert lookup.cache_folder().name == "cache"
    monkeypatch.delenv("COSET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert lookup.cache_folder() == Path("/somewhere/coset")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert lookup.cache_folder() == Path("/home/someone/.cache/coset")
