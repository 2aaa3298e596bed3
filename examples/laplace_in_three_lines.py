"""Error bars for a trained network in three lines, on a curve with a gap.

Run it with ``python examples/laplace_in_three_lines.py``.
"""

import torch
from torch import nn

from coset import Full, GaussianNoise, Laplace, fit


def curve_with_gap(count: int, *, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy sine, seen on [-3, -1] and on [1, 3] but not between."""
    side = torch.sign(torch.rand(count, 1, generator=generator) - 0.5)
    inputs = side * (1 + 2 * torch.rand(count, 1, generator=generator))
    return inputs, (2 * inputs).sin() + 0.1 * torch.randn(count, 1, generator=generator)


def trained(inputs: torch.Tensor, targets: torch.Tensor, steps: int) -> nn.Module:
    """A network as anyone would train it."""
    module = nn.Sequential(
        nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1)
    )
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        (module(inputs) - targets).square().mean().backward()
        optimiser.step()
    return module


def main(*, points: int = 150, steps: int = 1500) -> dict[str, float]:
    torch.manual_seed(0)
    inputs, targets = curve_with_gap(points, generator=torch.Generator().manual_seed(0))
    module = trained(inputs, targets, steps)

    # the three lines
    predictor = fit(module, (inputs, targets), method=Laplace(Full()), likelihood=GaussianNoise())
    on_data = predictor(inputs)
    in_gap = predictor(torch.linspace(-0.7, 0.7, 29).unsqueeze(1))

    found = {
        "learnt noise": float(predictor.likelihood.std),
        "error bar on the data": float(on_data.variance.sqrt().mean()),
        "error bar in the gap": float(in_gap.variance.sqrt().mean()),
        "log evidence": float(predictor.log_evidence),
    }
    for name, value in found.items():
        print(f"{name:22s} {value:.3f}")
    return found


if __name__ == "__main__":
    main()
