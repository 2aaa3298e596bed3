"""Zips of Ray Tune folders: read by epoch, and nothing in them is run."""

import io
import json
import zipfile

import pytest
import torch

from coset.errors import CosetError
from coset.models import mlp
from coset.zoo import read_checkpoints

RUN = []
THEIRS = {"module_list.0": "linear1", "module_list.2": "linear2"}


def build():
    return mlp(in_features=3, hidden=[4], classes=2)


class Dataset:
    """Stands for a class of theirs: to unpickle it is to run it."""

    def __reduce__(self):
        return RUN.append, ("it ran",)


def saved(content, **settings):
    file = io.BytesIO()
    torch.save(content, file, **settings)
    return file.getvalue()


def state(seed):
    torch.manual_seed(seed)
    names = {ours: theirs for theirs, ours in THEIRS.items()}
    return {
        name.replace(name.partition(".")[0], names[name.partition(".")[0]]): tensor
        for name, tensor in build().state_dict().items()
    }


def zipped(path, files, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def published(path, count=3, epochs=(0, 10)):
    """As the zoos are: a folder a network, one in it for each epoch, and much besides."""
    files = {"tune_zoo/experiment_state.json": b"{}"}
    for k in reversed(range(count)):
        place = f"tune_zoo/NN_tune_trainable_{k:05d}"
        files[f"{place}/params.json"] = json.dumps({"seed": k})
        files[f"{place}/result.json"] = json.dumps({"test_acc": 0.5})
        for epoch in epochs:
            folder = f"{place}/checkpoint_{epoch:06d}"
            files[f"{folder}/checkpoints"] = saved(state(100 * k + epoch))
            files[f"{folder}/optimizer"] = saved({"state": {}})
            files[f"{folder}/.is_checkpoint"] = b""
    return zipped(path, files)


def test_networks_come_in_order_of_their_folders_at_an_epoch(tmp_path):
    archive = published(tmp_path / "zoo.zip")
    for epoch, last in ((None, 10), (0, 0), (10, 10)):
        found = list(read_checkpoints(archive, build(), renamed=THEIRS, epoch=epoch))
        for k, weights in enumerate(found):
            assert torch.equal(
                weights["linear1.weight"], state(100 * k + last)["module_list.0.weight"]
            )
        assert len(found) == 3
    (one,) = read_checkpoints(archive, build(), renamed=THEIRS, members=[1])
    assert torch.equal(one["linear2.bias"], state(110)["module_list.2.bias"])
    with pytest.raises(CosetError, match=r"epoch=7.*one that is kept \(0, 10\)"):
        list(read_checkpoints(archive, build(), renamed=THEIRS, epoch=7))
    with pytest.raises(CosetError, match="needed member 3"):
        list(read_checkpoints(archive, build(), renamed=THEIRS, members=[3]))


def test_their_pickled_data_sets_are_refused_by_name(tmp_path):
    (tmp_path / "dataset.pt").write_bytes(saved({"trainset": Dataset()}))
    with pytest.raises(
        CosetError, match=r"dataset\.pt, a pickle of torch\.save with .*fetch the zip"
    ):
        list(read_checkpoints(tmp_path / "dataset.pt", build()))
    place = "zoo/a/checkpoint_000001/checkpoints"
    archive = zipped(tmp_path / "a.zip", {place: saved(Dataset())})
    with pytest.raises(CosetError, match="which is more than a state dict"):
        list(read_checkpoints(archive, build()))
    assert not RUN, "nothing was run"


BIG = 30_000_000


def bomb():
    """What torch.save wrote, packed a thousand times smaller than it unfolds to."""
    file, plain = io.BytesIO(), io.BytesIO(saved({"a": torch.zeros(BIG // 4)}))
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    return file.getvalue()


def linked():
    info = zipfile.ZipInfo("zoo/a/checkpoint_000001/checkpoints")
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("/zoo/a/checkpoint_000001/checkpoints", b"", "a link or a path that leads out"),
        ("zoo/../../a/checkpoint_000001/checkpoints", b"", "a link or a path that leads out"),
        (linked(), b"/etc/passwd", "a link or a path that leads out"),
        ("zoo/a/checkpoint_000001/checkpoints", bytes(BIG), "30,000,000 bytes"),
        ("zoo/a/checkpoint_000001/checkpoints", bomb(), r"of 30,\d\d\d,\d\d\d bytes"),
        ("zoo/a/checkpoint_000001/checkpoints", b"no weights", "torch.save did not write"),
        ("zoo/a/checkpoint_000001/checkpoints", saved([1]), "which is no state dict"),
        ("zoo/a/checkpoint_000001/checkpoints", saved({"a": torch.ones(1)}), "unknown 'a'"),
        (
            "zoo/a/checkpoint_000001/checkpoints",
            saved({"a": torch.ones(1)}, _use_new_zipfile_serialization=False),
            "torch.save did not write, or before 2020",
        ),
        ("zoo/README", b"words", "without networks"),
    ],
)
def test_what_should_not_be_in_a_zip_is_refused(tmp_path, name, content, words):
    archive = zipped(tmp_path / "a.zip", {name: content}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CosetError, match=words):
        list(read_checkpoints(archive, build()))


def test_a_cut_zip_is_refused(tmp_path):
    content = published(tmp_path / "zoo.zip").read_bytes()
    for place in (4, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.zip").write_bytes(content[:place])
        with pytest.raises(CosetError, match="cut or damaged"):
            list(read_checkpoints(tmp_path / "cut.zip", build()))


def test_a_flipped_bit_is_noticed(tmp_path):
    archive = published(tmp_path / "zoo.zip", count=1)
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as zoo:
        (info,) = [i for i in zoo.infolist() if i.filename.endswith("000010/checkpoints")]
    content[info.header_offset + info.file_size // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(CosetError, match="cut or damaged"):
        list(read_checkpoints(archive, build(), renamed=THEIRS))


def test_epochs_are_of_zips_alone(tmp_path):
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(CosetError, match="epoch=1"):
        list(read_checkpoints(tmp_path / "a.tar", build(), epoch=1))
