"""Every method on networks of several inputs.

The same network that takes one tensor, with the inputs side by side, has the same posterior; and
whole numbers may stand beside others.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import coset
from coset import (
    SGLD,
    ByEvidence,
    Checkpoint,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    Laplace,
    Learnt,
    Linearised,
    MatrixFree,
    MaximumAPosteriori,
    MonteCarlo,
    MultivariateNoise,
    SampledSoftmax,
    StochasticDescent,
)
from coset.posterior.gaussian import Gaussian
from methods import BASE, LAPLACES, METHODS

EVERY = METHODS | LAPLACES


class Comparison(nn.Module):
    """Two inputs of different shapes: rows of two numbers, and of three by one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(3, 4)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(4, 2)

    def forward(self, left, right):
        hidden = torch.tanh(self.first(left) + self.second(right.flatten(1)))
        return self.last(self.dropout(hidden))


class SideBySide(Comparison):
    def forward(self, both):
        return super().forward(both[:, :2], both[:, 2:].unsqueeze(2))


class Sentences(nn.Module):
    """Words, which of them count, and some numbers besides."""

    def __init__(self):
        super().__init__()
        self.words, self.numbers = nn.Embedding(7, 3), nn.Linear(2, 3)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(3, 2)

    def forward(self, ids, mask, numbers):
        mean = (self.words(ids) * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
        return self.last(self.dropout(torch.tanh(mean + self.numbers(numbers))))


def comparisons(rows=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    right = torch.randn(rows, 3, 1, generator=generator, dtype=torch.float64)
    return (left, right), (left[:, 0] > right[:, 0, 0]).long()


def sentences(rows=24):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(7, (rows, 4), generator=generator)
    mask = torch.ones(rows, 4)
    mask[::2, 2:] = 0
    numbers = torch.randn(rows, 2, generator=generator)
    return (ids, mask, numbers), (numbers[:, 0] > 0).long()


def joined(inputs):
    left, right = inputs
    return torch.cat([left, right.flatten(1)], dim=1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fitted(build, data, method, **settings):
    torch.manual_seed(0)
    return coset.fit(build().double(), data, method=method, generator=seeded(), **settings)


def assert_equal_fits(two, one, inputs):
    """Draws, predictions and evidence, up to the rounding of products in another order."""
    close = {"rtol": 1e-6, "atol": 1e-8}
    draws = [predictor.posterior.sample(3, generator=seeded(1)) for predictor in (two, one)]
    for name, tensor in draws[0].items():
        torch.testing.assert_close(tensor, draws[1][name], **close)
    found, wanted = two(inputs), one(joined(inputs))
    torch.testing.assert_close(found.members, wanted.members, **close)
    torch.testing.assert_close(found.mean, wanted.mean, **close)
    if wanted.variance is not None:
        torch.testing.assert_close(found.variance, wanted.variance, **close)
    if one.log_evidence is None:
        assert two.log_evidence is None
    else:
        assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_two_inputs_are_one_with_both_side_by_side(name):
    inputs, targets = comparisons()
    two = fitted(Comparison, (inputs, targets), EVERY[name])
    one = fitted(SideBySide, (joined(inputs), targets), EVERY[name])
    assert_equal_fits(two, one, inputs)


class Normalised(Comparison):
    """Batch norms, whose statistics some methods measure again."""

    def __init__(self):
        super().__init__()
        self.second = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


class NormalisedSideBySide(Normalised):
    def forward(self, both):
        return super().forward(both[:, :2], both[:, 2:].unsqueeze(2))


class Stubborn(Comparison):
    """Looks at its numbers, which ``vmap`` cannot follow: members go one by one."""

    def forward(self, left, right):
        return super().forward(left, right if float(right.sum()) < 1e9 else -right)


class StubbornSideBySide(Stubborn):
    def forward(self, both):
        return super().forward(both[:, :2], both[:, 2:].unsqueeze(2))


KINDS = {
    "normalised": (Normalised, NormalisedSideBySide),
    "stubborn": (Stubborn, StubbornSideBySide),
}
SOME = ["ensemble", "dropout", "multi-mean-field", "multi-SWAG", "SGHMC", "HMC", "full"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SOME)
def test_so_it_is_for_other_networks(name, kind):
    inputs, targets = comparisons()
    two, one = KINDS[kind]
    assert_equal_fits(
        fitted(two, (inputs, targets), EVERY[name]),
        fitted(one, (joined(inputs), targets), EVERY[name]),
        inputs,
    )


class Pictures(nn.Module):
    """A label a pixel, from a picture and a number."""

    def __init__(self):
        super().__init__()
        self.picture, self.number = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(1, 2)

    def forward(self, picture, number):
        return self.picture(picture) + self.number(number)[..., None, None]


class PicturesSideBySide(Pictures):
    def forward(self, both):
        return super().forward(both[:, :, 1:], both[:, 0, 0, :1])


RULES = {
    "closed form": Linearised(),
    "softmax": Linearised(SampledSoftmax(5)),
    "samples": Linearised(samples=8),
    "Monte Carlo": MonteCarlo(4),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["KFAC", "diagonal", "subnetwork"])
def test_pixels_by_every_rule(name, rule):
    generator = seeded(3)
    picture = torch.randn(5, 1, 3, 4, generator=generator, dtype=torch.float64)
    number = torch.randn(5, 1, generator=generator, dtype=torch.float64)
    targets = torch.randint(2, (5, 3, 4), generator=generator)
    row = number[:, :, None, None].expand(5, 1, 1, 4)
    both = torch.cat([row, picture], dim=2)
    two = fitted(Pictures, ((picture, number), targets), LAPLACES[name])
    one = fitted(PicturesSideBySide, (both, targets), LAPLACES[name])
    found = two((picture, number), rule=RULES[rule], generator=seeded(4))
    wanted = one(both, rule=RULES[rule], generator=seeded(4))
    torch.testing.assert_close(found.mean, wanted.mean)
    torch.testing.assert_close(found.members, wanted.members)


@pytest.mark.parametrize("noise", [GaussianNoise(), MultivariateNoise()])
def test_learnt_noise_of_two_inputs_is_that_of_one(noise):
    inputs, _ = comparisons()
    targets = torch.stack([inputs[0][:, 0], inputs[1][:, 1, 0]], dim=1) + 0.1
    method = LAPLACES["KFAC"]
    two = fitted(Comparison, (inputs, targets), method, likelihood=noise)
    one = fitted(SideBySide, (joined(inputs), targets), method, likelihood=noise)
    assert_equal_fits(two, one, inputs)


@pytest.mark.parametrize("name", EVERY)
def test_whole_numbers_may_stand_beside_others(name, tmp_path):
    inputs, targets = sentences()
    predictor = coset.fit(Sentences(), (inputs, targets), method=EVERY[name])
    found = predictor(inputs)
    assert found.mean.shape == (24, 2)
    assert found.mean.isfinite().all()
    predictor.save(tmp_path / "posterior.safetensors")
    again = coset.load(tmp_path / "posterior.safetensors", Sentences())
    assert torch.equal(again(inputs).members, found.members)


@pytest.mark.parametrize("name", LAPLACES)
def test_whole_numbers_may_be_short(name):
    (ids, *others), targets = sentences()
    torch.manual_seed(0)
    module = Sentences()
    long, short = (
        coset.fit(module, ((kind, *others), targets), method=LAPLACES[name])
        for kind in (ids, ids.int())
    )
    assert short.log_evidence == long.log_evidence
    found = short((ids.int(), *others))
    assert torch.equal(found.members, long((ids, *others)).members)


GAUSSIAN = [name for name in LAPLACES if name not in ("matrix-free", "KFAC of random columns")]


@pytest.mark.parametrize("name", GAUSSIAN)
def test_joint_and_updated_predictions_of_two_inputs_are_those_of_one(name):
    inputs, targets = comparisons()
    more, labels = comparisons(rows=6, seed=1)
    two = fitted(Comparison, (inputs, targets), LAPLACES[name])
    one = fitted(SideBySide, (joined(inputs), targets), LAPLACES[name])
    assert isinstance(two.posterior, Gaussian)
    found, wanted = two.joint(more), one.joint(joined(more))
    torch.testing.assert_close(found.mean, wanted.mean)
    torch.testing.assert_close(found.covariance, wanted.covariance)
    assert_equal_fits(two.update((more, labels)), one.update((joined(more), labels)), more)


SETTINGS = {
    "validation": lambda data: MaximumAPosteriori(epochs=6, validation=data, patience=2),
    "validation of members": lambda data: DeepEnsemble(
        2, MaximumAPosteriori(epochs=6, validation=data, patience=2)
    ),
    "learnt precisions": lambda data: MaximumAPosteriori(
        epochs=6, precision=Learnt(every=2, after=2)
    ),
    "evidence and validation": lambda data: Laplace(tuning=ByEvidence(validation=data)),
    "evidence of layers": lambda data: Laplace(tuning=ByEvidence(groups="layer")),
    "matrix-free descent": lambda data: Laplace(MatrixFree(solver=StochasticDescent())),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_mean_the_same_with_two_inputs(name):
    inputs, targets = comparisons()
    held, labels = comparisons(rows=8, seed=1)
    two = fitted(Comparison, (inputs, targets), SETTINGS[name]((held, labels)))
    one = fitted(SideBySide, (joined(inputs), targets), SETTINGS[name]((joined(held), labels)))
    assert_equal_fits(two, one, inputs)


class Killed(Exception):
    pass


RESUMED = {
    "training": lambda folder: DeepEnsemble(
        2, MaximumAPosteriori(epochs=4, batch_size=8), checkpoint=Checkpoint(folder, every=3)
    ),
    "sampling": lambda folder: SGLD(
        burn_in=6, draws=3, thinning=2, chains=2, checkpoint=Checkpoint(folder, every=3)
    ),
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("stored", [True, False], ids=["tensors", "data set"])
def test_a_run_on_several_inputs_is_taken_up_again(name, stored, tmp_path, monkeypatch):
    monkeypatch.setattr("coset.inference.sampling.chains._SECONDS_BETWEEN_REPORTS", 0.0)

    def kill(done, line):
        if done > 0.5:
            raise Killed

    inputs, targets = sentences()
    data = (inputs, targets) if stored else Examples(inputs, targets)
    whole, method = RESUMED[name](tmp_path / "whole"), RESUMED[name](tmp_path / "run")
    wanted = coset.fit(Sentences(), data, method=whole)(inputs).members
    with pytest.raises(Killed):
        coset.fit(Sentences(), data, method=method, progress=kill)
    assert torch.equal(coset.fit(Sentences(), data, method=method)(inputs).members, wanted)
    if stored:
        other = (inputs[0], 1 - inputs[1], inputs[2]), targets
        with pytest.raises(CosetError, match="record of a run with data"):
            coset.fit(Sentences(), other, method=method)


class Examples(Dataset):
    """Examples of four parts, three of which are inputs."""

    def __init__(self, inputs, targets):
        self.parts = (*inputs, targets)

    def __len__(self):
        return len(self.parts[-1])

    def __getitem__(self, index):
        return tuple(part[index] for part in self.parts)


FORMS = {
    "tensor set": lambda inputs, targets: TensorDataset(*inputs, targets),
    "data set": Examples,
    "loader": lambda inputs, targets: DataLoader(Examples(inputs, targets), batch_size=9),
    "arrays": lambda inputs, targets: (tuple(x.numpy() for x in inputs), targets.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["ensemble", "SGLD", "HMC", "mean field"])
def test_every_form_of_the_data_gives_the_same_fit(name, form):
    inputs, targets = sentences()
    wanted = coset.fit(Sentences(), (inputs, targets), method=EVERY[name])
    found = coset.fit(Sentences(), FORMS[form](inputs, targets), method=EVERY[name])
    torch.testing.assert_close(found(inputs).members, wanted(inputs).members)


@pytest.mark.parametrize("form", FORMS)
def test_metrics_of_two_inputs_are_those_of_one(form):
    inputs, targets = comparisons()
    strange, labels = comparisons(seed=1)
    two = fitted(Comparison, (inputs, targets), EVERY["ensemble"])
    one = fitted(SideBySide, (joined(inputs), targets), EVERY["ensemble"])
    wanted = coset.evaluate(one, (joined(inputs), targets), outliers=joined(strange))
    test = FORMS[form](inputs, targets)
    for outliers in (strange,), (strange, labels), TensorDataset(*strange, labels):
        assert coset.evaluate(two, test, outliers=outliers) == pytest.approx(wanted, rel=1e-6)


def test_the_input_that_is_not_finite_is_named():
    inputs, targets = sentences()
    inputs[2][7, 1] = torch.nan
    with pytest.raises(CosetError, match="not finite, in example 7 of tensor 3 of 3"):
        coset.fit(Sentences(), (inputs, targets), method=BASE)


MISSING = {
    "one": lambda inputs: inputs[0],
    "two": lambda inputs: inputs[:2],
    "one too many": lambda inputs: (*inputs, inputs[0]),
    "another order": lambda inputs: inputs[::-1],
}


@pytest.mark.parametrize("missing", MISSING)
def test_inputs_that_are_missing_are_named(missing):
    inputs, targets = sentences()
    given = MISSING[missing](inputs)
    with pytest.raises(CosetError, match="which the network cannot read"):
        coset.fit(Sentences(), (given, targets), method=BASE)
    for predictor in (coset.fit(Sentences(), (inputs, targets), method=m) for m in (BASE, None)):
        with pytest.raises(CosetError, match="the network refused them"):
            predictor(given)
    with pytest.raises(CosetError, match="the network refused them"):
        predictor.joint(given)


def test_gradients_in_each_of_two_inputs():
    inputs, targets = comparisons()
    two = fitted(Comparison, (inputs, targets), LAPLACES["full"])
    one = fitted(SideBySide, (joined(inputs), targets), LAPLACES["full"])
    left, right = (part.clone().requires_grad_() for part in inputs)
    both = joined(inputs).requires_grad_()
    two((left, right)).mean[:, 0].sum().backward()
    one(both).mean[:, 0].sum().backward()
    assert float(both.grad.abs().max()) > 1e-3
    torch.testing.assert_close(joined((left.grad, right.grad)), both.grad)


def test_rows_of_predictions_are_checked():
    inputs, targets = sentences()
    predictor = coset.fit(Sentences(), (inputs, targets), method=BASE)
    with pytest.raises(CosetError, match="needed the same number of rows"):
        predictor((inputs[0], inputs[1][:5], inputs[2]))
    with pytest.raises(CosetError, match="got an empty tuple as inputs"):
        predictor(())
