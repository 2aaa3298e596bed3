import errno
import fcntl
import itertools
import json
import os
import resource
import stat
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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


@pytest.mark.parametrize("read", [store.load_record, store.load_tensors, store.load_facts])
@pytest.mark.parametrize("zipped", [False, True])
def test_pickles_are_named(tmp_path, read, zipped):
    path = tmp_path / "weights.pt"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CosetError, match=r"weights\.pt, a pickle .* needed safetensors"):
        read(path)


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


FAULTS = ("open", "write", "fchmod", "fsync", "replace", "close")


@contextmanager
def failing_at(number, error=errno.ENOSPC):
    """The ``number``-th call of the system that a write makes fails; tells how many there were.

    ``os.close`` closes before it fails, as the system's does.
    """
    calls, made = itertools.count(1), []

    def failing(name, call):
        def function(*arguments, **options):
            made.append(name)
            if next(calls) != number:
                return call(*arguments, **options)
            if name == "close":
                call(*arguments, **options)
            if name == "write":  # half of it, which is not told
                call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise OSError(error, os.strerror(error))

        return function

    with pytest.MonkeyPatch.context() as patch:
        for name in FAULTS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        yield made


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_fault_at_any_call_leaves_the_old_file_or_the_new(tmp_path, error, there):
    path, new = tmp_path / "tiny.safetensors", {"w": torch.ones(2000)}
    store.save_record(tmp_path / "new", new, FACTS)
    whole = (tmp_path / "new").read_bytes()
    (tmp_path / "new").unlink()
    with failing_at(0) as made:
        store.save_record(path, new, FACTS)
    assert set(made) == {*FAULTS} - {"fchmod"}
    refused = []
    for number in range(1, len(made) + there + 1):
        path.unlink()
        if there:
            store.save_record(path, TENSORS, FACTS)
        before = path.read_bytes() if there else None
        with failing_at(number, error) as calls:
            try:
                store.save_record(path, new, FACTS)
            except CosetError as fault:
                refused.append(str(fault))
        assert len(calls) >= number
        found = path.read_bytes() if path.exists() else None
        assert found in (before, whole)
        assert os.listdir(tmp_path) in ([], [path.name])
        path.touch()
    assert len(refused) == len(made) + there
    assert all(os.strerror(error) in fault for fault in refused)


def test_a_disk_that_is_full_is_named_and_leaves_the_old_file(saved):
    """A limit on the size of files stops the kernel's own writes."""
    before = saved.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(CosetError, match=r"got the path .*tiny.safetensors: File too large"):
            store.save_record(saved, {"w": torch.ones(5000)}, FACTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


KILLED = """
import itertools, os, signal, sys
from coset import store

point, path = int(sys.argv[1]), sys.argv[2]
calls = itertools.count(1)
def dying(call):
    def function(*arguments, **options):
        if next(calls) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return function
for name in ("open", "write", "fchmod", "fsync", "replace", "close"):
    setattr(os, name, dying(getattr(os, name)))
for points in range(1, 40):
    child = os.fork()
    if not child:
        point, calls = points, itertools.count(1)
        store.write_bytes(path, b"new" * 1000, b"." * 9)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print("whole", points)
        break
    with open(path, "rb") as file:
        print(file.read(3).decode(), len(os.listdir(os.path.dirname(path))))
    with open(path, "wb") as file:
        file.write(b"old")
"""


def test_a_kill_at_any_call_leaves_the_old_file_or_the_new_and_the_next_save_clears_up(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    told = subprocess.run(
        [sys.executable, "-c", KILLED, "0", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(told) >= 10
    assert told[-1].startswith("whole")
    assert {line.split()[0] for line in told[:-1]} == {"old", "new"}
    assert max(int(line.split()[1]) for line in told[:-1]) == 2  # the file and one unfinished
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes()[:3] == b"new"


def test_a_place_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "some other name")

    monkeypatch.setattr(os, "open", refuse)  # root may write everywhere
    with pytest.raises(CosetError, match=r"got the path .*file: Permission denied; needed a place"):
        store.write_text(tmp_path / "file", "text")


def test_names_that_no_file_can_have_are_refused(tmp_path):
    long, nul = tmp_path / ("x" * 300), f"{tmp_path}/a\0b"
    for path, why in ((long, "File name too long"), (nul, "null byte")):
        for work in (
            lambda path: store.write_text(path, "text"),
            store.read_bytes,
            store.load_record,
            store.load_tensors,
        ):
            with pytest.raises(CosetError, match=why) as caught:
                work(path)
            assert str(caught.value).isprintable()
    assert os.listdir(tmp_path) == []


def test_what_killed_writers_left_is_cleared(tmp_path):
    dead, alive = (tmp_path / f".state.safetensors.{digit * 16}" for digit in "0f")
    others = [tmp_path / name for name in (".hidden.safetensors", "state.safetensors", ".x.123")]
    for path in (dead, alive, *others):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as its writer does
        store.clear_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, *others])
    store.write_text(tmp_path / "state.safetensors", "whole")
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_on_a_disk_without_locks_age_tells(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    old, young = (tmp_path / f".file.{digit * 16}" for digit in "0f")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.write_text(tmp_path / "file", "text")
    assert sorted(os.listdir(tmp_path)) == [young.name, "file"]


def test_writers_of_one_file_at_the_same_time_leave_one_of_theirs(tmp_path):
    path, texts = tmp_path / "file", [f"{number}" * 5000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: [store.write_text(path, text) for _ in range(20)], texts))
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("private")
    path.chmod(mode)
    store.write_text(path, "still private")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_group_that_cannot_be_kept_loses_its_rights(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    path, fstat = tmp_path / "file", os.fstat
    path.write_text("for the group")
    path.chmod(0o640)
    monkeypatch.setattr(os, "fchown", refuse)
    other = os.stat_result([*fstat(0)[:4], 12345, 12345, *fstat(0)[6:]])
    monkeypatch.setattr(os, "fstat", lambda _: other)
    store.write_text(path, "for the owner")
    monkeypatch.undo()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(file):
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def renamed(*paths):
        done.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    store.write_text(tmp_path / "file", "text")
    assert done == ["file", "rename", "folder"]


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
