"""Predictions of the linearised network: Gaussian outputs in closed form.

``f(x; θ) ≈ f(x; θ̃) + J(x) (θ - θ̃)`` is Gaussian when ``θ`` is, with mean ``f(x; θ̃)`` and covariance
``S(x) = J(x) Σ J(x)ᵀ`` (:mod:`coset.posterior.output_moments`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import gives_probabilities
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_counts, require_kinds
from coset.posterior.families import Mixture, Posterior
from coset.posterior.gaussian import Gaussian
from coset.posterior.joint import JointPredictions, joint_moments
from coset.posterior.links import Link, Probit
from coset.posterior.output_moments import OutputDeviations, needs_graph, output_moments
from coset.posterior.predict import PredictionRule, Predictions, weighted_mean
from coset.posterior.tangent_samples import sampled_around
from coset.posterior.targets import target_moments
from coset.vocabulary import Inputs
from coset.weights.network import Network

MANY = 256
"""Outputs of an input above which a fit predicts by samples: the exact covariance takes a backward
pass for each."""

_SAMPLES = 64
"""How many samples it takes then."""


@dataclass(frozen=True)
class Linearised:
    """The exact predictive distribution of the network linearised at the posterior's mean.

    Regression: mean ``f`` and variance ``S + noise``.  Classes: a link turns ``f`` and ``S`` into
    probabilities.  Outputs with pixels have one covariance ``S`` per pixel.  Inputs that require
    gradients get them: predictions are differentiable in the inputs.

    Attributes:
        link: :class:`Probit`, :class:`TopDifference`, :class:`SampledSoftmax` or
            :class:`LaplaceBridge`.
        samples: ``None``: the exact ``S``, one backward pass an output and chunk of inputs.  A
            number: ``S`` from so many samples of the weights, one forward-mode product each for
            all outputs together, which is what pictures need; standard deviations then have a
            relative standard error of ``1 / √(2 samples)``, and inputs get no gradients.
    """

    link: Link = field(default_factory=Probit)
    samples: int | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        if self.samples is not None:
            require_counts(samples=self.samples)

    def __call__(
        self,
        posterior: Posterior,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        *,
        generator: torch.Generator,
    ) -> Predictions:
        """Predictions for the inputs."""
        if isinstance(posterior, Mixture):
            return self._mixture(posterior, network, likelihood, inputs, generator)
        return self._mode(posterior, network, likelihood, inputs, generator).predictions

    def _mode(
        self,
        posterior: Posterior,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        generator: torch.Generator,
    ) -> "_Mode":
        gaussian = _gaussian(posterior)
        if self.samples is not None and isinstance(gaussian, Gaussian):
            if needs_graph(inputs):
                raise CosetError(
                    f"got inputs that require gradients and samples={self.samples}",
                    "needed inputs that do not, or the exact covariance",
                    "use inputs.detach() or samples=None",
                )
            gaussian = sampled_around(gaussian, self.samples, generator=generator)
        mean, covariance = output_moments(gaussian, network, inputs)
        found = predict_from_moments(mean, covariance, likelihood, self.link, generator)
        return _Mode(mean, found)

    def joint(
        self, posterior: Posterior, network: Network, likelihood: Likelihood, inputs: Inputs
    ) -> JointPredictions:
        """The joint distribution of the outputs at all inputs together."""
        mean, covariance = joint_moments(_gaussian(posterior), network, inputs)
        return JointPredictions(mean, covariance, likelihood)

    def _mixture(
        self,
        mixture: Mixture,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        generator: torch.Generator,
    ) -> Predictions:
        """Each mode by itself: a mixture of their predictive distributions."""
        modes = [
            (share, self._mode(part, network, likelihood, inputs, generator))
            for share, part in _flat(mixture)
        ]
        found = [mode.predictions for _, mode in modes]
        shares = torch.stack([share for share, _ in modes])
        log_weights = torch.cat(
            [
                (share - math.log(len(part.members))).expand(len(part.members))
                for share, part in zip(shares, found, strict=True)
            ]
        )
        members = torch.cat([part.members for part in found])
        covariance = _spread_of([mode for _, mode in modes], shares)
        variance: Tensor | None = covariance.diagonal(dim1=1, dim2=2).movedim(-1, 1)
        if not gives_probabilities(likelihood, modes[0][1].mean):
            variance = _variance_of_targets(found, shares)
        return Predictions(members, variance, covariance, log_weights)


def affordable(
    rule: PredictionRule, posterior: Posterior, outputs: int
) -> tuple[PredictionRule, tuple[str, ...]]:
    """The same rule, or with samples where an input has many outputs; and a note that says so.

    Args:
        rule: How a fit would predict.
        posterior: What it found.
        outputs: Of one input, over all pixels.

    >>> from coset.linalg import Diagonal
    >>> rule, (note,) = affordable(Linearised(), Gaussian({}, Diagonal(torch.ones(0))), 4096)
    >>> rule.samples, note.partition(":")[0]
    (64, 'predictions by 64 samples of the weights, as an input has 4,096 outputs')
    """
    if not isinstance(rule, Linearised) or rule.samples is not None:
        return rule, ()
    if outputs <= MANY or not _has_gaussian(posterior):
        return rule, ()
    note = (
        f"predictions by {_SAMPLES} samples of the weights, as an input has {outputs:,} outputs: "
        f"standard deviations have a relative standard error of {(2 * _SAMPLES) ** -0.5:.0%}; "
        "rule=Linearised(TopDifference()) is exact and slow"
    )
    return replace(rule, samples=_SAMPLES), (note,)


def _has_gaussian(posterior: Posterior) -> bool:
    """Whether the covariance of a posterior, or of a mode of it, is known in full."""
    if isinstance(posterior, Mixture):
        return any(map(_has_gaussian, posterior.components))
    return isinstance(posterior, Gaussian)


@dataclass(frozen=True)
class _Mode:
    """Mean of the outputs of one Gaussian, and the predictions it makes."""

    mean: Float[Tensor, "n c *pixels"]
    predictions: Predictions


def _flat(mixture: Mixture) -> Iterator[tuple[Float[Tensor, ""], Posterior]]:
    """The components that are no mixtures themselves, with their log-weights."""
    for share, part in zip(mixture.log_weights, mixture.components, strict=True):
        if isinstance(part, Mixture):
            yield from ((share + inner, each) for inner, each in _flat(part))
        else:
            yield share, part


def _spread_of(
    modes: Sequence[_Mode], shares: Float[Tensor, " k"]
) -> Float[Tensor, "n c c *pixels"]:
    """Covariance of the outputs of a mixture: ``Σ w (S + (f - f̄)(f - f̄)ᵀ)``."""
    middle = weighted_mean(torch.stack([mode.mean for mode in modes]), shares)
    total = middle.new_zeros(())
    for weight, mode in zip(shares.exp(), modes, strict=True):
        apart, own = mode.mean - middle, mode.predictions.covariance
        assert own is not None, "every Gaussian has one"
        total = total + weight * (own + apart.unsqueeze(2) * apart.unsqueeze(1))
    return total


def _variance_of_targets(
    found: Sequence[Predictions], shares: Float[Tensor, " k"]
) -> Float[Tensor, "n k *pixels"] | None:
    """Variance of a mixture of regressions: the mean of the variances, and how far means differ."""
    variances = [part.variance for part in found if part.variance is not None]
    if len(variances) < len(found):
        return None
    means = torch.stack([part.mean for part in found])
    spread = (means - weighted_mean(means, shares)).square()
    return weighted_mean(torch.stack(variances) + spread, shares)


def _gaussian(posterior: Posterior) -> Gaussian | OutputDeviations:
    if isinstance(posterior, Gaussian | OutputDeviations):
        return posterior
    raise CosetError(
        f"got a posterior of type {type(posterior).__name__}",
        "needed a Gaussian, such as Laplace() finds",
        "use rule=MonteCarlo(), whose members are draws for all inputs together",
    )


def predict_from_moments(
    mean: Float[Tensor, "n c *pixels"],
    covariance: Float[Tensor, "n c c *pixels"],
    likelihood: Likelihood,
    link: Link,
    generator: torch.Generator,
) -> Predictions:
    """Predictions where the outputs are Gaussian; each pixel is one by itself."""
    count, pixels = len(mean), tuple(mean.shape[2:])
    flat = mean.movedim(1, -1).reshape(-1, mean.shape[1])
    spread = covariance.movedim((1, 2), (-2, -1)).reshape(*flat.shape, -1)
    variance: Tensor | None
    if gives_probabilities(likelihood, flat):
        members = link(flat, spread, likelihood, generator=generator)
        variance = spread.diagonal(dim1=1, dim2=2)
    else:
        found, variance = target_moments(likelihood, flat, spread)
        members = found.unsqueeze(0)

    def dense(values: Tensor, axis: int) -> Tensor:
        shaped = values.reshape(*values.shape[:axis], count, *pixels, values.shape[-1])
        return shaped.movedim(-1, axis + 1)

    return Predictions(
        dense(members, 1), None if variance is None else dense(variance, 0), covariance
    )
