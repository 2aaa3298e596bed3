"""Places that cannot be written are refused before any work, files that are read too."""

import os

import pytest

from coset.cli.places import check_file, check_folder
from coset.errors import CosetError


def test_free_places_are_taken(tmp_path):
    (tmp_path / "old").write_text("may be written over")
    check_file("--out", tmp_path / "new", [tmp_path / "old"])
    check_file("--out", tmp_path / "old", [tmp_path / "missing"])
    check_folder("--out", tmp_path, "page.html")
    check_folder("--out", tmp_path / "a" / "b", "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", ["mine", "inside/../mine", "link", "hard"])
def test_an_input_is_known_by_every_name(tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text("dear")
    (tmp_path / "inside").mkdir()
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "hard").hardlink_to(mine)
    with pytest.raises(CosetError, match="which is an input"):
        check_file("--out", tmp_path / name, [mine])


def test_what_is_in_the_way_is_named(tmp_path):
    (tmp_path / "page.html").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(CosetError, match=r"page\.html is a folder"):
        check_folder("--out", tmp_path, "page.html")
    with pytest.raises(CosetError, match="is a file"):
        check_folder("--out", tmp_path / "file" / "below", "page.html")
    with pytest.raises(CosetError, match="a folder; needed the name of a file"):
        check_file("--svg", tmp_path)
    with pytest.raises(CosetError, match="whose folder is missing"):
        check_file("--svg", tmp_path / "no" / "net.svg")


def test_pipes_and_links_to_nothing_are_named(tmp_path):
    os.mkfifo(tmp_path / "page.html")
    (tmp_path / "nowhere").symlink_to(tmp_path / "no" / "folder")
    with pytest.raises(CosetError, match=r"page\.html is no plain file"):
        check_folder("--out", tmp_path, "page.html")
    with pytest.raises(CosetError, match=r"page\.html, no plain file"):
        check_file("--svg", tmp_path / "page.html")
    with pytest.raises(CosetError, match="nowhere is a link to nothing"):
        check_folder("--out", tmp_path / "nowhere", "page.html")
    with pytest.raises(CosetError, match="whose folder is missing"):
        check_file("--svg", tmp_path / "nowhere")


def test_folders_that_may_not_be_written_in_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(CosetError, match="nothing may be written in"):
        check_file("--out", tmp_path / "file")
    with pytest.raises(CosetError, match="nothing may be written in"):
        check_folder("--out", tmp_path / "a" / "b", "page.html")
