"""What tells runs apart is the same in every process and differs wherever a run would."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from coset import CosetError, GaussianNoise, MultivariateNoise
from coset.bayes import GaussianPrior, as_batches
from coset.inference.run_fingerprint import described, fingerprint_of, require_same
from coset.weights import functionalise, stack
from problems import logistic


class Plain(nn.Module):
    """Prints the same whatever it computes."""

    def __init__(self, function, hidden=5):
        super().__init__()
        self.first, self.last = nn.Linear(2, hidden), nn.Linear(hidden, 2)
        self.function = function

    def forward(self, inputs):
        return self.last(self.function(self.first(inputs)))


class Drawing(nn.Module):
    """Draws in evaluation too."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, inputs):
        return self.inner(inputs + torch.randn_like(inputs))


def problem_of(module):
    return replace(logistic(), network=functionalise(module.double()))


def fingerprint(problem):
    """As they are read from a file."""
    return json.loads(json.dumps(fingerprint_of(problem, stack([problem.network.weights]))))


def seeded_module(build, *arguments):
    torch.manual_seed(0)
    return build(*arguments)


def sequential(between):
    return nn.Sequential(nn.Linear(2, 5), between, nn.Linear(5, 2))


def frozen(module):
    module[0].requires_grad_(False)
    return module


