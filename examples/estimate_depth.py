"""Estimate depth from one picture, with an error bar for every pixel and every mean over a mask.

Run it with ``python examples/estimate_depth.py [METHOD]``; METHOD is map, ensemble, dropout, swag,
last-layer or laplace.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from coset import (
    SWAG,
    Adam,
    DeepEnsemble,
    HeteroscedasticGaussian,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    MCDropout,
    evaluate,
    fit,
    weights_of,
)
from coset.data import log_depth, scenes
from coset.metrics import area_under_sparsification, depth_errors
from coset.models import depth_head, unet
from coset.report import draw_pixels
from coset.weights.network import assign


def main(
    method: str = "ensemble", *, count: int = 200, epochs: int = 60, picture: str = "depth.svg"
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    made = [scenes("depth", count, size=32, generator=generator) for _ in range(3)]
    train, held, test = ((pictures, log_depth(depth)) for pictures, depth in made)
    known = train[1][~train[1].isnan()]
    module = nn.Sequential(
        unet(in_channels=3, classes=2, widths=(8, 16, 32), dropout=0.05),
        depth_head(float(known.mean()), float(known.std())),
    )
    likelihood = HeteroscedasticGaussian(missing="nan")  # the sky has no depth
    base = MaximumAPosteriori(Adam(0.005), epochs=epochs, batch_size=16)
    methods = {
        "map": base,
        "ensemble": DeepEnsemble(members=5, base=base),
        "dropout": MCDropout(base),
        "swag": SWAG(base=base, rank=5, epochs=10),
    }
    after = {"last-layer": Laplace(subset=LastLayer()), "laplace": Laplace()}
    chosen = methods.get(method, base)
    predictor = fit(module, train, method=chosen, likelihood=likelihood, progress=True)
    if method in after:
        module = assign(module, weights_of(module) | predictor.posterior.weights)
        predictor = fit(module, train, method=after[method], likelihood=likelihood, progress=True)
    predictor = predictor.calibrated(held)  # one factor for all variances

    asked = ["gaussian_negative_log_likelihood", "interval_coverage", "root_mean_squared_error"]
    scores = evaluate(predictor, test, metrics=asked)
    found = predictor(test[0])
    assert found.variance is not None
    area = area_under_sparsification(found.mean, found.variance, test[1], missing="nan")
    scores["sparsification"] = float(area)
    known_depths = made[2][1].nan_to_num(0.0)  # zero: no reading
    scores["relative"] = depth_errors(found.mean.exp()[:, 0], known_depths).absolute_relative
    for name, value in scores.items():
        print(f"{name:36s} {value:.3f}")
    shown = predictor.maps(test[0][:3], 5)
    sample = shown.targets(generator=generator)[0, :, :1]
    ends = shown.summary(lambda mean: mean[:, 0].mean((1, 2))).interval(0.9)
    print("mean log-depth of the first picture:", *(f"{float(end[0]):.3f}" for end in ends))
    few = (part[:3] for part in (*test, found.mean, found.variance))
    Path(picture).write_text(draw_pixels(*few, sample=sample))
    return scores


if __name__ == "__main__":
    main(*sys.argv[1:])
