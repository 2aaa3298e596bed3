"""Segment street pictures with error bars by pixel: CamVid, or scenes that are made on the spot.

Run it with ``python examples/segment_camvid.py [METHOD]``; METHOD is map, ensemble, dropout, swag,
last-layer or laplace.
"""

import sys
from pathlib import Path

import torch

from coset import (
    SWAG,
    Adam,
    Categorical,
    DeepEnsemble,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    MCDropout,
    evaluate,
    fit,
    weights_of,
)
from coset.data import Augmented, camvid, scenes
from coset.models import unet
from coset.report import draw_pixels
from coset.weights.network import assign

AFTER = {"last-layer": Laplace(subset=LastLayer()), "laplace": Laplace()}
"""Made around a trained network."""


def main(
    method: str = "last-layer",
    *,
    data: str = "camvid",
    count: int = 367,
    epochs: int = 60,
    picture: str = "camvid.svg",
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    if data == "camvid":
        found = camvid()  # 120 × 160 in the compact copy
        parts, classes, void = (found.train, found.validation, found.test), 11, found.void
        train, held, test = ([half[:count] for half in part] for part in parts)
    else:
        kind, classes, void = "segmentation", 5, 255
        train, held, test = (scenes(kind, count, size=16, generator=generator) for _ in range(3))
    likelihood = Categorical(ignore=void)
    base = MaximumAPosteriori(Adam(0.005), epochs=epochs, batch_size=16)
    training = {
        "map": base,
        "ensemble": DeepEnsemble(members=5, base=base),
        "dropout": MCDropout(base),
        "swag": SWAG(base=base, rank=5, epochs=10),
    }
    moved = Augmented(*train, crop=4, flip=True, colour=0.1, void=void, generator=generator)
    module = unet(in_channels=3, classes=classes, widths=(8, 16, 32), dropout=0.1)
    chosen = training.get(method, base)
    predictor = fit(module, moved, method=chosen, likelihood=likelihood, progress=True)
    if method in AFTER:
        module = assign(module, weights_of(module) | predictor.posterior.weights)
        predictor = fit(module, train, method=AFTER[method], likelihood=likelihood, progress=True)
    predictor = predictor.calibrated(held)

    asked = ["mean_intersection_over_union", "negative_log_likelihood", "accuracy"]
    scores = evaluate(predictor, test, metrics=[*asked, "expected_calibration_error"])
    for name, value in scores.items():
        print(f"{name:30s} {value:.3f}")
    pictures, labels = test[0][:3], test[1][:3]
    sample = predictor.maps(pictures, 2).targets(generator=generator)[0]
    mean = predictor(pictures).mean
    Path(picture).write_text(draw_pixels(pictures, labels, mean, sample=sample, ignore=void))
    return scores


if __name__ == "__main__":
    main(*sys.argv[1:])
