"""One-step forecasts of a noisy series by an LSTM that was trained elsewhere, with error bars.

Run it with ``python examples/forecast_with_error_bars.py``.
"""

import torch
from torch import Tensor, nn

from coset import GaussianNoise, fit, metrics


class Forecaster(nn.Module):
    """The next value from the last ones."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.past, self.next = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, windows: Tensor) -> Tensor:
        """One forecast a window."""
        return self.next(self.past(windows)[0][:, -1])


def series(length: int, *, generator: torch.Generator) -> Tensor:
    """Two waves of different periods, and noise."""
    time = torch.arange(length) / 10
    noise = 0.1 * torch.randn(length, generator=generator)
    return time.sin() + 0.5 * (2.7 * time).cos() + noise


def trained(windows: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """Plain torch: coset takes the network as it comes."""
    torch.manual_seed(0)
    module = Forecaster()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.mse_loss(module(windows), targets).backward()
        optimiser.step()
    return module.eval()


def main(*, length: int = 500, steps: int = 400) -> dict[str, float]:
    values = series(length, generator=torch.Generator().manual_seed(0))
    windows = values.unfold(0, 20, 1)[:-1].unsqueeze(-1)
    targets = values[20:].unsqueeze(-1)
    half = len(windows) // 2
    module = trained(windows[:half], targets[:half], steps)

    predictor = fit(module, (windows[:half], targets[:half]), likelihood=GaussianNoise())

    found = predictor(windows[half:])
    assert found.variance is not None
    strange = predictor(2 * windows[half:])  # a signal twice as strong as any seen
    assert strange.variance is not None
    scores = {
        "root mean squared error": float((found.mean - targets[half:]).square().mean().sqrt()),
        "inside 95 % intervals": float(
            metrics.interval_coverage(found.mean, found.variance, targets[half:])
        ),
        "noise found": float(predictor.likelihood.std),
        "std of a forecast": float(found.variance.sqrt().mean()),
        "std for stronger signals": float(strange.variance.sqrt().mean()),
    }
    for name, value in scores.items():
        print(f"{name:26s} {value:.3f}")
    return scores


if __name__ == "__main__":
    main()
