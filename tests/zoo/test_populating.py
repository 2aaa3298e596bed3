"""Zoos that are trained: the same bytes by every engine and after kills; refusals."""

import errno
import fcntl
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from coset.engines import Outcome, Process, Serial
from coset.errors import CosetError
from coset.zoo import Zoo, excess_of_mass, pack, populate, read_recipe, verify
from coset.zoo.folder import Folder
from coset.zoo.making import run_seed, train_runs
from coset.zoo.populating import TrainStack
from coset.zoo.recipe import Drop

TINY = read_recipe("tiny")


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "members").iterdir()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Six tiny networks, trained without a break in this process."""
    folder = tmp_path_factory.mktemp("zoo")
    populate(TINY, folder, 6, engine=Serial(), progress=False)
    return folder


def test_a_zoo_has_what_was_asked_for(reference):
    zoo = Zoo.open(reference)
    assert len(zoo) == 6
    assert [(m.number, m.step) for m in zoo.members[:4]] == [(0, 1), (0, None), (1, 1), (1, None)]
    assert len({member.seed for member in zoo.members}) == 6
    assert all(0.7 < member.metrics["accuracy"] <= 1 for member in zoo.members)
    assert not list((reference / "dropped").iterdir())


def test_members_are_what_their_seeds_give(reference):
    """A run of a stack is trained again from the stack's seeds, without any folder."""
    zoo = Zoo.open(reference)
    runs = train_runs(TINY, [run_seed(0, run) for run in range(4)])
    for name, tensor in zoo.weights().items():
        assert torch.equal(tensor[2], runs[2].weights[None][name])
    for name, tensor in zoo.weights(step=1).items():
        assert torch.equal(tensor[2], runs[2].weights[1][name])


def test_worker_processes_write_the_same_bytes(reference, tmp_path):
    populate(TINY, tmp_path / "zoo", 6, engine=Process(workers=1), progress=False)
    assert bytes_of(tmp_path / "zoo") == bytes_of(reference)


def test_a_zoo_grows_to_the_same_bytes(reference, tmp_path):
    populate(TINY, tmp_path, 3, engine=Serial())
    assert len(bytes_of(tmp_path)) == 3
    (tmp_path / "members" / "00000001.safetensors").unlink()
    assert len(populate(TINY, tmp_path, 6, engine=Serial())) == 6
    assert bytes_of(tmp_path) == bytes_of(reference)
    assert len(populate(TINY, tmp_path, 2, engine=Serial())) == 6, "nothing is taken away"


KILLED = """
import sys
from coset.engines import Serial
from coset.zoo import populate, read_recipe
populate(read_recipe("tiny"), sys.argv[1], 6, engine=Serial())
"""


def test_a_killed_zoo_goes_on_to_the_same_bytes(reference, tmp_path):
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("members/0*")):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert len(populate(TINY, tmp_path, 6, engine=Serial())) == 6
    assert bytes_of(tmp_path) == bytes_of(reference)
    assert not [path for path in tmp_path.rglob(".*")], "nothing unfinished is left"


def test_dropped_runs_are_written_down_and_replaced(tmp_path):
    """The bar is set between the accuracies of the first runs, so that some fall."""
    runs = train_runs(TINY, [run_seed(0, run) for run in range(4)])
    first = sorted(run.metrics[1]["accuracy"] for run in runs)
    bar = (first[0] + first[1]) / 2
    zoo = populate(replace(TINY, drop=Drop(bar, 1)), tmp_path, 4, engine=Serial())
    assert len(zoo) == 4
    assert all(m.metrics["accuracy"] >= bar for m in zoo.members if m.step == 1)
    notes = [json.loads(path.read_text()) for path in sorted((tmp_path / "dropped").iterdir())]
    assert notes
    assert f"below {bar:g} after epoch 1" in notes[0]["why"]
    kept = {run_seed(0, run) for run in range(4)} - {note["seed"] for note in notes}
    assert kept < {member.seed for member in zoo.members}
    assert [member.number for member in zoo.members if member.step is None] == [0, 1, 2, 3]


