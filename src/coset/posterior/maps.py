"""Coherent samples of whole maps: every sample is one function, seen at all pixels.

Error bars of single pixels do not say how they move together, and so nothing of an area, of the
mean depth of an object, or of any other number of a whole picture.  Samples of maps do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import link_of, noise_variance
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError
from coset.metrics.conformal import check_level, conformal_quantile
from coset.posterior.calibrated import inner_rule
from coset.posterior.draws import check_draws
from coset.posterior.families import Mixture, Posterior
from coset.posterior.gaussian import Gaussian
from coset.posterior.linearised import Linearised
from coset.posterior.output_moments import OutputDeviations
from coset.posterior.predict import PredictionRule, apply_members, finite_members, weighted_mean
from coset.posterior.tangent_samples import TangentSamples, sampled_around
from coset.printing import brief
from coset.vocabulary import Inputs
from coset.weights.inputs import parts_of
from coset.weights.network import Network

_MEMORY = 4 << 30
"""Bytes that the samples may take."""


@dataclass(frozen=True)
class Maps:
    """Samples of the outputs for some pictures.

    Attributes:
        outputs: Of each sample, for all pictures and pixels.
        likelihood: How outputs and targets meet.
        log_weights: Normalised log-weight of each sample; ``None``: all weigh the same.
    """

    outputs: Float[Tensor, "m n c *pixels"]
    likelihood: Likelihood
    log_weights: Float[Tensor, " m"] | None = None

    __repr__ = brief

    @property
    def means(self) -> Float[Tensor, "m n k *pixels"]:
        """Means of the targets for each sample: probabilities, or regression means."""
        means = self.likelihood.mean(self.outputs.flatten(0, 1))
        return means.reshape(*self.outputs.shape[:2], *means.shape[1:])

    def targets(self, *, generator: torch.Generator) -> Tensor:
        """Targets for each sample, with noise of their own at every pixel.

        Labels ``(m, n, *pixels)`` of classes; yes or no, or numbers, ``(m, n, k, *pixels)``.
        """
        means = self.means
        link = link_of(self.likelihood, self.outputs[0])
        chance = torch.rand(means[:, :, :1].shape, generator=generator).to(means)
        if link == "softmax":
            passed = (means.cumsum(2) < chance).sum(2)
            return passed.clamp_max(means.shape[2] - 1)
        if link == "sigmoid":
            return (torch.rand(means.shape, generator=generator).to(means) < means).to(means)
        noise = noise_variance(self.likelihood, self.outputs.flatten(0, 1))
        if noise is None:
            raise CosetError(
                f"got the likelihood {type(self.likelihood).__name__}, whose noise is not known",
                "needed classes, yes or no, or a noise variance",
                "use .means, which are without noise",
            )
        standard = torch.randn(means.shape, generator=generator).to(means)
        return means + noise.reshape(means.shape).sqrt() * standard

    def summary(self, function: Callable[[Tensor], Tensor]) -> "Summary":
        """A number of each picture: an area, the mean over a mask.

        Args:
            function: From means of the targets ``(n, k, *pixels)`` to one number a picture, such
                as ``lambda p: p[:, 2].mean((1, 2))``, the share of class 2.
        """
        values = torch.stack([function(each) for each in self.means])
        if values.shape != self.outputs.shape[:2]:
            raise CosetError(
                f"got a summary of shape {tuple(values.shape[1:])}",
                f"needed one number for each of {self.outputs.shape[1]} pictures",
                "take the mean over the pixels, and keep the first axis",
            )
        return Summary(values, self.log_weights)


@dataclass(frozen=True)
class Summary:
    """A number of each picture, for every sample of the maps.

    Attributes:
        values: Of each sample and picture.
        log_weights: Of each sample.

    >>> shares = Summary(torch.tensor([[0.1, 0.5], [0.3, 0.5]]))
    >>> shares.mean
    tensor([0.2000, 0.5000])
    """

    values: Float[Tensor, "m n"]
    log_weights: Float[Tensor, " m"] | None = None

    __repr__ = brief

    @property
    def mean(self) -> Float[Tensor, " n"]:
        """Over the samples."""
        return weighted_mean(self.values, self.log_weights)

    @property
    def deviation(self) -> Float[Tensor, " n"]:
        """The standard deviation over the samples."""
        spread = (self.values - self.mean).square()
        return weighted_mean(spread, self.log_weights).sqrt()

    def interval(
        self, level: float = 0.9, *, stretch: float | None = None
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Mean minus and plus ``stretch`` standard deviations.

        Args:
            level: How many of the true numbers should lie inside.
            stretch: From :meth:`stretch`; ``None``: that of a normal distribution.
        """
        check_level(level)
        if stretch is None:
            stretch = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
        return self.mean - stretch * self.deviation, self.mean + stretch * self.deviation

    def stretch(self, truth: Float[Tensor, " n"], *, level: float = 0.9) -> float:
        """How many standard deviations hold ``level`` of the true numbers of held-out pictures.

        Split conformal prediction by picture: the ``⌈(n + 1) level⌉``-th smallest of
        ``|truth - mean| / deviation``.  For a new picture that is exchangeable with the held-out
        ones the interval then holds the truth with a probability of at least ``level``, whatever
        the network.

        >>> held_out = Summary(torch.tensor([[-1.0] * 9, [1.0] * 9]))
        >>> held_out.stretch(torch.arange(9.0), level=0.8)
        7.0
        """
        check_level(level)
        if truth.shape != self.mean.shape:
            raise CosetError(
                f"got true numbers of shape {tuple(truth.shape)}",
                f"needed one for each of {len(self.mean)} pictures",
            )
        off = (truth.double() - self.mean.double()).abs()
        smallest = torch.finfo(torch.float64).tiny
        return conformal_quantile(off / self.deviation.double().clamp_min(smallest), level=level)


