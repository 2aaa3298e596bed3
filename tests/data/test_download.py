import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coset.data.download import Remote, fetch, verify
from coset.errors import CosetError


def remote_of(path, *, checksum=None):
    digest = checksum or hashlib.sha256(path.read_bytes()).hexdigest()
    return Remote((path.as_uri(),), f"sha256:{digest}")


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


def everything_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_file_arrives_whole_and_progress_is_told(served, tmp_path):
    (served / "a.bin").write_bytes(b"x" * 2_500_000)
    told = []
    fetch(remote_of(served / "a.bin"), tmp_path / "to", progress=lambda *said: told.append(said))
    assert everything_in(tmp_path / "to") == ["a.bin"]
    assert (tmp_path / "to" / "a.bin").stat().st_size == 2_500_000
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert told[-1] == (1.0, "a.bin: 2.5 MB")


def test_a_wrong_checksum_leaves_nothing(served, tmp_path):
    (served / "a.bin").write_bytes(b"tampered")
    with pytest.raises(CosetError, match="needed sha256:00") as caught:
        fetch(remote_of(served / "a.bin", checksum="00"), tmp_path / "to")
    assert "a.bin" in str(caught.value)
    assert not (tmp_path / "to").exists()


def test_a_failed_download_keeps_what_came_before(served, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "b.bin").write_bytes(b"older")
    with pytest.raises(CosetError, match="download failed"):
        fetch(Remote(((served / "absent").as_uri(),), "md5:0"), tmp_path / "to")
    assert everything_in(tmp_path / "to") == ["b.bin"]


def test_an_interrupted_download_leaves_nothing(served, tmp_path):
    (served / "a.bin").write_bytes(b"x")

    def stop(fraction, line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(remote_of(served / "a.bin"), tmp_path / "to", progress=stop)
    assert everything_in(tmp_path / "to") == []


def test_the_next_address_is_tried(served, tmp_path):
    (served / "a.bin").write_bytes(b"good")
    (served / "mirror").mkdir()
    (served / "mirror" / "a.bin").write_bytes(b"a page that says no")
    good = remote_of(served / "a.bin")
    remote = Remote(((served / "mirror" / "a.bin").as_uri(), *good.urls), good.checksum)
    fetch(remote, tmp_path / "to")
    assert (tmp_path / "to" / "a.bin").read_bytes() == b"good"


class Server(BaseHTTPRequestHandler):
    """A page that is whole, one that is moved, one that stops half-way; all others are absent."""

    content = b"x" * 2_500_000

    def do_GET(self):
        if self.path == "/moved.bin":
            self.send_response(302)
            self.send_header("Location", "/a.bin")
            self.end_headers()
        elif self.path in ("/a.bin", "/half/a.bin"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()
            whole = self.path == "/a.bin"
            self.wfile.write(self.content[: None if whole else len(self.content) // 2])
        else:
            self.send_error(404)

    def log_message(self, *said):
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("page", ["a.bin", "moved.bin"])
def test_a_server_is_read_and_followed(address, tmp_path, page):
    told = []
    checksum = f"sha256:{hashlib.sha256(Server.content).hexdigest()}"
    remote = Remote((f"{address}/{page}",), checksum)
    fetch(remote, tmp_path / "to", progress=lambda *said: told.append(said))
    assert (tmp_path / "to" / page).read_bytes() == Server.content
    assert told[-1] == (1.0, f"{page}: 2.5 MB")


@pytest.mark.parametrize(("page", "said"), [("half/a.bin", "1250000 bytes"), ("b/a.bin", "404")])
def test_a_server_that_fails_is_named_and_the_next_is_asked(address, tmp_path, page, said):
    checksum = f"sha256:{hashlib.sha256(Server.content).hexdigest()}"
    with pytest.raises(CosetError, match=said):
        fetch(Remote((f"{address}/{page}",), checksum), tmp_path / "to")
    assert not (tmp_path / "to").exists()
    fetch(Remote((f"{address}/{page}", f"{address}/a.bin"), checksum), tmp_path / "to")
    assert (tmp_path / "to" / "a.bin").read_bytes() == Server.content


def write_tar(path, entries):
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))


def write_zip(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in entries.items():
            archive.writestr(name, raw)


@pytest.mark.parametrize(("name", "write"), [("a.tar.gz", write_tar), ("a.zip", write_zip)])
def test_archives_are_unpacked_and_not_kept(served, tmp_path, name, write):
    write(served / name, {"in/one.bin": b"1", "in/two.bin": b"2"})
    stale = tmp_path / "to" / "in"
    stale.mkdir(parents=True)
    (stale / "one.bin").write_bytes(b"half of an older copy")
    fetch(remote_of(served / name), tmp_path / "to")
    assert everything_in(tmp_path / "to") == ["in", "in/one.bin", "in/two.bin"]
    assert (stale / "one.bin").read_bytes() == b"1"


def test_a_folder_that_another_process_has_brought_stays(served, tmp_path):
    """Taking it away would leave a moment without it."""
    write_zip(served / "a.zip", {"in/one.bin": b"1", "in/two.bin": b"2"})
    fetch(remote_of(served / "a.zip"), tmp_path / "to")
    before = (tmp_path / "to" / "in").stat().st_ino
    fetch(remote_of(served / "a.zip"), tmp_path / "to")
    assert (tmp_path / "to" / "in").stat().st_ino == before
    assert everything_in(tmp_path / "to") == ["in", "in/one.bin", "in/two.bin"]


def test_an_archive_that_points_outside_is_refused(served, tmp_path):
    write_tar(served / "a.tar.gz", {"../outside.bin": b"1"})
    with pytest.raises(CosetError, match="cannot be unpacked"):
        fetch(remote_of(served / "a.tar.gz"), tmp_path / "to")
    assert not list(tmp_path.rglob("outside.bin"))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_damaged_archive_is_refused(served, tmp_path, name):
    (served / name).write_bytes(b"no archive")
    with pytest.raises(CosetError, match="cannot be unpacked"):
        fetch(remote_of(served / name), tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, 77], ids=["damaged", "unknown"])
def test_a_zip_with_contents_that_cannot_be_read_is_refused(served, tmp_path, method):
    """No method of packing is number 77; and three ones are no beginning of a deflated block."""
    path = served / "a.zip"
    write_zip(path, {"a.bin": b"\xff" * 9})
    content = bytearray(path.read_bytes())
    for field in (content.index(b"PK\3\4") + 8, content.index(b"PK\1\2") + 10):
        content[field] = method
    path.write_bytes(content)
    with pytest.raises(CosetError, match="cannot be unpacked"):
        fetch(remote_of(path), tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_verify(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    verify(tmp_path / "a", "md5:900150983cd24fb0d6963f7d28e17f72")
    with pytest.raises(CosetError, match=r"900150983cd24fb0d6963f7d28e17f72 \(3 bytes\)"):
        verify(tmp_path / "a", "md5:900150983cd24fb0d6963f7d28e17f73")
