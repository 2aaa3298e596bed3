"""Zoos given away and taken in: the same members, or a refusal and nothing left behind."""

import shutil
import socket
import time

import pytest
import torch

from coset import cli
from coset.engines import Serial
from coset.errors import CosetError
from coset.store import load_record, save_record
from coset.zoo import Zoo, export_hub, import_hub, pack, populate, read_recipe, verify
from zoo.hub_server import hub_server

pytest.importorskip("huggingface_hub")
parquet = pytest.importorskip("pyarrow.parquet")

PLACE = "hf://datasets/somebody/networks"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "zoo"
    populate(read_recipe("tiny"), folder, 6, engine=Serial(), progress=False)
    return pack(folder)


@pytest.fixture
def shared(zoo, tmp_path):
    export_hub(zoo.folder, tmp_path / "shared")
    return tmp_path / "shared"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server in place of the Hub, and a cache of our own."""
    from huggingface_hub import constants

    with hub_server() as (address, files):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # other tests may have said so
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", "hf_x")
        yield address, files


def assert_same(one, other):
    assert one.members == other.members
    assert one.recipe == other.recipe
    for step in (None, 1):
        first, second = one.weights(step=step), other.weights(step=step)
        assert all(torch.equal(first[name], second[name]) for name in first)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_folder_there_and_back(zoo, shared, tmp_path):
    before = names(zoo.folder)
    assert names(shared) == ["README.md", "index.parquet", "shards/00000.safetensors", "zoo.json"]
    found = import_hub(shared, tmp_path / "taken")
    assert_same(found, zoo)
    assert verify(tmp_path / "taken") == ()
    assert names(zoo.folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shared", "taken"]


def test_a_zoo_that_is_not_packed_is_packed_in_the_copy(tmp_path):
    folder = tmp_path / "zoo"
    zoo = populate(read_recipe("tiny"), folder, 3, engine=Serial(), progress=False)
    before = names(folder)
    export_hub(folder, tmp_path / "shared")
    assert names(folder) == before
    assert_same(import_hub(tmp_path / "shared", tmp_path / "taken"), zoo)


def test_all_long_work_tells_how_far_it_is(tmp_path):
    """Each from 0 on, never backwards, and in words."""
    folder, shared = tmp_path / "zoo", tmp_path / "shared"
    works = {
        "networks": lambda **how: populate(read_recipe("tiny"), folder, 3, engine=Serial(), **how),
        "checking: 0 of 1 files": lambda **how: export_hub(folder, shared, **how),
        "0 of 3 files": lambda **how: pack(folder, **how),
        "measuring accuracies: 3 of 6": lambda **how: verify(folder, measure=True, **how),
        "0 of 1 files": lambda **how: import_hub(shared, tmp_path / "taken", **how),
    }
    for words, work in works.items():
        told = []
        work(progress=lambda fraction, text, told=told: told.append((fraction, text)))
        fractions = [fraction for fraction, _ in told]
        assert fractions[0] == 0
        assert fractions == sorted(fractions)
        assert any(words in text for _, text in told)


def test_the_viewer_finds_the_index(zoo, shared):
    import yaml

    _, head, words = (shared / "README.md").read_text().split("---\n", 2)
    settings = yaml.safe_load(head)
    assert settings["configs"] == [{"config_name": "index", "data_files": "index.parquet"}]
    assert "6 networks of the recipe tiny" in words
    table = parquet.read_table(shared / "index.parquet").to_pylist()
    assert len(table) == 12
    assert table[1]["accuracy"] == zoo.members[1].metrics["accuracy"]
    assert {row["step"] for row in table} == {1, None}


def test_the_hub_there_and_back(zoo, hub, tmp_path):
    address, files = hub
    assert export_hub(zoo.folder, PLACE) == f"{address}/datasets/somebody/networks"
    assert sorted(files) == ["README.md", "index.parquet", "shards/00000.safetensors", "zoo.json"]
    assert_same(import_hub(PLACE, tmp_path / "taken"), zoo)
    with pytest.raises(CosetError, match=r"the Hub said: RepositoryNotFoundError"):
        import_hub("hf://datasets/somebody/nothing", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_without_a_connection_the_cache_is_used(zoo, hub, tmp_path, monkeypatch):
    export_hub(zoo.folder, PLACE)
    import_hub(PLACE, tmp_path / "first")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert_same(import_hub(PLACE, tmp_path / "second"), zoo)


@pytest.mark.parametrize("answers", [False, True])
def test_no_connection_is_known_within_three_seconds(zoo, hub, tmp_path, monkeypatch, answers):
    """A machine that refuses, and one that takes the call and says nothing."""
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    if not answers:
        silent.close()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    begun = time.monotonic()
    with pytest.raises(CosetError, match="of which nothing is in the cache"):
        import_hub(PLACE, tmp_path / "taken")
    with pytest.raises(CosetError, match=r"no answer from .* write a folder instead"):
        export_hub(zoo.folder, PLACE)
    assert time.monotonic() - begun < 2 * 3 + 10  # the time that a busy machine takes besides
    silent.close()
    assert not (tmp_path / "taken").exists()


def changed_byte(folder):
    path = folder / "shards" / "00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.unlink()  # it is linked to the zoo's own
    path.write_bytes(content)


def without_a_shard(folder):
    (folder / "shards" / "00000.safetensors").unlink()


def another_index(folder):
    table = parquet.read_table(folder / "index.parquet")
    parquet.write_table(table.slice(1), folder / "index.parquet")


def a_path_that_leads_away(folder):
    import pyarrow

    rows = parquet.read_table(folder / "index.parquet").to_pylist()
    rows = [{**row, "file": "../shards/00000.safetensors"} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "index.parquet")


def words_for_an_index(folder):
    (folder / "index.parquet").write_text("no index")


def without_a_description(folder):
    (folder / "zoo.json").unlink()


def a_shard_of_another_recipe(folder):
    path = folder / "shards" / "00000.safetensors"
    tensors, facts = load_record(path)
    path.unlink()
    save_record(path, tensors, {**facts, "recipe": "0" * 16})


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (changed_byte, "does not fit its sha256"),
        (without_a_shard, "without shards/00000.safetensors"),
        (another_index, "leaves out 1 that they have"),
        (a_path_that_leads_away, "needed names such as"),
        (words_for_an_index, "no index of a zoo"),
        (without_a_description, "there is no zoo.json"),
        (a_shard_of_another_recipe, "belongs to another recipe"),
    ],
)
def test_what_is_damaged_is_refused_and_leaves_nothing(shared, tmp_path, harm, words):
    harm(shared)
    with pytest.raises(CosetError, match=words):
        import_hub(shared, tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_a_damaged_zoo_is_not_given_away(zoo, tmp_path):
    shutil.copytree(zoo.folder, tmp_path / "zoo")
    changed_byte(tmp_path / "zoo")
    with pytest.raises(CosetError, match="does not fit its sha256"):
        export_hub(tmp_path / "zoo", tmp_path / "shared")
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


def test_places_that_are_taken_or_no_places(zoo, shared, tmp_path):
    with pytest.raises(CosetError, match="is there already"):
        export_hub(zoo.folder, shared)
    with pytest.raises(CosetError, match="is there already"):
        import_hub(shared, zoo.folder)
    (tmp_path / "empty").mkdir()
    assert len(import_hub(shared, tmp_path / "empty")) == 6
    with pytest.raises(CosetError, match="needed hf://datasets/OWNER/NAME"):
        import_hub("hf://somebody", tmp_path / "taken")
    with pytest.raises(CosetError, match=r"there is no zoo\.json"):
        export_hub(tmp_path, tmp_path / "again")


def test_an_imported_zoo_can_grow(shared, zoo, tmp_path):
    import_hub(shared, tmp_path / "taken")
    grown = populate(zoo.recipe, tmp_path / "taken", 7, engine=Serial(), progress=False)
    assert grown.members[:12] == zoo.members
    assert len(Zoo.open(tmp_path / "taken")) == 7


def test_the_commands(zoo, tmp_path, capsys):
    places = [str(zoo.folder), str(tmp_path / "shared"), str(tmp_path / "taken")]
    assert cli.main(["zoo", "export", *places[:2]]) == 0
    assert cli.main(["zoo", "import", *places[1:]]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"The zoo {places[0]} is in {places[1]}",
        f"6 networks of the recipe tiny in {places[2]}",
    ]
    assert cli.main(["zoo", "import", *places[1:]]) == 2
    assert "is there already" in capsys.readouterr().err
