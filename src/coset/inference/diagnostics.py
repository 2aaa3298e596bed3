"""Have the chains converged?  Split R-hat and effective sample size, rank-normalised.

Formulas: Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization".  Values have shape ``(d, m, k)``: draws, chains, quantities.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.inference.sampling.chains import History
from coset.inference.sampling.targets import Target
from coset.posterior.families import FitReport, Samples
from coset.posterior.predict import apply_members

_PARAMETERS, _INPUTS = 256, 16
"""Weights and inputs, evenly spread, on which convergence is measured."""

R_HAT, EFFECTIVE, ENERGY, CUT_OFF = 1.05, 100.0, 0.3, 0.5
"""Worse than these is reported as a warning."""


def r_hat(values: Float[Tensor, "d m k"]) -> Float[Tensor, " k"]:
    """Rank-normalised split R-hat, the larger of the plain and the folded one.

    Near 1 where the halves of all chains look alike; above 1.05 they do not.
    """
    halves = _split(values.double())
    folded = (halves - _median(halves)).abs()
    return torch.maximum(_plain_r_hat(_normal_scores(halves)), _plain_r_hat(_normal_scores(folded)))


def effective_sample_size(values: Float[Tensor, "d m k"]) -> Float[Tensor, " k"]:
    """Bulk effective sample size: how many independent draws the chains are worth.

    ``d m / τ`` with ``τ = -1 + 2 Σ P_t + ρ``, where ``P_t`` are sums of neighbouring
    autocorrelations up to the first that is negative, made monotone (Geyer 1992), and ``ρ`` is the
    next autocorrelation, if it is positive: the mean of sums that end before and after it (Vehtari
    et al. 2021, section 3.2, and their program).
    """
    return _plain_effective(_normal_scores(_split(values.double())))


def energy_fraction(energy: Float[Tensor, "s m"]) -> Float[Tensor, " m"]:
    """Bayesian fraction of missing information, ``Σ (E_t - E_{t-1})² / Σ (E_t - Ē)²``, per chain.

    Below 0.3 momenta change the energy too little to cross its range (Betancourt 2016).

    >>> energy_fraction(torch.tensor([[0.0], [1.0], [0.0], [1.0]]))
    tensor([3.])
    """
    changes = energy.diff(dim=0).square().sum(0)
    spread = (energy - energy.mean(0)).square().sum(0)
    return changes / spread.clamp_min(torch.finfo(energy.dtype).tiny)


def _split(values: Float[Tensor, "d m k"]) -> Float[Tensor, "h w k"]:
    half = len(values) // 2
    return torch.cat([values[:half], values[len(values) - half :]], dim=1)


def _median(values: Float[Tensor, "d m k"]) -> Float[Tensor, " k"]:
    """The mean of the two in the middle of an even number, of which torch takes the lower."""
    ordered = values.flatten(0, 1).sort(dim=0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _normal_scores(values: Float[Tensor, "d m k"]) -> Float[Tensor, "d m k"]:
    """Values replaced by normal quantiles of their ranks; ties share their mean rank."""
    flat = values.flatten(0, 1).T.contiguous()
    ordered = flat.sort(dim=1).values
    below = torch.searchsorted(ordered, flat)
    upto = torch.searchsorted(ordered, flat, right=True)
    ranks = (below + upto + 1).double() / 2
    scores: Tensor = torch.special.ndtri((ranks - 0.375) / (flat.shape[1] + 0.25))
    return scores.T.reshape(values.shape)


def _variances(values: Float[Tensor, "d m k"]) -> tuple[Tensor, Tensor]:
    """Variance within chains and the pooled estimate of the variance."""
    draws, chains = values.shape[:2]
    within = values.var(0).mean(0)
    pooled = within * (draws - 1) / draws
    if chains > 1:
        pooled = pooled + values.mean(0).var(0)
    return within, pooled


def _plain_r_hat(values: Float[Tensor, "d m k"]) -> Float[Tensor, " k"]:
    within, pooled = _variances(values)
    ratio = (pooled / within).sqrt()
    return torch.where(pooled > 0, ratio, 1.0)  # a constant is the same in every chain


def _plain_effective(values: Float[Tensor, "d m k"]) -> Float[Tensor, " k"]:
    draws, chains = values.shape[:2]
    centred = values - values.mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * draws, dim=0)
    power = spectrum.real.square() + spectrum.imag.square()
    covariance = torch.fft.irfft(power, n=2 * draws, dim=0)[:draws] / draws
    within, pooled = _variances(values)
    correlation = 1 - (within - covariance.mean(1)) / pooled
    correlation[0] = 1.0
    count = max((draws - 1) // 2 - 1, 1)  # the last lags, of a product or two, are left out
    pairs = correlation[: 2 * count].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).long().cumprod(0)
    monotone = pairs.cummin(0).values * positive
    padded = torch.cat([correlation, torch.zeros_like(correlation[:1])])  # two draws have no lag 2
    following = padded.gather(0, 2 * positive.sum(0, keepdim=True)).squeeze(0).clamp_min(0)
    time = -1 + 2 * monotone.sum(0) + following
    time = time.clamp_min(1 / math.log10(draws * chains))
    found = draws * chains / time
    return torch.where(pooled > 0, found, float(draws * chains))


def collect(
    target: Target,
    history: History,  # type: ignore[type-arg]  # the state does not matter here
    step_size: float,
    learnt: Likelihood | None,
) -> Samples:
    """The kept states of all chains, chain after chain, with a report on them."""
    report = report_of_chains(target, history, {"step_size": step_size}, learnt)
    positions, buffers = (
        kept.transpose(0, 1).flatten(0, 1) for kept in (history.positions, history.buffers)
    )
    return Samples(target.join(positions, buffers), report=report)


def report_of_chains(
    target: Target,
    history: History,  # type: ignore[type-arg]  # the state does not matter here
    numbers: Mapping[str, float],
    learnt: Likelihood | None,
) -> FitReport:
    """All numbers on a run of chains, with a warning for each that is not as it should be.

    Weights are measured on at most 256 entries, functions on the predictions for at most 16 of the
    training inputs: ``measured_weights`` and ``measured_functions`` say on how many.
    """
    draws, chains = history.positions.shape[:2]
    found = {**numbers, "chains": float(chains), "draws": float(draws)}
    warnings = []
    for name, values in history.records.items():
        if name == "divergent":
            found["divergences"] = float(values.sum())
        elif name == "energy":
            found["energy_fraction"] = float(energy_fraction(values).min())
        elif name == "leapfrog_steps":
            found[name] = float(values.sum())
        else:
            found[name] = float(values.mean())
    if draws < 4:
        warnings.append(f"{draws} draws a chain are too few to tell whether chains have converged")
    else:
        for space, values in (
            ("weights", some_weights(history.positions)),
            ("functions", _some_predictions(target, history)),
        ):
            found[f"measured_{space}"] = float(values.shape[2])
            found[f"r_hat_{space}"] = float(r_hat(values).max())
            found[f"effective_draws_{space}"] = float(effective_sample_size(values).min())
    warnings += warnings_of(found)
    return FitReport(likelihood=learnt, diagnostics=found, warnings=tuple(warnings))


def warnings_of(found: Mapping[str, float]) -> list[str]:
    """What a reader of the numbers must know.

    >>> warnings_of({"r_hat_functions": 1.2, "divergences": 0.0})
    ['not converged: predictions have an R-hat of 1.20, more than 1.05; run longer chains']
    """
    told = []
    hat = found.get("r_hat_functions", 1.0)
    if not hat <= R_HAT:
        told.append(
            f"not converged: predictions have an R-hat of {hat:.2f}, more than {R_HAT}; "
            "run longer chains"
        )
    hat = found.get("r_hat_weights", 1.0)
    if not hat <= R_HAT:
        told.append(
            f"weights have an R-hat of {hat:.2f}, more than {R_HAT}: chains may differ by a "
            "symmetry, so look at them after alignment; predictions do not notice symmetries"
        )
    hat = found.get("r_hat_aligned_weights", 1.0)
    if not hat <= R_HAT:
        told.append(
            f"weights have an R-hat of {hat:.2f} after alignment, more than {R_HAT}: chains lie in "
            "different places, and a Gaussian of all of them is wider than each; run longer chains"
        )
    if found.get("effective_draws_functions", EFFECTIVE) < EFFECTIVE:
        effective = found["effective_draws_functions"]
        told.append(
            f"few effective draws: predictions have {effective:.0f}, less than {EFFECTIVE:.0f}"
        )
    if found.get("divergences", 0.0) > 0:
        told.append(
            f"{found['divergences']:.0f} divergent trajectories: the step size is too large "
            "for some places; raise target_acceptance"
        )
    if found.get("cut_off", 0.0) > CUT_OFF:
        told.append(
            f"{found['cut_off']:.0%} of the trajectories were cut off before they turned; "
            "raise max_depth"
        )
    if found.get("energy_fraction", 1.0) < ENERGY:
        told.append(
            f"an energy fraction of {found['energy_fraction']:.2f}, less than {ENERGY}: "
            "chains cross the range of energies slowly"
        )
    return told


def some_weights(positions: Float[Tensor, "d m p"]) -> Float[Tensor, "d m k"]:
    """At most 256 of the parameters, evenly spread."""
    count = positions.shape[2]
    index = torch.linspace(0, count - 1, min(count, _PARAMETERS)).round().long()
    return positions[:, :, index]


def _some_predictions(
    target: Target,
    history: History,  # type: ignore[type-arg]  # the state does not matter here
) -> Float[Tensor, "d m k"]:
    train = target.problem.train
    index = torch.linspace(0, train.size - 1, min(train.size, _INPUTS)).round().long()
    stack = target.join(history.positions.flatten(0, 1), history.buffers.flatten(0, 1))
    outputs = apply_members(target.problem.network, stack, train.rows(index)[0])
    means: Tensor = target.problem.likelihood.mean(outputs.flatten(0, 1)).reshape(len(outputs), -1)
    spread = torch.linspace(0, means.shape[1] - 1, min(means.shape[1], _PARAMETERS)).round().long()
    chosen: Tensor = means[:, spread].unflatten(0, history.positions.shape[:2])
    return chosen
