"""Published archives: read in order without unpacking, and refused when anything is wrong."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from coset.errors import CosetError
from coset.models import optunet, resnet
from coset.weights.network import weights_of
from coset.zoo import read_checkpoints


def states(count, build=optunet):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        found.append(build().state_dict())
    return found


def archived(path, files, *, mode="w:gz", form=tarfile.GNU_FORMAT):
    """An archive of entries: a name and bytes, or a name and an entry of another kind."""
    with tarfile.open(path, mode, format=form) as archive:
        for name, content in files:
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def halves(state, prefix=""):
    """As the published sets have it: half precision, perhaps with a prefix."""
    kept = {n: w.half() if w.is_floating_point() else w for n, w in state.items()}
    return save({prefix + name: tensor for name, tensor in kept.items()})


def published(path, count=4, **settings):
    files = [
        (f"optunet/version_{9 - k}.safetensors", halves(s)) for k, s in enumerate(states(count))
    ]
    return archived(path, [("optunet/README.md", b"words"), *files], **settings)


@pytest.mark.parametrize(("name", "mode"), [("set.tgz", "w:gz"), ("set.tar", "w")])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_networks_come_in_the_order_of_the_archive(tmp_path, name, mode, form):
    archive = published(tmp_path / name, mode=mode, form=form)
    found = list(read_checkpoints(archive, optunet()))
    assert len(found) == 4
    for weights, state in zip(found, states(4), strict=True):
        assert list(weights) == list(weights_of(optunet()))
        for tensor, like in zip(weights.values(), state.values(), strict=True):
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, like.half().float())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_some_members_and_no_further(tmp_path):
    archive = published(tmp_path / "set.tar", mode="w")
    every = list(read_checkpoints(archive, optunet()))
    for asked, same in (
        ([2, 0], [0, 2]),
        (slice(1, None, 2), [1, 3]),
        (slice(2), [0, 1]),
        ([], []),
    ):
        found = list(read_checkpoints(archive, optunet(), members=asked))
        assert [w["conv1.weight"].sum() for w in found] == [
            every[k]["conv1.weight"].sum() for k in same
        ]
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    assert len(list(read_checkpoints(archive, optunet(), members=[0]))) == 1


def test_prefixes_names_and_counters(tmp_path):
    build = lambda: resnet(depths=[1], widths=[2])  # noqa: E731
    (state,) = states(1, build)
    archive = archived(tmp_path / "a.tgz", [("0.safetensors", halves(state, "model."))])
    (found,) = read_checkpoints(archive, build())
    assert torch.equal(found["bn1.running_var"], state["bn1.running_var"])
    assert "bn1.num_batches_tracked" not in found

    (state,) = states(1)
    theirs = {name.replace("linear", "fc"): tensor for name, tensor in state.items()}
    archive = archived(tmp_path / "b.tgz", [("0.safetensors", halves(theirs))])
    with pytest.raises(CosetError, match=r"0\.safetensors.*unknown 'fc1.bias'"):
        list(read_checkpoints(archive, optunet()))
    names = {"fc1": "linear1", "fc2": "linear2"}
    (found,) = read_checkpoints(archive, optunet().double(), renamed=names)
    assert torch.equal(found["linear1.bias"], state["linear1.bias"].half().double())


@pytest.mark.parametrize("name", ["set.tgz", "set.tar"])
def test_a_cut_archive_is_never_read_as_a_shorter_one(tmp_path, name):
    """Cut at every boundary of entries, where the standard library sees nothing, and elsewhere."""
    whole = published(tmp_path / "set.tar", mode="w").read_bytes()
    places = [*range(512, len(whole.rstrip(b"\0")), 512), len(whole.rstrip(b"\0")) + 600, 100, 0]
    assert len(places) > 15
    for place in places:
        cut = whole[:place]
        archive = tmp_path / name
        archive.write_bytes(gzip.compress(cut) if name.endswith("gz") else cut)
        with pytest.raises(CosetError, match=r"ends too early|damaged"):
            list(read_checkpoints(archive, optunet()))
    if name.endswith("gz"):
        packed = gzip.compress(whole)
        for place in (1, 15, len(packed) // 2, len(packed) - 9, len(packed) - 1):
            archive.write_bytes(packed[:place])
            with pytest.raises(CosetError, match=r"ends too early|damaged"):
                list(read_checkpoints(archive, optunet()))


def entry(name, kind=tarfile.REGTYPE, size=0, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return name, info


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (entry("a.safetensors", tarfile.SYMTYPE, link="/etc/passwd"), "a link"),
        (entry("a.safetensors", tarfile.LNKTYPE, link="b"), "a link"),
        (entry("a.safetensors", tarfile.CHRTYPE), "no plain file"),
        (("/tmp/a.safetensors", b""), "the path '/tmp/a.safetensors'"),
        (("a/../../b.safetensors", b""), "needed paths that stay inside"),
        (("a/" + 150 * "x" + "/../../../b.safetensors", b""), "needed paths that stay inside"),
        (entry("a.safetensors", size=8**11 - 1), "8,589,934,591 bytes"),
        (entry("README", size=8**11 - 1), "8,589,934,591 bytes"),
        (("a.pth", pickle.dumps({})), "a pickle; needed safetensors files"),
        (("a.safetensors", b"no weights"), "safetensors cannot read"),
        (("a.safetensors", save({"a": torch.ones(2)})), "unknown 'a'"),
    ],
)
def test_what_should_not_be_in_an_archive_is_refused(tmp_path, bad, words):
    """One after a good network, which is read before the archive is refused."""
    good = ("0.safetensors", halves(states(1)[0]))
    archive = archived(tmp_path / "a.tar", [good, bad], mode="w")
    networks = read_checkpoints(archive, optunet())
    next(networks)
    with pytest.raises(CosetError, match=words):
        list(networks)


def test_large_headers_are_not_read(tmp_path):
    info = tarfile.TarInfo("long name")
    info.type, info.size = tarfile.XHDTYPE, 10**9
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(4096))
    with pytest.raises(CosetError, match="a header of 1000000000 bytes"):
        list(read_checkpoints(tmp_path / "a.tar", optunet()))


def test_weights_that_are_wrong_are_refused(tmp_path):
    (state,) = states(1)
    state["conv1.weight"][0, 0, 0, 0] = torch.nan
    archive = archived(tmp_path / "a.tgz", [("0.safetensors", halves(state))])
    with pytest.raises(CosetError, match=r"with 1 numbers in 'conv1\.weight' that are infinite"):
        list(read_checkpoints(archive, optunet()))
    with pytest.raises(CosetError, match=r"a\.tgz with 1 networks; needed member 7"):
        list(read_checkpoints(archive, optunet(), members=[7]))


def test_places_and_settings_that_are_wrong_are_refused(tmp_path):
    with pytest.raises(CosetError, match="No such file"):
        list(read_checkpoints(tmp_path / "none.tgz", optunet()))
    with pytest.raises(CosetError, match="with 0 networks"):
        list(read_checkpoints(archived(tmp_path / "a.tgz", []), optunet()))
    with pytest.raises(CosetError, match="counts upwards"):
        read_checkpoints(tmp_path / "a.tgz", optunet(), members=slice(-2, None))
    with pytest.raises(CosetError, match="got member -1"):
        read_checkpoints(tmp_path / "a.tgz", optunet(), members=[-1])
    (tmp_path / "words.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(CosetError, match="damaged or no archive"):
        list(read_checkpoints(tmp_path / "words.tar", optunet()))


def test_a_pickle_in_place_of_an_archive_is_named_and_not_opened(tmp_path):
    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    state = optunet().state_dict()
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(state, tmp_path / "new.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Harm()))
    for name in ("old.pt", "new.pt", "plain.pkl"):
        with pytest.raises(CosetError, match=rf"{name}, a pickle .*to read a pickle is to run"):
            list(read_checkpoints(tmp_path / name, optunet()))
    assert not (tmp_path / "harm").exists()