def sample_maps(
    posterior: Posterior,
    network: Network,
    likelihood: Likelihood,
    rule: PredictionRule,
    inputs: Inputs,
    *,
    draws: int,
    generator: torch.Generator,
) -> Maps:
    """Coherent samples by a rule: of the linearised network, or of the network itself."""
    check_draws(draws, generator)
    parts = list(_outputs(posterior, network, inner_rule(rule), inputs, draws, generator))
    outputs = torch.cat([part for part, _ in parts])
    if not bool(outputs.isfinite().all()):
        raise CosetError(
            "got samples of outputs that are not finite",
            "needed finite numbers",
            "use rule=Linearised(), whose samples stay near the network's own outputs",
        )
    weights = [share for _, share in parts]
    known = [share for share in weights if share is not None]
    return Maps(outputs, likelihood, torch.cat(known) if len(known) == len(weights) else None)


def _outputs(
    posterior: Posterior,
    network: Network,
    rule: PredictionRule,
    inputs: Inputs,
    draws: int,
    generator: torch.Generator,
) -> Iterator[tuple[Float[Tensor, "m n c *pixels"], Float[Tensor, " m"] | None]]:
    """Outputs and log-weights, component by component."""
    _check_size(posterior, network, inputs, draws)
    if not isinstance(rule, Linearised):
        finite = finite_members(posterior)
        if finite is None:
            finite = posterior.sample(draws, generator=generator), None
        yield apply_members(network, finite[0], inputs), finite[1]
    elif isinstance(posterior, Mixture):
        shares = posterior.log_weights.exp()
        chosen = torch.multinomial(shares, draws, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=len(shares)).tolist()
        for part, count in zip(posterior.components, counts, strict=True):
            if count:
                yield from _outputs(part, network, rule, inputs, count, generator)
    elif isinstance(posterior, Gaussian | TangentSamples):
        drawn = sampled_around(posterior, draws, generator=generator)
        mean, changes = drawn.output_deviations(network, inputs)
        yield mean + changes, None
    elif isinstance(posterior, OutputDeviations):
        mean, changes = posterior.output_deviations(network, inputs)
        yield mean + changes, None
    else:
        raise CosetError(
            f"got a posterior of type {type(posterior).__name__}",
            "needed a Gaussian to linearise around",
            "use rule=MonteCarlo()",
        )


def _check_size(posterior: Posterior, network: Network, inputs: Inputs, draws: int) -> None:
    """Refuses what would not fit, before it is made."""
    rows = parts_of(inputs)
    with torch.no_grad():
        first = tuple(part[:1] for part in rows)
        one = network.apply(network.weights, first if len(first) > 1 else first[0])
    size = 2 * draws * len(rows[0]) * one.numel() * one.element_size()
    if size > _MEMORY:
        raise CosetError(
            f"got {len(rows[0])} pictures and {draws} samples of {one.numel():,} outputs each, "
            f"which take {size / 2**30:.1f} GiB",
            f"needed at most {_MEMORY / 2**30:.0f} GiB",
            "ask for fewer pictures at a time, or fewer draws",
        )
