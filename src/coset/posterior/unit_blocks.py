"""Gaussians with a full covariance for the weights into each unit."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from coset.posterior.draws import check_draws
from coset.posterior.families import FitReport
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.layout import Layout


@dataclass(frozen=True)
class UnitBlocks:
    """Units are independent; the weights into one, with its bias, have a sample covariance.

    With deviations ``d_s`` of ``S`` samples, scaled by ``1 / √(S - 1)``, the rows of unit ``u``
    are ``mean_u + Σ_s z_us d_su``: the covariance of the block is that of the samples, at any size.

    Attributes:
        mean: The mean of each tensor.
        deviations: Scaled deviations, samples along the first axis, units along the second.
        fixed: Tensors that are the same in every draw.
        report: What the fit found out.
    """

    mean: Weights
    deviations: Weights
    fixed: Weights = field(default_factory=dict)
    report: FitReport = FitReport()

    __repr__ = brief

    @cached_property
    def layout(self) -> Layout:
        """The tensors of a draw."""
        return Layout.of({**self.mean, **self.fixed})

    def marginals(self) -> tuple[Weights, Weights]:
        """Mean and standard deviation of each entry; fixed tensors have none."""
        fixed = {name: torch.zeros_like(tensor) for name, tensor in self.fixed.items()}
        std = {
            name: self.deviations[name].square().sum(0).sqrt().reshape(tensor.shape)
            for name, tensor in self.mean.items()
        }
        return {**self.fixed, **self.mean}, {**fixed, **std}

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members."""
        check_draws(draws, generator)
        noise: dict[tuple[str, int], Tensor] = {}
        drawn = {}
        for name in sorted(self.mean):  # an order of its own: that of a file is another
            deviations = self.deviations[name]
            rows = deviations.unsqueeze(1) if deviations.dim() == 1 else deviations
            key = (name.rpartition(".")[0], rows.shape[1])  # weight and bias of a layer share it
            if key not in noise:
                shape = (draws, rows.shape[0], rows.shape[1])
                noise[key] = torch.randn(
                    shape, dtype=rows.dtype, device=rows.device, generator=generator
                )
            moved = torch.einsum("dsu,su...->du...", noise[key], rows)
            drawn[name] = self.mean[name] + moved.view(draws, *self.mean[name].shape)
        fixed = {name: tensor.expand(draws, *tensor.shape) for name, tensor in self.fixed.items()}
        return drawn | fixed
