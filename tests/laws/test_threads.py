"""Threads of one process do not change each other's results.

What can be shown without a race is shown without one: a fit is run while torch's own generator is
moved before every single operation, as the worst of all threads could.  The rest are races.  A
fault that shows in one fit of five stays unseen in all 32 fits of a method (four threads, eight
fits each) with a probability of 0.8^32 = 0.0008.
"""

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

import coset
from coset import GaussianNoise, Laplace, Linearised, MonteCarlo
from methods import LAPLACES, METHODS

ALL = {**METHODS, **LAPLACES}
FAMILIES = (
    "map",
    "ensemble",
    "dropout",
    "mean field",
    "SWAG",
    "SGHMC",
    "SGLD",
    "HMC",
    "NUTS",
    "multi-SWAG",
    "rebased",
    "KFAC",
    "full",
    "last layer",
    "matrix-free",
)
THREADS, FITS = 4, 8


class Noise(nn.Module):
    """Draws by itself while it trains."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.read, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.layer(self.read(x.unsqueeze(2))).mean(1))


class Flipped(Dataset):
    """Augmentation: examples are turned around at random."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index] * torch.randn(()).sign(), self.targets[index]


def data():
    inputs = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def network(noisy=True):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 2)]
    return nn.Sequential(*layers[:1], Noise(), *layers[1:]) if noisy else nn.Sequential(*layers)


def numbers(method, module, seed=0, train=None):
    """All that a fit and its predictions say."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = data()
    predictor = coset.fit(module, train or (inputs, targets), method=method, generator=generator)
    predictions = predictor(inputs)
    report = predictor.posterior.report
    return (
        predictions.members,
        predictions.mean,
        torch.tensor([*report.diagnostics.values()], dtype=torch.float64),
        torch.tensor(float("nan") if report.log_evidence is None else report.log_evidence),
    )


def same(one, other):
    return all(
        torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in zip(one, other, strict=True)
    )


class Meddling(TorchDispatchMode):
    """Moves torch's own generator before every operation, or only looks on."""

    def __init__(self, *, moves):
        super().__init__()
        self.moves = moves

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.moves:
            torch.default_generator.seed()
        return func(*args, **(kwargs or {}))


def check_meddling(name, train=None):
    module = network()
    found = []
    for moves in (False, True):  # both in a mode: under one, torch rounds otherwise
        with torch.random.fork_rng(devices=[]), Meddling(moves=moves):
            found.append(numbers(ALL[name], module, train=train))
    assert same(*found)


@pytest.mark.parametrize("name", ["map", "dropout", "mean field", "SWAG", "SGHMC", "HMC", "KFAC"])
def test_who_else_draws_from_torchs_generator_changes_no_fit(name):
    check_meddling(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_who_else_draws_from_torchs_generator_changes_no_fit_of_any_method(name):
    check_meddling(name)


@pytest.mark.filterwarnings("ignore")  # data that change, which is told elsewhere
@pytest.mark.parametrize("name", ["map", "SGHMC"])
def test_who_else_draws_changes_no_augmentation(name):
    check_meddling(name, Flipped(*data()))


@contextmanager
def switching_often():
    """Threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(work):
    """What each of four threads found, which begin together."""
    start = threading.Barrier(THREADS)

    def begin(number):
        start.wait()
        return work(number)

    with switching_often(), ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def check_fits(name, fits, noisy):
    """Each thread has its own copy of the network, its own generator and its own result."""
    module, method = network(noisy), ALL[name]
    alone = [numbers(method, copy.deepcopy(module), seed) for seed in range(THREADS)]

    def work(seed):
        own = copy.deepcopy(module)
        return [same(numbers(method, own, seed), alone[seed]) for _ in range(fits)]

    assert all(all(found) for found in in_threads(work))


@pytest.mark.parametrize("name", ["map", "mean field", "full"])
def test_some_fits_in_threads_are_those_alone(name):
    check_fits(name, 2, noisy=True)


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_fits_in_threads_are_those_alone(name, noisy):
    check_fits(name, FITS, noisy)


@contextmanager
def meanwhile(work):
    """Another thread works again and again; its errors are raised in the end."""
    stop, errors = threading.Event(), []

    def again():
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=again)
    other.start()
    try:
        with switching_often():
            yield
    finally:
        stop.set()
        other.join()
    assert not errors, errors


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap in fused attention
@pytest.mark.parametrize("rule", [Linearised(), MonteCarlo(8)], ids=["linearised", "by draws"])
def test_predictions_in_threads_and_while_another_network_is_fitted(rule):
    """The fit differentiates attention both ways, and its network draws."""
    torch.manual_seed(0)
    inputs, targets = data()
    module, busy = Attention(), network()
    predictor = coset.fit(module, (inputs, targets), method=ALL["full"])
    alone = predictor(inputs, rule=rule)

    def serve(_):
        found = [predictor(inputs, rule=rule) for _ in range(4)]
        return all(torch.equal(each.members, alone.members) for each in found)

    fitted = numbers(ALL["full"], busy)

    def fit():
        assert same(numbers(ALL["full"], busy), fitted)

    with meanwhile(fit):
        assert all(in_threads(serve))
    assert torch.backends.mha.get_fastpath_enabled()


def test_several_threads_share_a_predictor_whose_network_draws():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x) + torch.randn(2)

    torch.manual_seed(0)
    predictor = coset.fit(Drawing(), data(), method=ALL["ensemble"])
    inputs, _ = data()

    def serve(seed):
        generator = torch.Generator().manual_seed(seed)
        return [predictor(inputs, generator=generator).mean for _ in range(10)]

    alone = [serve(seed) for seed in range(THREADS)]
    found = in_threads(serve)
    for one, other in zip(alone, found, strict=True):
        assert all(map(torch.equal, one, other))
    assert not torch.equal(alone[0][0], alone[0][1])


@pytest.mark.parametrize("name", ["HMC", "SGHMC", "SWAG", "rebased"])
def test_modules_of_other_threads_run_as_ever(name):
    before = (nn.Module.__call__, nn.Module.__getattr__)
    other = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs = torch.ones(5, 3)
    expected = other(inputs)

    def run():
        assert torch.equal(other(inputs), expected)

    with meanwhile(run):
        numbers(ALL[name], network())
    assert (nn.Module.__call__, nn.Module.__getattr__) == before


def test_symmetries_are_found_in_several_threads_at_once(capsys):
    """Tracers change the class of all modules: the threads wait for each other."""
    before = (nn.Module.__call__, nn.Module.__getattr__)

    def find(number):
        width = 40 + number  # another architecture each, so that nothing is remembered
        module = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
        return coset.discover(module, torch.ones(4, 3)).log_order()

    with meanwhile(lambda: print("said", file=sys.stderr)):
        found = in_threads(find)
    expected = [torch.lgamma(torch.tensor(41.0 + n)).item() for n in range(THREADS)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert (nn.Module.__call__, nn.Module.__getattr__) == before
    assert "said" in capsys.readouterr().err  # while another thread traces, this one is heard


def test_noise_learnt_in_threads_is_that_alone():
    inputs, _ = data()
    train = (inputs, inputs[:, :1])
    torch.manual_seed(0)
    module = nn.Linear(3, 1)

    def work(_):
        predictor = coset.fit(module, train, method=Laplace(), likelihood=GaussianNoise())
        return predictor.likelihood.std, predictor.log_evidence

    alone = work(0)
    assert in_threads(work) == [alone] * THREADS
