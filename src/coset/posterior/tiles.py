"""Large pictures in overlapping tiles, for networks whose outputs see a bounded neighbourhood."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_counts, require_kinds
from coset.posterior.calibrated import inner_rule
from coset.posterior.families import Posterior
from coset.posterior.linearised import Linearised
from coset.posterior.predict import MonteCarlo, PredictionRule, Predictions, finite_members
from coset.vocabulary import Inputs
from coset.weights.inputs import parts_of
from coset.weights.memory import activations
from coset.weights.network import REFUSALS, Network
from coset.weights.stacking import members_of

STEP = 32
"""Tiles begin at multiples of it, so that networks which halve the size up to five times see the
same grid as in the whole picture."""

_SAME = 2e-5
"""How far a tile may be from the whole, by rounding, over the largest output."""

_MEMORY = 4 << 30
"""Bytes that the prediction of one picture may take."""

_CORNER = 256
"""Side of the corner on which activations are counted; smaller pictures always fit."""

_ALIVE = 8
"""Activations alive together, as a multiple of the largest: those that skips carry on among them.
"""

_SIZES = (64, 128, 256, 512)
"""Sides of the pictures of the probe; a reach beyond a quarter of the last is called unbounded."""


@torch.no_grad()
def reach(network: Network, pictures: Float[Tensor, "n channels h w"]) -> int | None:
    """How many pixels away an output can see, or ``None`` if it sees the whole picture.

    A block of missing numbers (NaN) is put into the middle of a picture: whatever looks at one of
    them becomes NaN, and no weight can hide it.  The answer is rounded up by at most ``STEP``.

    >>> from torch import nn
    >>> from coset.weights.network import functionalise
    >>> two = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 5, padding=2))
    >>> reach(functionalise(two), torch.zeros(1, 1, 8, 8))
    32
    """
    for side in _SIZES:
        picture = pictures.new_zeros(1, pictures.shape[1], side, side)
        start = side // 2 - STEP // 2
        block = slice(start, start + STEP)
        picture[:, :, block, block] = torch.nan
        seen = network.apply(network.weights, picture)[0].isnan().any(0)
        rows, columns = seen.any(1).nonzero().flatten(), seen.any(0).nonzero().flatten()
        if not len(rows):
            raise CosetError(
                "got a network that turns missing numbers into others",
                "needed one that hands NaN on, to see how far it looks",
                "predict the whole picture",
            )
        ends = (*rows[[0, -1]].tolist(), *columns[[0, -1]].tolist())
        if min(ends) > 0 and max(ends) < side - 1:
            far = int(max(start - min(ends), max(ends) - (start + STEP - 1)))
            return -(-far // STEP) * STEP
    return None


def require_room(
    rule: PredictionRule, posterior: Posterior, network: Network, inputs: Inputs
) -> None:
    """Refuses a picture whose prediction would not fit into memory, before it begins.

    Activations are counted on a corner and grow with the area; samples of the outputs are held
    twice.

    Raises:
        CosetError: If tiles are needed.
    """
    inner, parts = inner_rule(rule), parts_of(inputs)
    if isinstance(inner, Tiled) or len(parts) > 1 or parts[0].dim() != 4:
        return
    height, width = parts[0].shape[2:]
    if height * width <= _CORNER**2:
        return
    corner = parts[0][:1, :, :_CORNER, :_CORNER]
    try:
        with torch.no_grad():
            outputs = network.apply(network.weights, corner)
            seen = activations(network, network.weights, corner)
    except REFUSALS:  # a network of one size; the call itself will tell
        return
    if outputs.dim() != 4:
        return
    held = _ALIVE * seen.largest + 2 * _draws(inner, posterior) * outputs.nbytes
    size = held * height * width / (corner.shape[2] * corner.shape[3])
    if size > _MEMORY:
        raise CosetError(
            f"got a picture of {height:,} × {width:,} pixels, whose prediction takes about "
            f"{size / 2**30:.0f} GiB",
            f"needed at most {_MEMORY / 2**30:.0f} GiB",
            "predict it in tiles: rule=Tiled(predictor.rule)",
        )


def _draws(rule: PredictionRule, posterior: Posterior) -> int:
    """How many samples of the outputs are held."""
    if isinstance(rule, Linearised):
        return rule.samples or 1
    finite = finite_members(posterior)
    if finite is not None:
        return members_of(finite[0])
    return rule.draws if isinstance(rule, MonteCarlo) else 1


@dataclass(frozen=True)
class Tiled:
    """Another rule, tile by tile: as the whole picture at once, in the memory of a tile.

    Every tile is seen with as much of its surroundings as its outputs depend on, and by the same
    draws of the weights, so that there are no seams.  The first call measures that neighbourhood
    and compares a picture in tiles with the whole.

    Attributes:
        rule: How to predict a tile.
        side: Height and width of a tile without its surroundings, in pixels.

    >>> Tiled(MonteCarlo(draws=8), side=128).side
    128
    """

    rule: PredictionRule = field(default_factory=MonteCarlo)
    side: int = 256

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(side=self.side)

    def __call__(
        self,
        posterior: Posterior,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        *,
        generator: torch.Generator,
    ) -> Predictions:
        """Predictions for the pictures.

        Raises:
            CosetError: If the network's outputs depend on more than a neighbourhood.
        """
        pictures = _one_picture(inputs)
        margin = tried_margin(network, pictures)
        height, width = pictures.shape[2:]
        before, found = generator.get_state(), None
        for core, window, inside in _tiles(height, width, self._step, margin):
            generator.set_state(before)
            tile = pictures[:, :, window[0], window[1]]
            part = self.rule(posterior, network, likelihood, tile, generator=generator)
            found = found or _empty(part, pictures)
            for whole, values in zip(_fields(found), _fields(part), strict=True):
                if whole is not None and values is not None:
                    whole[..., core[0], core[1]] = values[..., inside[0], inside[1]]
        assert found is not None, "a picture has a tile"
        return found

    @property
    def _step(self) -> int:
        return -(-self.side // STEP) * STEP


def tried_margin(network: Network, pictures: Float[Tensor, "n channels h w"]) -> int:
    """Pixels around a tile that its outputs may see, with a picture compared in tiles and whole.

    Raises:
        CosetError: If they see more than a neighbourhood.
    """
    margin = reach(network, pictures)
    if margin is None:
        raise CosetError(
            "got a network whose outputs see the whole picture, or more than "
            f"{_SIZES[-1] // 4} pixels of it",
            "needed outputs that depend on a bounded neighbourhood",
            "norms that look at all pixels (group, layer, instance, filter response) and "
            "attention do not have them; normalisation='batch' or 'none' does",
        )
    generator = torch.Generator().manual_seed(0)
    side = 3 * STEP + margin
    shape = (1, pictures.shape[1], side, side)
    picture = torch.randn(shape, generator=generator).to(pictures)
    with torch.no_grad():
        whole = network.apply(network.weights, picture)
        for core, window, inside in _tiles(side, side, STEP, margin):
            part = network.apply(network.weights, picture[:, :, window[0], window[1]])
            off = whole[..., core[0], core[1]] - part[..., inside[0], inside[1]]
            if float(off.abs().max()) > _SAME * float(whole.abs().max()):
                raise CosetError(
                    "got a network that says something else of a tile than of the same place "
                    f"in the whole picture (by {float(off.abs().max()):.2g})",
                    "needed outputs that depend on nothing but their neighbourhood",
                    "upsampling with align_corners=True and positions relative to the border "
                    "look at the size of the picture",
                )
    return margin


_Square = tuple[slice, slice]


def _tiles(height: int, width: int, side: int, margin: int) -> Iterator[tuple[_Square, ...]]:
    """Of each tile: its place, the window that is shown, and the place of the tile in it."""
    for top in range(0, height, side):
        for left in range(0, width, side):
            pairs = [_span(top, height, side, margin), _span(left, width, side, margin)]
            yield tuple(zip(*pairs, strict=True))


def _span(start: int, size: int, side: int, margin: int) -> tuple[slice, slice, slice]:
    stop = min(size, start + side)
    first, last = max(0, start - margin), min(size, stop + margin)
    return slice(start, stop), slice(first, last), slice(start - first, stop - first)


def _one_picture(inputs: Inputs) -> Tensor:
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else f"{len(inputs)} inputs"
        raise CosetError(
            f"got {shape}", "needed pictures (n, channels, height, width) to cut into tiles"
        )
    return inputs


def _fields(found: Predictions) -> tuple[Tensor | None, ...]:
    spreads = (found.members, found.variance, found.covariance)
    return (*spreads, found.sets, found.lower, found.upper)


def _empty(part: Predictions, pictures: Tensor) -> Predictions:
    """Predictions of the size of the pictures, to be filled in."""

    def wide(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        if values.ndim < 4:
            raise CosetError(
                f"got predictions of shape {tuple(values.shape)}",
                "needed one for each pixel",
                "a label for a whole picture does not come in tiles",
            )
        return values.new_empty(*values.shape[:-2], *pictures.shape[-2:])

    members, variance, covariance, *kept = map(wide, _fields(part))
    assert members is not None, "rules give members"
    return Predictions(members, variance, covariance, part.log_weights, *kept)
