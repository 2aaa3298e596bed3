"""Error bars of every method on one curve: what each says where there are no data.

Run it with ``python examples/error_bars_by_method.py``; it draws ``error_bars_by_method.svg``.
"""

import torch

import coset
from coset import HMC, SGHMC, SWAG, DeepEnsemble, Laplace, MaximumAPosteriori, MeanField
from coset.inference import Method

NOISE, PATH = 0.1, "error_bars_by_method.svg"


def curve(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A sine seen on both sides of a gap."""
    generator = torch.Generator().manual_seed(0)
    side = torch.where(torch.arange(count) % 2 == 0, -1.0, 1.0).unsqueeze(1)
    inputs = side * (1.2 + 1.3 * torch.rand(count, 1, generator=generator))
    return inputs, (2 * inputs).sin() + NOISE * torch.randn(count, 1, generator=generator)


def methods(*, epochs: int, draws: int) -> dict[str, Method]:
    base = MaximumAPosteriori(coset.Adam(0.01), epochs=epochs, batch_size=16)
    return {
        "one network": base,
        "DeepEnsemble": DeepEnsemble(10, base=base),
        "Laplace": Laplace(),
        "RebasedGaussian": coset.RebasedGaussian(DeepEnsemble(10, base=base), rank=5),
        "SWAG": SWAG(base=base),
        "MeanField": MeanField(base=base, epochs=5 * epochs),
        "SGHMC": SGHMC(burn_in=5 * draws, draws=draws),
        "HMC": HMC(warmup=draws, draws=draws),
    }


def draw(bands: dict[str, coset.Predictions], grid: torch.Tensor, train: tuple, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True).flatten()
    for panel, (name, found) in zip(panels, bands.items(), strict=True):
        mean, deviation = found.mean.squeeze(1), found.variance.sqrt().squeeze(1)
        for width in (1, 2):
            low, high = mean - width * deviation, mean + width * deviation
            panel.fill_between(grid, low, high, color="#2b6cb0", alpha=0.2, linewidth=0)
        panel.plot(grid, mean, color="#2b6cb0")
        panel.plot(*(part.squeeze(1) for part in train), ".", color="#2d3748", markersize=3)
        panel.set(title=name, ylim=(-3, 3))
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(*, points: int = 60, epochs: int = 400, draws: int = 300, path: str = PATH) -> dict:
    train, grid = curve(points), torch.linspace(-4, 4, 201)
    module = coset.models.mlp(1, (32, 32), 1, activation="tanh")
    trained, bands = None, {}
    for name, method in methods(epochs=epochs, draws=draws).items():
        start = trained if isinstance(method, Laplace) else None  # the others train themselves
        predictor = coset.fit(
            module, train, method=method, likelihood=coset.GaussianNoise(NOISE), start=start
        )
        trained = trained or predictor.posterior.weights
        bands[name] = predictor(grid.unsqueeze(1))
        on_data, in_gap = (float(bands[name].variance[place].sqrt()) for place in (55, 100))
        print(f"{name:16s} standard deviation {on_data:.2f} on the data, {in_gap:.2f} in the gap")
    draw(bands, grid, train, path)
    return bands


if __name__ == "__main__":
    main()
