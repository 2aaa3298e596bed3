"""Dropout as a posterior: the same weights under random masks."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.posterior.draws import check_draws
from coset.posterior.families import FitReport, snapshots_of
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.masks import PREFIX, ROWS, DropoutSite


@dataclass(frozen=True)
class RandomMasks:
    """One setting of the weights, and a mask for every dropout in a draw.

    A draw holds the weights and, under the names ``dropout:0``, ``dropout:1``, …, masks of zeros
    and ``1 / (1 - rate)``; the network multiplies by them where it would drop.  So one draw is one
    function, the same for all inputs.  With ``per_example`` a draw holds instead two uniform
    numbers ``u, a`` for each unit, and row ``i`` of a batch keeps it if ``frac(u + i a) ≥ rate``:
    independent for any two rows, as in the classic form.

    Attributes:
        weights: The weights.
        sites: Rate and shape of each dropout of a pass.
        per_example: Whether rows of a batch have masks of their own.
        report: What the fit found out.
    """

    weights: Weights
    sites: tuple[DropoutSite, ...]
    per_example: bool = False
    report: FitReport = FitReport()

    __repr__ = brief
    snapshots = property(snapshots_of)

    @cached_property
    def layout(self) -> Layout:
        """The weights, without the masks."""
        return Layout.of(self.weights)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members, with their masks."""
        check_draws(draws, generator)
        like = next(iter(self.weights.values()))

        def uniform(shape: tuple[int, ...]) -> Tensor:
            """Numbers of 24 binary digits, whatever the type of the weights."""
            return torch.rand(shape, dtype=torch.float32, device=like.device, generator=generator)

        drawn = {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.weights.items()}
        for number, site in enumerate(self.sites):
            if self.per_example:
                drawn[f"{ROWS}{number}"] = uniform((draws, 2, *site.shape))
            else:
                kept = uniform((draws, *site.shape)) >= site.rate
                scale = 0.0 if site.rate >= 1 else 1 / (1 - site.rate)
                drawn[f"{PREFIX}{number}"] = kept.to(like.dtype) * scale
        return drawn
