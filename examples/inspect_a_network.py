"""What are the symmetries of my network? A table, one explanation, a picture, and a proof.

Run it with ``python examples/inspect_a_network.py``.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from coset import discover, draw, functionalise, symmetry_error, weights_of


class Classifier(nn.Module):
    """Any module will do: a convolution, a residual block, a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.up = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.down = nn.Conv2d(2 * width, width, 1)
        self.head = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of ten classes."""
        stream = self.stem(pictures)
        stream = stream + self.down(self.norm(self.up(stream)).relu())
        return self.head(stream.mean((2, 3)))


def main(*, width: int = 16, picture: Path | None = None) -> dict[str, float]:
    module, example = Classifier(width), torch.randn(2, 3, 16, 16)

    group = discover(module, example)
    print(group)
    print("\n" + group.explain("down.weight"))

    # one random element: other weights, the same network
    element = group.sample(generator=torch.Generator().manual_seed(0))
    weights = weights_of(module)
    moved = group.act(element, weights)
    network = functionalise(module)
    distance = (moved["up.weight"] - weights["up.weight"]).abs().max()
    gap = (network.apply(moved, example) - network.apply(weights, example)).abs().max()
    print(f"\nweights moved by up to {distance:.2f}, outputs by {gap:.1e} (single precision)")

    if picture is not None:
        picture.write_text(draw(module, example, group), encoding="utf-8")
        print(f"Picture: {picture}")
    return {
        "log order": group.log_order(),
        "symmetry error": symmetry_error(module, group, example),
    }


if __name__ == "__main__":
    main(picture=Path("network.svg"))
