"""A masked target has no say: everything equals what is left when its term is removed.

Networks of 1×1 convolutions see each pixel alone.  Pictures with masked pixels are then the same
problem as a table of the other pixels, which knows nothing of masks.
"""

import math

import pytest
import torch
from torch import nn

import coset
from coset import (
    Bernoulli,
    Categorical,
    CosetError,
    DiagonalOnly,
    Full,
    GaussianNoise,
    HeteroscedasticGaussian,
    Laplace,
    MaximumAPosteriori,
    Problem,
)
from coset.bayes.defaults import count_targets, hessian, hessian_root

pytestmark = pytest.mark.usefixtures("double")

N, C, H, W = 5, 3, 4, 3
VOID = 255


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures_and_mask():
    x = torch.randn(N, 2, H, W, generator=seeded(1))
    masked = torch.rand(N, H, W, generator=seeded(2)) < 0.3
    masked[1] = True  # a whole picture
    return x, masked


def case(name):
    """Likelihood, outputs a pixel, targets with masks, and the same likelihood without."""
    x, masked = pictures_and_mask()
    mean = x.sum(1).sin()
    numbers = mean + 0.3 * torch.randn(N, H, W, generator=seeded(3))
    if name == "classes":
        labels = torch.randint(C, (N, H, W), generator=seeded(4))
        return Categorical(ignore=VOID), C, labels.masked_fill(masked, VOID), Categorical()
    if name == "answers":
        answers = (numbers > 0).double().masked_fill(masked, math.nan)
        return Bernoulli(missing="nan"), 1, answers.unsqueeze(1), Bernoulli()
    holes = numbers.masked_fill(masked, math.nan).unsqueeze(1)
    if name == "noise by input":
        return HeteroscedasticGaussian(missing="nan"), 2, holes, HeteroscedasticGaussian()
    std = None if name == "learnt noise" else 0.3
    return GaussianNoise(std, missing="nan"), 1, holes, GaussianNoise(std)


CASES = ["classes", "answers", "numbers", "learnt noise", "noise by input"]


def networks(outputs):
    """One function of a pixel, for pictures and for a table of pixels."""
    torch.manual_seed(0)
    table = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs))
    pixels = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Tanh(), nn.Conv2d(4, outputs, 1))
    pixels.load_state_dict(
        {k: v.reshape(pixels.state_dict()[k].shape) for k, v in table.state_dict().items()}
    )
    return pixels, table


def both(name):
    """The two problems: network, data and likelihood of each."""
    likelihood, outputs, targets, plain = case(name)
    x, masked = pictures_and_mask()
    pixels, table = networks(outputs)
    seen = ~masked
    rows = x.movedim(1, -1)[seen]
    left = targets[seen] if targets.dim() == 3 else targets.squeeze(1)[seen].unsqueeze(1)
    return (pixels, (x, targets), likelihood), (table, (rows, left), plain)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_what_is_left(name):
    found = []
    for module, (x, y), likelihood in both(name):
        if name == "learnt noise":
            likelihood = likelihood.with_noise(0.3)
        module.zero_grad()
        likelihood.log_prob(module(x), y).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("curvature", [Full(), DiagonalOnly()], ids=["full", "diagonal"])