def changed(size):
    """A large tensor with another number in its middle, where torch's print leaves it out."""
    tensor = torch.ones(size)
    tensor[size // 2] = 2.0
    return tensor


LARGE, ODD = torch.ones(3000), changed(3000)
OTHERS = {
    "activation": (
        problem_of(seeded_module(sequential, nn.Tanh())),
        problem_of(seeded_module(sequential, nn.ReLU())),
        r"network\[2\] '  \(1\): Tanh\(\)'.*needed network\[2\] '  \(1\): ReLU\(\)'; give",
    ),
    "dropout": (
        problem_of(seeded_module(sequential, nn.Dropout(0.1))),
        problem_of(seeded_module(sequential, nn.Dropout(0.2))),
        r"Dropout\(p=0\.1.*Dropout\(p=0\.2",
    ),
    "frozen": (
        problem_of(seeded_module(sequential, nn.Tanh())),
        problem_of(frozen(seeded_module(sequential, nn.Tanh()))),
        r"parameters \['0\.weight', .*needed parameters \['2\.weight', '2\.bias'\]; give",
    ),
    "forward": (
        problem_of(seeded_module(Plain, torch.tanh)),
        problem_of(seeded_module(Plain, torch.sin)),
        "record of a run with outputs",
    ),
    "precisions": (
        replace(logistic(), prior=GaussianPrior({"weight": LARGE, "bias": 1.0})),
        replace(logistic(), prior=GaussianPrior({"weight": ODD, "bias": 1.0})),
        r"record of a run with prior\.precision\.weight '\(3000,\) ",
    ),
    "noise": (
        replace(logistic(), likelihood=GaussianNoise(LARGE)),
        replace(logistic(), likelihood=GaussianNoise(ODD)),
        r"record of a run with likelihood\.std",
    ),
    "noise covariance": (
        replace(logistic(), likelihood=MultivariateNoise(torch.diag(LARGE[:50]))),
        replace(logistic(), likelihood=MultivariateNoise(torch.diag(changed(50)))),
        r"record of a run with likelihood\.covariance",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_problem_has_another_fingerprint(name):
    first, second, message = OTHERS[name]
    require_same(Path("here"), fingerprint(first), fingerprint(first))
    if name in ("precisions", "noise", "noise covariance"):  # the same linear network
        second = replace(second, network=first.network)
    with pytest.raises(CosetError, match=message):
        require_same(Path("here"), fingerprint(first), fingerprint(second))


def test_rounding_of_another_machine_is_forgiven():
    found = fingerprint(problem_of(seeded_module(Plain, torch.tanh)))
    near = [value * (1 + 1e-5) for value in found["outputs"]["about"]]
    require_same(Path("here"), {**found, "outputs": {"about": near}}, found)
    far = [value * 1.01 for value in found["outputs"]["about"]]
    with pytest.raises(CosetError, match="with outputs"):
        require_same(Path("here"), {**found, "outputs": {"about": far}}, found)


class Rows(torch.utils.data.Dataset):
    """A user's own data set, read example by example."""

    def __init__(self, inputs, noise=0.0):
        self.inputs, self.noise = inputs, noise

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        row = self.inputs[index]
        return row + self.noise * torch.randn_like(row), index % 2


LOGISTIC = logistic()


def from_rows(inputs, **options):
    return replace(LOGISTIC, train=as_batches(Rows(inputs, **options)))


def test_networks_and_data_sets_that_draw_are_recognised():
    inputs = torch.randn(6, 2, dtype=torch.float64)
    for problem in (
        problem_of(seeded_module(Drawing)),
        from_rows(inputs, noise=1.0),
        from_rows(inputs),
    ):
        state = torch.get_rng_state()
        require_same(Path("here"), fingerprint(problem), fingerprint(problem))
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("row", [0, 3, 6])
def test_the_first_the_middle_and_the_last_example_of_a_data_set_are_remembered(row):
    inputs = torch.randn(7, 2, dtype=torch.float64)
    other = inputs.clone()
    other[row, 1] += 1e-6
    known = fingerprint(from_rows(inputs))
    require_same(Path("here"), known, fingerprint(from_rows(inputs.clone())))
    with pytest.raises(CosetError, match="record of a run with data '7 examples "):
        require_same(Path("here"), known, fingerprint(from_rows(other)))


def test_of_a_data_set_that_draws_the_record_says_that_it_is_not_remembered():
    inputs = torch.randn(7, 2, dtype=torch.float64)
    known = fingerprint(from_rows(inputs, noise=1.0))
    assert known["data"] == "7 examples of random content, which is not remembered"
    require_same(Path("here"), known, fingerprint(from_rows(inputs + 1, noise=1.0)))
    with pytest.raises(CosetError, match=r"record of a run with data '7 .*needed data '8 "):
        require_same(
            Path("here"), known, fingerprint(from_rows(torch.cat([inputs, inputs[:1]]), noise=1.0))
        )


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, inputs):
        self.inputs = inputs

    def __iter__(self):
        return ((row, index % 2) for index, row in enumerate(self.inputs))


def test_a_stream_is_in_memory_and_remembered_as_a_whole():
    inputs = torch.randn(7, 2, dtype=torch.float64)
    other = inputs.clone()
    other[4, 1] += 1e-6
    known, again, changed = (
        fingerprint(replace(LOGISTIC, train=as_batches(Stream(rows))))
        for rows in (inputs, inputs.clone(), other)
    )
    require_same(Path("here"), known, again)
    with pytest.raises(CosetError, match="record of a run with data '7 examples "):
        require_same(Path("here"), known, changed)


class Shaped(nn.Module):
    """Prints where its function lies in memory."""

    def __init__(self, function):
        super().__init__()
        self.function = lambda inputs: function(inputs)

    def extra_repr(self):
        return repr(self.function)

    def forward(self, inputs):
        return self.function(inputs)


def shaped():
    return problem_of(seeded_module(Plain, Shaped(torch.tanh)))


SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)  # as here: it is part of the fingerprint
sys.path[:0] = {paths!r}
import test_run_fingerprint as here
print(json.dumps(here.fingerprint(here.shaped())))
"""


def test_another_process_has_the_same_fingerprint():
    here = Path(__file__).parent
    script = SCRIPT.format(paths=[str(here), str(here.parent)])
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout
    assert json.loads(told) == fingerprint(shaped())


def test_settings_that_are_no_dataclasses_are_told_apart():
    class Schedule:
        def __init__(self, rate):
            self.rate = rate

    told = r"schedule\.rate 0\.5; needed schedule\.rate 0\.25;"
    with pytest.raises(CosetError, match=told):
        require_same(
            Path("here"),
            {"schedule": described(Schedule(0.5))},
            {"schedule": described(Schedule(0.25))},
        )


def test_only_what_differs_is_told():
    @dataclass(frozen=True)
    class Settings:
        first: str = "x" * 200
        draws: int = 20
        at: tuple[float, ...] = (0.5, 0.75)

    known = {"method": described(Settings()), "seed": 3, "step": 7}
    with pytest.raises(CosetError) as caught:
        require_same(Path("here"), known, {"method": described(Settings(draws=21)), "seed": 3})
    assert "with method.draws 20; needed method.draws 21;" in str(caught.value)
    other = {"method": described(Settings(first="x" * 199 + "y", at=(0.5, 0.8))), "seed": 4}
    with pytest.raises(CosetError) as caught:
        require_same(Path("here"), known, other)
    told = str(caught.value)
    assert "method.at[1] 0.75, method.first …xx" in told
    assert "xy'" in told
    assert "seed 3; needed" in told
    assert len(told) < 500
