"""Regression with error bars, kept in a file: noise that depends on the input is learnt too.

Run it with ``python examples/noisy_regression.py``.
"""

import tempfile
from pathlib import Path

import torch

from coset import (
    Adam,
    DeepEnsemble,
    HeteroscedasticGaussian,
    MaximumAPosteriori,
    fit,
    load,
    metrics,
    models,
)


def curve(count: int, *, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A sine whose noise grows from left to right."""
    inputs = 6 * torch.rand(count, 1, generator=generator) - 3
    noise = 0.05 + 0.1 * (inputs + 3) / 2
    return inputs, inputs.sin() + noise * torch.randn(count, 1, generator=generator)


def main(*, points: int = 600, members: int = 5, epochs: int = 200) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    train, test = (curve(points, generator=generator) for _ in range(2))
    module = models.mlp(1, (64, 64), 2, activation="tanh")  # a mean and a log-variance
    base = MaximumAPosteriori(Adam(0.01), epochs=epochs)
    predictor = fit(
        module,
        train,
        method=DeepEnsemble(members=members, base=base),
        likelihood=HeteroscedasticGaussian(),
    )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.safetensors"
        predictor.save(path)
        predictor = load(path, module)

    found = predictor(test[0])
    assert found.variance is not None
    scores = {
        "root mean squared error": float((found.mean - test[1]).square().mean().sqrt()),
        "inside 95 % intervals": float(
            metrics.interval_coverage(found.mean, found.variance, test[1])
        ),
        "std at the left end": float(predictor(torch.tensor([[-2.9]])).variance.sqrt()),
        "std at the right end": float(predictor(torch.tensor([[2.9]])).variance.sqrt()),
    }
    for name, value in scores.items():
        print(f"{name:24s} {value:.3f}")
    return scores


if __name__ == "__main__":
    main()