@pytest.mark.parametrize("name", CASES)
def test_evidence_curvature_and_noise_are_those_of_what_is_left(name, curvature):
    new = torch.randn(6, 2, 1, 1, generator=seeded(5))
    fits = []
    for module, data, likelihood in both(name):
        method = Laplace(curvature=curvature)
        fits.append(coset.fit(module, data, method=method, likelihood=likelihood, progress=False))
    masked, left = fits
    assert masked.log_evidence == pytest.approx(left.log_evidence, rel=1e-10)
    one, other = masked(new), left(new.flatten(1))
    torch.testing.assert_close(one.mean.flatten(1), other.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(one.variance.flatten(1), other.variance, rtol=1e-8, atol=1e-10)
    if name == "learnt noise":
        assert masked.likelihood.std == pytest.approx(left.likelihood.std, rel=1e-9)
        assert masked.likelihood.missing == "nan"


@pytest.mark.parametrize("name", CASES)
def test_masked_places_have_no_hessian_and_are_not_counted(name):
    likelihood, outputs, targets, _ = case(name)
    if name == "learnt noise":
        likelihood = likelihood.with_noise(0.3)
    _, masked = pictures_and_mask()
    f = torch.randn(N, outputs, H, W, generator=seeded(6))
    for verb in (hessian, hessian_root):
        found = verb(likelihood, f, targets)
        assert not found[masked].any()
        assert found[~masked].any(-1).any(-1).all()
    assert count_targets(likelihood, f, targets) == outputs * int((~masked).sum())


def convolutions(outputs):
    """A network that sees neighbours, too."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, outputs, 1))


def trained(likelihood, outputs, targets):
    x, _ = pictures_and_mask()
    fitted = coset.fit(
        *(convolutions(outputs), (x, targets)),
        method=MaximumAPosteriori(epochs=3, batch_size=2),
        likelihood=likelihood,
        generator=seeded(),
        progress=False,
    )
    return fitted.posterior.sample(1, generator=seeded())


def test_training_learns_nothing_from_the_label_to_ignore():
    likelihood, outputs, targets, _ = case("classes")
    other = targets.masked_fill(targets == VOID, -1)
    first = trained(likelihood, outputs, targets)
    again = trained(Categorical(ignore=-1), outputs, other)
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("name", ["answers", "numbers", "noise by input"])
def test_training_passes_missing_numbers_by(name):
    likelihood, outputs, targets, _ = case(name)
    weights = trained(likelihood, outputs, targets)
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


@pytest.mark.parametrize(
    ("likelihood", "word"),
    [
        (Categorical(), r"Categorical\(ignore=255\)"),
        (Bernoulli(), r"Bernoulli\(missing='nan'\)"),
        (GaussianNoise(0.3), r"GaussianNoise\(missing='nan'\)"),
        (HeteroscedasticGaussian(), r"HeteroscedasticGaussian\(missing='nan'\)"),
    ],
)
def test_the_default_refuses_and_names_the_option(likelihood, word):
    name = {"Categorical": "classes", "Bernoulli": "answers"}.get(type(likelihood).__name__)
    outputs = {"classes": C, "answers": 1}.get(name, 2 if "Hetero" in word else 1)
    targets = case(name or "numbers")[2]
    with pytest.raises(CosetError, match=word):
        likelihood.check(torch.zeros(N, outputs, H, W), targets)


@pytest.mark.parametrize("name", ["classes", "answers", "numbers", "noise by input"])
def test_data_without_any_target_are_refused(name):
    likelihood, outputs, targets, _ = case(name)
    nothing = torch.full_like(targets, VOID if name == "classes" else math.nan)
    x, _ = pictures_and_mask()
    with pytest.raises(CosetError, match="no target counts"):
        Problem.of(nn.Conv2d(2, outputs, 1), (x, nothing), likelihood=likelihood)


def test_strange_settings_are_refused():
    with pytest.raises(CosetError, match=r"ignore=1\.5"):
        Categorical(ignore=1.5)
    for kind in (Bernoulli, GaussianNoise, HeteroscedasticGaussian):
        with pytest.raises(CosetError, match="missing='drop'"):
            kind(missing="drop")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda y: y[:, :2], "resize labels by their nearest neighbours"),  # another size
        (lambda y: y.unsqueeze(1), r"use targets\[:, 0\]"),
        (lambda y: y.unsqueeze(-1).expand(-1, -1, -1, 3), "palette"),
        (lambda y: y.unsqueeze(1).repeat(1, 3, 1, 1)[:, :, :, :2], "GaussianNoise"),
        (lambda y: torch.nn.functional.one_hot(y, C).movedim(-1, 1), r"targets.argmax\(1\)"),
        (lambda y: y.double(), r"targets.long\(\)"),
        (lambda y: y + 0.5, "not all whole.*nearest neighbours, not by interpolation"),
    ],
)
def test_labels_in_another_form_are_refused_with_what_to_do(change, says):
    labels = torch.randint(C, (N, H, W), generator=seeded(4))
    with pytest.raises(CosetError, match=says):
        Categorical().check(torch.zeros(N, C, H, W), change(labels))


def test_labels_as_three_colours_in_front():
    colours = torch.zeros(N, 3, H, W, dtype=torch.long)
    with pytest.raises(CosetError, match="palette"):
        Categorical().check(torch.zeros(N, C + 1, H, W), colours)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x.movedim(1, -1), r"inputs.movedim\(-1, 1\)"),
        (lambda x: (255 * x).byte(), r"inputs.float\(\) / 255"),
    ],
)
def test_pictures_in_another_form_are_refused_with_what_to_do(change, says):
    labels = torch.randint(C, (N, 6, 6), generator=seeded(4))
    method = MaximumAPosteriori(epochs=1)
    first = torch.rand(N, 3, 6, 6, generator=seeded(5))
    pictures = change(first)
    with pytest.raises(CosetError, match=says):
        coset.fit(nn.Conv2d(3, C, 1), (pictures, labels), method=method)
    predictor = coset.fit(nn.Conv2d(3, C, 1), (first, labels), method=method)
    with pytest.raises(CosetError, match=says):
        predictor(pictures)


def test_calibration_and_outliers_of_another_size_are_refused():
    labels = torch.randint(C, (N, H, W), generator=seeded(4))
    pictures = torch.rand(N, 3, H, W)
    likelihood = Categorical(ignore=VOID)
    method = MaximumAPosteriori(epochs=1)
    predictor = coset.fit(
        nn.Conv2d(3, C, 1), (pictures, labels), method=method, likelihood=likelihood
    )
    with pytest.raises(CosetError, match="no target counts"):
        predictor.calibrated((pictures, torch.full_like(labels, VOID)))
    with pytest.raises(CosetError, match="no target that counts"):
        coset.evaluate(predictor, (pictures, torch.full_like(labels, VOID)))
    with pytest.raises(CosetError, match="the mask has the size of the pictures"):
        coset.evaluate(predictor, (pictures, labels), outliers=(pictures, labels[:, :2] > 1))
