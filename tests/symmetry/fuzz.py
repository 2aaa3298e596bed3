"""Random programs over the building blocks: what no hand-picked network would contain.

`random_program(seed)` is deterministic, small, gives finite outputs and can be exported.
"""

from random import Random

import torch
from tests.symmetry.architectures.registry import in_general_position
from tests.symmetry.building_blocks.awkward import AWKWARD
from tests.symmetry.building_blocks.block import Block, Maker, linear
from tests.symmetry.building_blocks.dense import EVERYWHERE
from tests.symmetry.building_blocks.image import IMAGE
from tests.symmetry.building_blocks.sequence import SEQUENCE
from torch import Tensor, nn

WIDEST = 24
LARGEST = 100.0
INPUTS = {"vector": (3,), "sequence": (3, 3), "image": (3, 4, 4)}
OWN: dict[str, tuple[Maker, ...]] = {"vector": (), "sequence": SEQUENCE, "image": IMAGE}


class Program(nn.Module):
    """Steps in a row."""

    def __init__(self, steps: list[nn.Module]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


def random_program(seed: int) -> tuple[nn.Module, Tensor]:
    """A network in eval mode and an example for it.

    Args:
        seed: The same seed gives the same program, weights and example.
    """
    draw = Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        while True:
            module, example = one_program(draw)
            with torch.no_grad():
                outputs = module(example)
            # Powers of powers would drown the check in rounding.
            if outputs.isfinite().all() and outputs.abs().max() < LARGEST:
                return module, example


def one_program(draw: Random) -> tuple[nn.Module, Tensor]:
    kind = draw.choice(("vector", "vector", "sequence", "image"))
    start = draw.choice((4, 6, 6, 8, 9, 12))
    steps, width = some_steps(draw, kind, start, depth=1)
    # A layer in front, so that little is pinned by the input.
    program = Program([layer(draw, kind, 3, start), *steps, head(draw, kind, width)])
    return in_general_position(program).eval(), torch.randn(2, *INPUTS[kind])


def some_steps(draw: Random, kind: str, width: int, depth: int) -> tuple[list[nn.Module], int]:
    """Two to four blocks; some of them hold programs themselves, some are used a second time."""
    steps: list[nn.Module] = []
    known: list[tuple[int, nn.Module, int]] = []
    for _ in range(draw.randint(2, 4)):
        again = [(block, after) for before, block, after in known if before == width]
        if again and draw.random() < 0.15:
            block, after = draw.choice(again)
        else:
            block, after = one_step(draw, kind, width, depth)
            known.append((width, block, after))
        steps.append(block)
        width = after
        if width > WIDEST or width < 2:
            narrow = draw.choice((4, 6, 8))
            steps.append(layer(draw, kind, width, narrow))
            width = narrow
    return steps, width


def one_step(draw: Random, kind: str, width: int, depth: int) -> tuple[nn.Module, int]:
    """One block that suits the width."""
    while True:
        pool = draw.choice(("own", "own", "dense", "dense", "dense", "awkward", "nested"))
        if pool == "nested":
            if depth:
                return nested(draw, kind, width, depth - 1)
            continue
        if pool == "own" and OWN[kind]:
            made = draw.choice(OWN[kind])(draw, width)
        else:
            made = draw.choice(AWKWARD if pool == "awkward" else EVERYWHERE)(draw, width)
            if made is not None and kind == "image":
                made = channels_last(made[0]), made[1]
        if made is not None:
            return made


def channels_last(block: nn.Module) -> nn.Module:
    return Block(lambda m, x: m.block(x.movedim(1, -1)).movedim(-1, 1), block=block)


def nested(draw: Random, kind: str, width: int, depth: int) -> tuple[nn.Module, int]:
    """Two programs side by side, or one beside the identity, put together again."""
    axis = 1 if kind == "image" else -1
    steps, after = some_steps(draw, kind, width, depth)
    combine = draw.choice(("residual", "cat", "sum", "product", "maximum"))
    if combine == "residual" and after == width and draw.random() < 0.5:
        return Block(lambda m, x: x + m.body(x), body=Program(steps)), width
    if combine == "residual":
        steps.append(layer(draw, kind, after, width))
        return Block(lambda m, x: x + m.body(x), body=Program(steps)), width
    others, other = some_steps(draw, kind, width, depth)
    if combine == "cat":
        join = Block(
            lambda m, x: torch.cat([m.left(x), m.right(x)], axis),
            left=Program(steps),
            right=Program(others),
        )
        return join, after + other
    if other != after:
        others.append(layer(draw, kind, other, after))
    operation = {"sum": torch.add, "product": torch.mul, "maximum": torch.maximum}[combine]
    return (
        Block(
            lambda m, x: operation(m.left(x), m.right(x)),
            left=Program(steps),
            right=Program(others),
        ),
        after,
    )


def layer(draw: Random, kind: str, before: int, after: int) -> nn.Module:
    """A linear layer on the channels, whose kernel is one pixel in an image."""
    return nn.Conv2d(before, after, 1) if kind == "image" else linear(draw, before, after)


def head(draw: Random, kind: str, width: int) -> nn.Module:
    """A last layer to two outputs."""
    if kind == "image" and draw.random() < 0.5:
        return nn.Sequential(nn.Flatten(), nn.Linear(16 * width, 2))
    if kind == "image":
        return Block(lambda m, x: m.out(x.mean((2, 3))), out=nn.Linear(width, 2))
    if kind == "sequence" and draw.random() < 0.5:
        return Block(lambda m, x: m.out(x.mean(1)), out=nn.Linear(width, 2))
    return nn.Linear(width, 2)
