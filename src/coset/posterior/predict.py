"""Predictions: a posterior over weights, carried through the network to its outputs.

Every rule is a value that is called with a posterior, a network, a likelihood and inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import vmap

from coset.bayes.defaults import gives_probabilities, noise_variance
from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError, require_counts
from coset.posterior.chunks import Plan, plan_chunks
from coset.posterior.families import Finite, Mixture, Posterior
from coset.posterior.symmetrised import Symmetrised
from coset.printing import brief
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import split_rows
from coset.weights.masks import from_row
from coset.weights.network import REFUSALS, Network, refusal
from coset.weights.stacking import members_of, unstack


@dataclass(frozen=True)
class Predictions:
    """What a posterior says about some inputs.

    Attributes:
        members: Class probabilities or regression means of each draw; one draw for a closed form.
            Dense tasks keep their pixel axes after ``c``.
        variance: Regression: variance of the target, spread of the members plus noise.  Otherwise
            the epistemic variance of the outputs.  ``None`` where it is unknown.
        covariance: Covariance of the outputs, one per pixel, for linearised rules.
        log_weights: Normalised log-weight of each member; ``None``: all weigh the same.
        sets: Conformal: the classes that are held possible (:meth:`coset.Predictor.calibrated`).
        lower: Conformal: where the interval of a number begins.
        upper: Conformal: where it ends.

    >>> Predictions(torch.tensor([[[0.2, 0.8]], [[0.6, 0.4]]])).mean
    tensor([[0.4000, 0.6000]])
    """

    members: Float[Tensor, "m n c *pixels"]
    variance: Float[Tensor, "n c *pixels"] | None = None
    covariance: Float[Tensor, "n c c *pixels"] | None = None
    log_weights: Float[Tensor, " m"] | None = None
    sets: Bool[Tensor, "n c *pixels"] | None = None
    lower: Float[Tensor, "n c *pixels"] | None = None
    upper: Float[Tensor, "n c *pixels"] | None = None

    __repr__ = brief

    @property
    def mean(self) -> Float[Tensor, "n c *pixels"]:
        """The weighted mean over members: ``Σ_m w_m p_m``."""
        return weighted_mean(self.members, self.log_weights)


class PredictionRule(Protocol):
    """How a posterior over weights becomes a distribution over outputs."""

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
        ...


@dataclass(frozen=True)
class MonteCarlo:
    """Averages the predictions of members: ``p(y | x) ≈ Σ_m w_m p(y | f(x; w_m))``.

    A posterior that is a finite set of members (a point, an ensemble, a mixture of those) is
    integrated exactly over all of them; any other by ``draws`` samples, all drawn before the first
    is used, so that the chunks of the computation never change the numbers drawn.

    Attributes:
        draws: Samples of a posterior that is not finite.
        memory: Bytes that the activations of one chunk of members and data may take; a small
            amount keeps them in cache and is as fast.
    """

    draws: int = 32
    memory: int = 1 << 25

    def __post_init__(self) -> None:
        require_counts(draws=self.draws, memory=self.memory)

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
        # symmetries leave every draw's function as it is
        posterior = posterior.inner if isinstance(posterior, Symmetrised) else posterior
        finite = finite_members(posterior)
        if finite is None:
            stack, log_weights = posterior.sample(self.draws, generator=generator), None
        else:
            stack, log_weights = finite
        outputs = apply_members(network, stack, inputs, memory=self.memory)
        return summarise(outputs, likelihood, log_weights)


def finite_members(posterior: Posterior) -> tuple[Weights, Float[Tensor, " m"] | None] | None:
    """All members of a finite posterior and their log-weights (``None``: equal), or nothing."""
    if isinstance(posterior, Mixture):
        return _finite_mixture(posterior)
    if not isinstance(posterior, Finite):
        return None
    log_weights = posterior.log_weights
    equal = bool((log_weights == log_weights[0]).all())
    return posterior.members, None if equal else log_weights


def _finite_mixture(mixture: Mixture) -> tuple[Weights, Float[Tensor, " m"] | None] | None:
    parts = [finite_members(component) for component in mixture.components]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    stacks = [stack for stack, _ in found]
    joined = {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}
    log_weights = torch.cat(
        [
            component + (_equal(members_of(stack)) if inner is None else inner)
            for component, (stack, inner) in zip(mixture.log_weights, found, strict=True)
        ]
    )
    equal = bool((log_weights == log_weights[0]).all())
    return joined, None if equal else log_weights


def _equal(count: int) -> Float[Tensor, " m"]:
    return torch.zeros(count).log_softmax(0)


@torch.no_grad()
def apply_members(
    network: Network, stack: Weights, inputs: Inputs, *, memory: int = 1 << 25
) -> Float[Tensor, "m n c *pixels"]:
    """Outputs of every member of a stack on all inputs, in chunks that fit the memory.

    Members go side by side under ``vmap``; a network that it cannot take (control flow that
    depends on values, say) is called member by member.
    """
    try:
        plan = plan_chunks(network, stack, inputs, memory)
    except CosetError:
        raise
    except REFUSALS as error:
        raise refusal(inputs, error, stack.values()) from error
    try:
        return _in_chunks(_side_by_side, network, stack, inputs, plan)
    except RuntimeError:
        return _in_chunks(_one_by_one, network, stack, inputs, plan)


_Runner = Callable[[Network, Weights, Inputs], Tensor]


def _in_chunks(
    run: _Runner, network: Network, stack: Weights, inputs: Inputs, plan: Plan
) -> Float[Tensor, "m n c *pixels"]:
    rows = []
    for start in range(0, members_of(stack), plan.members):
        part = {name: tensor[start : start + plan.members] for name, tensor in stack.items()}
        chunks = [
            run(network, from_row(part, number * plan.rows), chunk)
            for number, chunk in enumerate(split_rows(inputs, plan.rows))
        ]
        rows.append(torch.cat(chunks, dim=1))
    return torch.cat(rows)


def _side_by_side(network: Network, stack: Weights, inputs: Inputs) -> Tensor:
    axes = _member_axes(stack)
    given = {name: tensor[0] if axes[name] is None else tensor for name, tensor in stack.items()}
    outputs: Tensor = vmap(network.apply, in_dims=(axes, None))(given, inputs)
    return outputs


def _member_axes(stack: Weights) -> dict[str, int | None]:
    """The member axis of every tensor; none for what was expanded, and goes through once."""
    alike = {name for name, tensor in stack.items() if not tensor.stride(0)}
    if len(alike) == len(stack):
        alike = set()  # vmap needs an axis
    return {name: None if name in alike else 0 for name in stack}


def _one_by_one(network: Network, stack: Weights, inputs: Inputs) -> Tensor:
    return torch.stack([network.apply(member, inputs) for member in unstack(stack)])


def summarise(
    outputs: Float[Tensor, "m n f *pixels"],
    likelihood: Likelihood,
    log_weights: Float[Tensor, " m"] | None = None,
) -> Predictions:
    """Predictions from outputs of members: means by the likelihood, variance by their spread."""
    count, data = outputs.shape[:2]
    flat = outputs.flatten(0, 1)
    members = likelihood.mean(flat).unflatten(0, (count, data))
    spread = (members - weighted_mean(members, log_weights)).square()
    spread_alone = weighted_mean(spread, log_weights)
    variance: Tensor | None = spread_alone
    noise = noise_variance(likelihood, flat)
    if noise is not None:
        variance = spread_alone + weighted_mean(noise.unflatten(0, (count, data)), log_weights)
    elif not gives_probabilities(likelihood, flat):
        variance = None  # without the noise, the spread alone would pass for the whole variance
    return Predictions(members, variance, log_weights=log_weights)


def weighted_mean(
    values: Float[Tensor, "m ..."], log_weights: Float[Tensor, " m"] | None
) -> Float[Tensor, "..."]:
    """``Σ_m exp(l_m) v_m``, or the plain mean where no weights are given."""
    if log_weights is None:
        return values.mean(0)
    weights = log_weights.to(values.dtype).to(values.device).softmax(0)
    mean: Tensor = torch.tensordot(weights, values, dims=1)
    return mean


_IMPLEMENTATIONS: tuple[PredictionRule, ...] = (MonteCarlo(),)
