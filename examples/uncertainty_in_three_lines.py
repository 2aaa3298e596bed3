"""Uncertainty in three lines: an ensemble on a curve with a gap, and how unsure it is inside.

Run it with ``python examples/uncertainty_in_three_lines.py``.
"""

import torch

from coset import DeepEnsemble, GaussianNoise, MaximumAPosteriori, fit, models


def curve_with_gap(count: int, *, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy sine, seen on [-3, -1] and on [1, 3] but not between."""
    side = torch.sign(torch.rand(count, 1, generator=generator) - 0.5)
    inputs = side * (1 + 2 * torch.rand(count, 1, generator=generator))
    return inputs, (2 * inputs).sin() + 0.1 * torch.randn(count, 1, generator=generator)


def main(*, points: int = 200, members: int = 10, epochs: int = 300) -> dict[str, float]:
    train = curve_with_gap(points, generator=torch.Generator().manual_seed(0))
    module = models.mlp(1, (64, 64), 1)
    method = DeepEnsemble(members=members, base=MaximumAPosteriori(epochs=epochs))

    # the three lines
    predictor = fit(module, train, method=method, likelihood=GaussianNoise())
    predictions = predictor(train[0])
    gap = predictor(torch.linspace(-0.7, 0.7, 29).unsqueeze(1))

    found = {
        "learnt noise": float(predictor.likelihood.std),
        "spread on the data": float(predictions.members.std(0).mean()),
        "spread in the gap": float(gap.members.std(0).mean()),
    }
    for name, value in found.items():
        print(f"{name:20s} {value:.3f}")
    return found


if __name__ == "__main__":
    main()
