"""Links: from Gaussian outputs to probabilities.

Each takes the mean ``μ`` and the covariance ``S`` of the outputs, and returns members ``m n c``:
one for a closed form.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import link_of, name_of
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_counts


class Link(Protocol):
    """How the mean of the target is found when the outputs are Gaussian."""

    def __call__(
        self,
        mean: Float[Tensor, "n c"],
        covariance: Float[Tensor, "n c c"],
        likelihood: Likelihood,
        *,
        generator: torch.Generator,
    ) -> Float[Tensor, "m n k"]:
        """Means of the target."""
        ...


@dataclass(frozen=True)
class Probit:
    """``softmax(μ_c / √(1 + π/8 · v_c))``: MacKay's approximation for each output.

    Attributes:
        projected: Whether ``v`` is the diagonal of ``P S P`` with ``P = I - 11ᵀ/c``, so that a
            common shift of all logits, which the softmax ignores and the data never determine,
            does not count as uncertainty.  Otherwise ``v`` is the diagonal of ``S``.

    >>> from coset import Categorical
    >>> mean, generator = torch.tensor([[2.0, 0.0]]), torch.Generator()
    >>> shift = torch.full((1, 2, 2), 9.0)  # all logits together
    >>> bool(Probit()(mean, shift, Categorical(), generator=generator).allclose(mean.softmax(1)))
    True
    """

    projected: bool = True

    def __call__(
        self,
        mean: Float[Tensor, "n c"],
        covariance: Float[Tensor, "n c c"],
        likelihood: Likelihood,
        *,
        generator: torch.Generator,
    ) -> Float[Tensor, "m n k"]:
        """Probabilities in closed form."""
        name = link_of(likelihood, mean)
        if name == "other":  # probabilities by a link of the likelihood's own
            return SampledSoftmax()(mean, covariance, likelihood, generator=generator)
        if self.projected and name == "softmax":
            centred = covariance - covariance.mean(1, keepdim=True)
            covariance = centred - centred.mean(2, keepdim=True)
        variance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0)
        return likelihood.mean(mean / (1 + math.pi / 8 * variance).sqrt()).unsqueeze(0)


@dataclass(frozen=True)
class TopDifference:
    """``softmax((μ_c - μ_t) / √(1 + π/8 · v_c / 2))`` with ``t`` the largest logit.

    ``v_c`` is the variance of the difference ``f_c - f_t``: a common shift of all logits cancels,
    and the most probable class stays what it is, which a factor for each class does not promise.
    For yes-or-no targets it is MacKay's approximation, as :class:`Probit`.

    >>> from coset import Categorical
    >>> mean, generator = torch.tensor([[2.0, 0.0]]), torch.Generator()
    >>> spread = torch.diag_embed(torch.tensor([[40.0, 40.0]]))
    >>> TopDifference()(mean, spread, Categorical(), generator=generator)  # 2 / √(1 + 5π)
    tensor([[[0.6199, 0.3801]]])
    """

    def __call__(
        self,
        mean: Float[Tensor, "n c"],
        covariance: Float[Tensor, "n c c"],
        likelihood: Likelihood,
        *,
        generator: torch.Generator,
    ) -> Float[Tensor, "m n k"]:
        """Probabilities in closed form."""
        if link_of(likelihood, mean) != "softmax":
            return Probit()(mean, covariance, likelihood, generator=generator)
        top = mean.argmax(1, keepdim=True)
        own = covariance.diagonal(dim1=1, dim2=2)
        shared = covariance.gather(1, top.unsqueeze(2).expand(-1, -1, mean.shape[1])).squeeze(1)
        variance = (own + own.gather(1, top) - 2 * shared).clamp_min(0)
        logits = (mean - mean.gather(1, top)) / (1 + math.pi / 16 * variance).sqrt()
        return likelihood.mean(logits).unsqueeze(0)


@dataclass(frozen=True)
class SampledSoftmax:
    """The mean of the target over draws of the outputs from ``N(μ, S)``.

    Attributes:
        draws: How many.

    >>> from coset import Categorical
    >>> link = SampledSoftmax(draws=7)
    >>> covariance = torch.zeros(1, 2, 2)
    >>> link(torch.zeros(1, 2), covariance, Categorical(), generator=torch.Generator()).shape
    torch.Size([7, 1, 2])
    """

    draws: int = 100

    def __post_init__(self) -> None:
        require_counts(draws=self.draws)

    def __call__(
        self,
        mean: Float[Tensor, "n c"],
        covariance: Float[Tensor, "n c c"],
        likelihood: Likelihood,
        *,
        generator: torch.Generator,
    ) -> Float[Tensor, "m n k"]:
        """One member a draw."""
        values, vectors = torch.linalg.eigh(covariance)  # may be singular: no Cholesky
        factor = vectors * values.clamp_min(0).sqrt().unsqueeze(1)
        noise = torch.randn(
            self.draws,
            *mean.shape,
            1,
            generator=generator,
            dtype=mean.dtype,
            device=generator.device,
        ).to(mean.device)
        outputs = mean + (factor @ noise).squeeze(-1)
        members: Tensor = likelihood.mean(outputs.flatten(0, 1))
        return members.reshape(self.draws, len(mean), -1)


@dataclass(frozen=True)
class LaplaceBridge:
    """A Dirichlet distribution that matches the Gaussian over logits (Hobbhahn et al. 2022).

    The sum of the logits is conditioned to zero, then
    ``α_c = (1 - 2/C + e^{μ_c} / C² Σ_l e^{-μ_l}) / S_cc`` and the mean is ``α / Σ α``.
    """

    def __call__(
        self,
        mean: Float[Tensor, "n c"],
        covariance: Float[Tensor, "n c c"],
        likelihood: Likelihood,
        *,
        generator: torch.Generator,
    ) -> Float[Tensor, "m n k"]:
        """Probabilities in closed form."""
        if link_of(likelihood, mean) != "softmax":
            raise CosetError(
                f"got the Laplace bridge for {name_of(likelihood)}",
                "needed Categorical(): a Dirichlet distribution is one over classes",
                "use Probit() or SampledSoftmax()",
            )
        count = mean.shape[1]
        rows = covariance.sum(2)
        total = rows.sum(1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)
        centred = mean - rows * mean.sum(1, keepdim=True) / total
        variance = covariance.diagonal(dim1=1, dim2=2) - rows.square() / total
        floor = torch.finfo(mean.dtype).eps * variance.amax(1, keepdim=True).clamp_min(1e-30)
        # log Σ exp keeps large logits finite
        spread = centred + torch.logsumexp(-centred, dim=1, keepdim=True) - 2 * math.log(count)
        concentration = (
            torch.logaddexp(spread, torch.full_like(spread, math.log(max(1 - 2 / count, 1e-30))))
            - variance.clamp_min(floor).log()
        )
        return concentration.softmax(1).unsqueeze(0)
