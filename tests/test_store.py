import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coset import CosetError, store

FACTS = {"name": "tïny", "format": 1, "number": 0.1}
TENSORS = {"w": torch.arange(3.0), "n": torch.tensor(7)}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "tiny.safetensors"
    store.save_record(path, TENSORS, FACTS)
    return path


def test_what_is_saved_comes_back(saved):
    tensors, facts = store.load_record(saved)
    assert facts == FACTS
    assert list(facts) == list(FACTS)  # in their order
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_the_same_content_gives_the_same_bytes(saved, tmp_path):
    again = tmp_path / "again.safetensors"
    store.save_record(again, TENSORS, FACTS)
    assert again.read_bytes() == saved.read_bytes()


def test_other_programs_can_read_it(saved):
    assert torch.equal(store.load_tensors(saved)["w"], TENSORS["w"])


@pytest.mark.parametrize("read", [store.load_record, store.load_tensors])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_anywhere_is_noticed(saved, bit, read):
    content = saved.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << bit
        saved.write_bytes(changed)
        with pytest.raises(CosetError):
            read(saved)


def test_files_of_other_programs_are_read(tmp_path):
    path = tmp_path / "other.safetensors"
    for metadata in (None, {}, {"format": "pt", "digest": "0" * 64}):
        save_file(TENSORS, path, metadata=metadata)
        assert torch.equal(store.load_tensors(path)["w"], TENSORS["w"])


def test_a_file_cut_anywhere_or_with_more_at_its_end_is_noticed(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        with pytest.raises(CosetError):
            store.load_record(saved)
    saved.write_bytes(content + b"\0")
    with pytest.raises(CosetError):
        store.load_record(saved)


def test_a_digest_among_the_facts_does_not_confuse(tmp_path):
    facts = {"note": '"sha256":"' + "0" * 64 + '"', "sha256": "0" * 64}
    path = tmp_path / "facts.safetensors"
    store.save_record(path, TENSORS, facts)
    assert store.load_record(path)[1] == facts


def test_views_of_one_storage_are_saved(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    path = tmp_path / "views.safetensors"
    store.save_record(path, {"a": base.T, "b": base[0], "c": base.expand(4, 2, 3)}, {})
    tensors, _ = store.load_record(path)
    assert torch.equal(tensors["a"], base.T)
    assert tensors["c"].shape == (4, 2, 3)


def test_files_are_in_memory_once_when_written_and_twice_when_read(tmp_path):
    """In bytes of Python: what was read and what safetensors makes of it."""
    path, tensors = tmp_path / "large.safetensors", {"w": torch.randn(500, 1000)}
    for most, work in (
        (1.5, lambda: store.save_record(path, tensors, FACTS)),
        (2.5, lambda: store.load_record(path)),
    ):
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most * path.stat().st_size


def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        store.write_text(saved, "half")
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_place_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "some other name")

    monkeypatch.setattr(Path, "open", refuse)  # root may write everywhere
    with pytest.raises(CosetError, match=r"got the path .*file: Permission denied; needed a place"):
        store.write_text(tmp_path / "file", "text")


def test_what_killed_writers_left_is_cleared(tmp_path):
    old, young = (tmp_path / f".state.safetensors.{digit * 16}" for digit in "0f")
    others = [tmp_path / name for name in (".hidden.safetensors", "state.safetensors", ".x.123")]
    for path in (old, young, *others):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    os.utime(young)  # somebody may be at it
    store.clear_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([young, *others])


def test_facts_that_json_cannot_hold_are_refused_before_writing(tmp_path):
    with pytest.raises(TypeError):
        store.save_record(tmp_path / "x.safetensors", TENSORS, {"bad": object()})
    assert list(tmp_path.iterdir()) == []


def test_folders_are_not_made_and_not_overwritten(tmp_path):
    with pytest.raises(CosetError, match="to exist"):
        store.write_text(tmp_path / "missing" / "x", "text")
    with pytest.raises(CosetError, match="is a folder"):
        store.write_text(tmp_path, "text")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    """A device such as /dev/null would be lost to the whole machine, where the user is root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(CosetError, match=f"{path.name}, which is no plain file"):
            store.write_text(path, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_leads_to_what_was_written(tmp_path, there):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    if there:
        real.write_text("old")
    link.symlink_to(real)
    store.write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert os.listdir(real.parent) == ["file"]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path, name):
    store.write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]


def test_files_get_the_usual_rights(tmp_path):
    path = tmp_path / "page.html"
    before = os.umask(0o022)
    try:
        store.write_text(path, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


HEADERS = {
    "nested too deep": b"[" * 200_000,
    "nested objects": b'{"a":' * 100_000,
    "no object": b"[3]",
    "not a number": b"NaN",
    "metadata in words": b'{"__metadata__":"coset"}',
    "metadata in numbers": b'{"__metadata__":{"coset":3}}',
    "numbers torch has none of": b'{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}',
}


@pytest.mark.parametrize("read", [store.load_record, store.load_tensors])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_that_hold_something_else_are_refused(tmp_path, header, read):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(CosetError, match=r"odd\.safetensors"):
        read(path)


def test_reading_what_is_not_there_or_not_ours(tmp_path):
    with pytest.raises(CosetError, match="No such file"):
        store.load_record(tmp_path / "missing")
    foreign = tmp_path / "foreign"
    for content in (b"", b"\x80\x04pickle", json.dumps({}).encode(), b"\x02" + b"\0" * 7 + b"{}"):
        foreign.write_bytes(content)
        with pytest.raises(CosetError):
            store.load_record(foreign)
        if content[:1] != b"\x02":
            with pytest.raises(CosetError):
                store.load_tensors(foreign)
