"""Tiles are the whole picture, to rounding; networks that look further are told."""

from dataclasses import replace

import pytest
import torch

from coset import (
    SWAG,
    Categorical,
    CosetError,
    GaussianNoise,
    Laplace,
    LastLayer,
    Linearised,
    MaximumAPosteriori,
    MonteCarlo,
    Tiled,
    fit,
    load,
)
from coset.models import dilated, mlp, unet
from coset.posterior.calibrated import Calibrated, Conformal
from coset.posterior.tiles import reach, require_room, tried_margin
from coset.weights.network import functionalise

WIDTHS = {"in_channels": 3, "classes": 3, "widths": (4, 6, 8)}


def fitted(module, method, generator, likelihood):
    pictures = torch.rand(6, 3, 16, 16, generator=generator)
    labels = torch.randint(3, (6, 16, 16), generator=generator)
    targets = labels if isinstance(likelihood, Categorical) else torch.rand(6, 3, 16, 16)
    return fit(module, (pictures, targets), method=method, likelihood=likelihood)


def same(found, want):
    for name in ("members", "variance"):
        torch.testing.assert_close(getattr(found, name), getattr(want, name), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["batch", "none"])
def test_samples_of_the_tangent_model(kind, generator):
    module = unet(**WIDTHS, normalisation=kind)
    module(torch.rand(4, 3, 16, 16, generator=generator))  # running means
    method = Laplace(subset=LastLayer())
    predictor = fitted(module.eval(), method, generator, Categorical())
    picture = torch.rand(1, 3, 100, 71, generator=generator)
    rule = Linearised(samples=4)
    want, found = predictor(picture, rule=rule), predictor(picture, rule=Tiled(rule, side=64))
    same(found, want)
    torch.testing.assert_close(found.covariance, want.covariance, atol=1e-5, rtol=1e-5)


def test_draws_and_one_point(generator, tmp_path):
    module = dilated(in_channels=3, classes=3, width=4, normalisation="none")
    base = MaximumAPosteriori(epochs=1)
    picture = torch.rand(2, 3, 70, 40, generator=generator)
    swag = SWAG(base=base, epochs=3, rank=2)
    for method, likelihood in ((base, Categorical()), (swag, GaussianNoise(0.1))):
        predictor = fitted(module, method, generator, likelihood)
        rule = Tiled(MonteCarlo(draws=3), side=32)
        same(predictor(picture, rule=rule), predictor(picture, rule=rule.rule))
    replace(predictor, rule=rule).save(tmp_path / "tiled")
    assert load(tmp_path / "tiled", module).rule == rule


def test_a_block_of_missing_numbers_shows_the_reach():
    """Sum of dilations 17, halves and doubles 3×3: rounded up to 32; a norm of all pixels: None."""
    picture = torch.zeros(1, 3, 8, 8)
    assert reach(functionalise(dilated(in_channels=3, normalisation="none")), picture) == 32
    deep = unet(in_channels=3, widths=(2,) * 5, normalisation="none")
    assert 32 < reach(functionalise(deep), picture) <= 128
    for normalisation in ("group", "filter_response"):
        assert reach(functionalise(unet(**WIDTHS, normalisation=normalisation)), picture) is None


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (unet(**WIDTHS), "norms that look at all pixels"),
        (unet(**WIDTHS, normalisation="none", upsampling="bilinear"), "size of the picture"),
    ],
)
def test_networks_that_look_further_are_told(module, says, generator):
    network = functionalise(module)
    with pytest.raises(CosetError, match=says):
        tried_margin(network, torch.zeros(1, 3, 8, 8))


def test_a_picture_that_is_too_large_is_told_of_tiles(generator):
    module = dilated(in_channels=3, classes=3, width=2, normalisation="none")
    predictor = fitted(module, MaximumAPosteriori(epochs=1), generator, Categorical())
    wide = torch.zeros(1, 3, 1, 1).expand(1, 3, 40_000, 30_000)
    with pytest.raises(CosetError, match=r"40,000 × 30,000 pixels.* GiB.*rule=Tiled"):
        require_room(predictor.rule, predictor.posterior, predictor.network, wide)
    picture = torch.zeros(1, 3, 1, 1).expand(1, 3, 4000, 3000)
    require_room(predictor.rule, predictor.posterior, predictor.network, picture)
    rule = Linearised(samples=500)
    with pytest.raises(CosetError, match="rule=Tiled"):
        require_room(rule, predictor.posterior, predictor.network, picture)
    for rule in (Tiled(), Calibrated(Tiled(), Conformal(0.5, 0.9))):
        require_room(rule, predictor.posterior, predictor.network, wide)


def test_what_is_refused_says_it_before_anything_is_made(generator, monkeypatch):
    module = dilated(in_channels=3, classes=3, width=2, normalisation="none")
    predictor = fitted(module, MaximumAPosteriori(epochs=1), generator, Categorical())
    monkeypatch.setattr("coset.posterior.tiles._MEMORY", 1 << 20)
    with pytest.raises(CosetError, match="rule=Tiled"):
        predictor(torch.zeros(1, 3, 300, 300))
    found = predictor(torch.zeros(1, 3, 300, 300), rule=Tiled(predictor.rule))
    assert found.mean.shape == (1, 3, 300, 300)


def test_what_has_no_pixels_does_not_come_in_tiles():
    predictor = fit(mlp(2, (3,), 2), (torch.rand(4, 2), torch.tensor([0, 1, 0, 1])))
    with pytest.raises(CosetError, match="channels, height, width"):
        predictor(torch.rand(4, 2), rule=Tiled())
    with pytest.raises(CosetError, match="side"):
        Tiled(side=0)