def test_another_recipe_or_seed_in_the_folder_is_refused(reference):
    before = bytes_of(reference)
    other = replace(TINY, name="other", training=replace(TINY.training, epochs=3))
    with pytest.raises(CosetError, match=r"got the recipe other .* needed the recipe tiny"):
        populate(other, reference, 6)
    with pytest.raises(CosetError, match=r"with seed 1 .* with seed 0"):
        populate(TINY, reference, 6, seed=1)
    assert bytes_of(reference) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "mlpp"}, "got the model 'mlpp'"),
        ({"arguments": {"units": 3}}, "arguments of mlp"),
        ({"arguments": {"in_features": 63}}, "which the network cannot read"),
    ],
)
def test_recipes_that_do_not_fit_leave_no_folder(tmp_path, change, words):
    wrong = replace(TINY, architecture=replace(TINY.architecture, **change))
    with pytest.raises(CosetError, match=words):
        populate(wrong, tmp_path / "zoo", 2)
    assert not (tmp_path / "zoo").exists()


class Failing:
    """An engine whose tasks fail."""

    def __init__(self, cause):
        self.cause = cause

    def map(self, task, keys, *, done=None):
        for key in keys:
            yield Outcome(key, failure="its worker was killed", cause=self.cause, attempts=4)


def test_runs_of_which_nothing_came_are_reported_with_recipe_and_seed(tmp_path):
    with pytest.raises(CosetError) as caught:
        populate(TINY, tmp_path, 6, engine=Failing("killed"))
    assert f"run 0 (seed {run_seed(0, 0)})" in str(caught.value)
    assert "of the recipe tiny, and 1 more: its worker was killed" in str(caught.value)


def test_a_task_is_done_when_all_its_runs_are(reference):
    task = TrainStack(TINY, Folder(reference), 0)
    assert task.done((4, 5))
    assert not task.done((5, 6))


def test_networks_of_a_stack_can_begin_as_one(tmp_path):
    """Four steps more than an epoch together: the snapshots of a stack are one network."""
    recipe = replace(TINY, training=replace(TINY.training, together=94, stack=2))
    zoo = populate(recipe, tmp_path / "zoo", 4, engine=Serial(), progress=False)
    after, end = zoo.weights(step=1)["linear1.weight"], zoo.weights()["linear1.weight"]
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[2], after[3])
    assert not torch.equal(after[1], after[2])
    assert not torch.equal(end[0], end[1])
    assert verify(tmp_path / "zoo") == ()
    late = replace(TINY, training=replace(TINY.training, together=10**6))
    with pytest.raises(CosetError, match="got members that part after step 1000000"):
        populate(late, tmp_path / "late", 4, engine=Serial(), progress=False)
    assert not (tmp_path / "late").exists()


def test_a_zoo_has_one_writer_at_a_time(reference, tmp_path):
    shutil.copytree(reference, tmp_path / "zoo")
    with Folder(tmp_path / "zoo").writing():
        with pytest.raises(CosetError, match="which another process trains or packs"):
            populate(TINY, tmp_path / "zoo", 7, engine=Serial())
        with pytest.raises(CosetError, match="which another process trains or packs"):
            pack(tmp_path / "zoo")
        assert len(Zoo.open(tmp_path / "zoo")) == 6, "it can be read meanwhile"
    assert not (tmp_path / "zoo" / ".writer").exists()
    assert len(populate(TINY, tmp_path / "zoo", 6, engine=Serial())) == 6


def test_a_disk_without_locks_is_told_of(reference, tmp_path, monkeypatch):
    shutil.copytree(reference, tmp_path / "zoo")

    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="keeps no locks: see that nothing else trains or packs"):
        populate(TINY, tmp_path / "zoo", 6, engine=Serial())


@pytest.mark.parametrize("together", [0, 10])
def test_beginnings_follow_from_seeds(tmp_path, together):
    """Where steps are too short to change a number, networks end as they began."""
    still = replace(TINY.training, learning_rate=1e-30, weight_decay=0.0, together=together)
    recipe = replace(TINY, training=replace(still, stack=2))
    zoo = populate(recipe, tmp_path / "zoo", 4, engine=Serial(), progress=False)
    ends = zoo.weights([1, 2, 3])
    for name, tensor in zoo.beginnings([1, 2, 3]).items():
        assert torch.equal(tensor, ends[name])
    assert torch.equal(excess_of_mass(zoo, step=0), excess_of_mass(zoo))
