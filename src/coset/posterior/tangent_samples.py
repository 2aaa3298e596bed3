"""A posterior given by samples of the weights of the tangent model.

``f(x; θ̃ + δ) ≈ f(x; θ̃) + J(x) δ`` with samples ``δ_s`` of a Gaussian of mean zero: the outputs then
have covariance ``S(x) ≈ 1/m Σ J δ_s (J δ_s)ᵀ``, one forward-mode product a sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.curvature.products import Linearisation
from coset.posterior.families import FitReport, Samples
from coset.posterior.gaussian import Gaussian
from coset.printing import brief
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import count_rows, take_rows
from coset.weights.layout import Layout
from coset.weights.network import Network
from coset.weights.stacking import members_of

_ROWS = 256
"""Inputs of a chunk at most."""

_CHANGES = 1 << 21
"""Numbers of all samples' changes that are alive together, beyond one input; more are slower."""


@dataclass(frozen=True)
class TangentSamples:
    """``θ̃ + δ_s`` for samples ``δ_s`` of a Gaussian around zero.

    Attributes:
        mean: ``θ̃``, one value for each covered tensor.
        deviations: The samples ``δ_s``, as a stack.
        report: What the fit found out.
        names: The tensors in the order of the flat vector; without, that of ``mean``.
        fixed: Other tensors, the same in every draw.

    >>> posterior = TangentSamples({"w": torch.zeros(1)}, {"w": torch.tensor([[1.0], [3.0]])})
    >>> posterior.sample(2, generator=torch.Generator().manual_seed(0))["w"].abs().sort(0).values
    tensor([[1.],
            [3.]])
    """

    mean: Weights
    deviations: Weights
    report: FitReport = FitReport()
    names: tuple[str, ...] = ()
    fixed: Weights = field(default_factory=dict)

    __repr__ = brief

    def __post_init__(self) -> None:
        if not self.names:  # dictionaries of older files have lost their order
            object.__setattr__(self, "names", tuple(self.mean))

    @cached_property
    def layout(self) -> Layout:
        """The covered tensors."""
        return Layout.of(self.mean, self.names)

    def centre(self, network: Network) -> Weights:
        """All weights of a network at the mean."""
        return {**network.weights, **self.fixed, **self.mean}

    @property
    def members(self) -> Weights:
        """``θ̃ + δ_s``, as a stack."""
        return self._around(self.deviations)

    @property
    def log_weights(self) -> Float[Tensor, " m"]:
        """All samples weigh the same."""
        return torch.zeros(members_of(self.deviations)).log_softmax(0)

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """Exactly ``draws`` members ``θ̃ ± δ_s``; no ``δ_s`` comes again before all have come.

        The Gaussian is symmetric, so a sample with its sign turned is as good as itself.
        """
        drawn = Samples(self.deviations).sample(draws, generator=generator)
        signs = 2 * torch.randint(0, 2, (draws,), generator=generator, device=generator.device) - 1
        turned = {
            name: tensor * signs.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1))
            for name, tensor in drawn.items()
        }
        return self._around(turned)

    def _around(self, deviations: Weights) -> Weights:
        count = members_of(deviations)
        fixed = {name: tensor.expand(count, *tensor.shape) for name, tensor in self.fixed.items()}
        return {name: self.mean[name] + deviations[name] for name in self.names} | fixed

    def widened(self, factor: float) -> "TangentSamples":
        """The same with its covariance multiplied by ``factor``."""
        scaled = {name: tensor * factor**0.5 for name, tensor in self.deviations.items()}
        return replace(self, deviations=scaled)

    @torch.no_grad()
    def output_deviations(
        self, network: Network, inputs: Inputs
    ) -> tuple[Float[Tensor, "n c ..."], Float[Tensor, "m n c ..."]]:
        """The network's own outputs, and ``J δ_s`` of every sample."""
        outputs, changes = zip(*self._by_chunk(network, inputs), strict=True)
        return torch.cat(outputs), torch.cat(changes, dim=1)

    def _by_chunk(self, network: Network, inputs: Inputs) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and their changes, so many rows at a time as the memory takes."""
        count, weights, start = count_rows(inputs), self.centre(network), 0
        line = Linearisation(network, weights, self.layout)
        flat = self.layout.flatten(self.deviations)
        rows = 1
        while start < count:
            chunk = take_rows(inputs, slice(start, start + rows))
            outputs = network.apply(weights, chunk)
            yield outputs, line.push(chunk, flat)
            start += rows
            rows = min(_ROWS, max(1, _CHANGES // (len(flat) * outputs[0].numel())))

    def output_moments(
        self, network: Network, inputs: Inputs
    ) -> tuple[Float[Tensor, "n c *pixels"], Float[Tensor, "n c c *pixels"]]:
        """Mean and covariance of the outputs of the linearised network; of each pixel by itself."""
        found = [
            (outputs, torch.einsum("mnc...,mnd...->ncd...", changes, changes) / len(changes))
            for outputs, changes in self._by_chunk(network, inputs)
        ]
        outputs, covariance = (torch.cat(parts) for parts in zip(*found, strict=True))
        return outputs, covariance


def sampled_around(
    posterior: Gaussian | TangentSamples, samples: int, *, generator: torch.Generator
) -> TangentSamples:
    """So many samples of a Gaussian, known or sampled, as deviations from its mean.

    >>> from coset.linalg import Diagonal
    >>> known = Gaussian({"w": torch.ones(1)}, Diagonal(torch.zeros(1)))
    >>> sampled_around(known, 2, generator=torch.Generator()).deviations["w"].flatten()
    tensor([0., 0.])
    """
    drawn = posterior.sample(samples, generator=generator)
    deviations = {name: drawn[name] - mean for name, mean in posterior.mean.items()}
    return TangentSamples(
        posterior.mean, deviations, posterior.report, posterior.names, posterior.fixed
    )
