"""What a report says of samples that were aligned: chains, convergence, places of units."""

from collections.abc import Mapping
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from coset.inference.compacting import Places
from coset.inference.diagnostics import effective_sample_size, r_hat, some_weights, warnings_of
from coset.posterior.families import FitReport, Mixture, Posterior, Samples

_DRAWS = 4
"""Draws of a chain from which convergence can be told."""


def chains_of(posterior: Posterior, count: int) -> int:
    """How many chains the members of a posterior are, one after the other; 0: they are not."""
    chains = _counted(posterior)
    return chains if chains and count % chains == 0 else 0


def _counted(posterior: Posterior) -> int:
    match posterior:
        case Mixture(weighting=None):
            each = [_counted(component) for component in posterior.components]
            return sum(each) if all(each) else 0
        case Samples(weighting=None):
            return int(posterior.report.diagnostics.get("chains", 0))
    return 0


def convergence(positions: Float[Tensor, "d m p"]) -> dict[str, float]:
    """What the chains look like after alignment."""
    draws, chains = positions.shape[:2]
    if draws < _DRAWS:
        return {"chains": float(chains)}
    values = some_weights(positions)
    return {
        "chains": float(chains),
        "r_hat_aligned_weights": float(r_hat(values).max()),
        "effective_draws_aligned_weights": float(effective_sample_size(values).min()),
    }


def without_evidence(report: FitReport) -> FitReport:
    """The report without the evidence and its bound, which are those of the inner posterior."""
    found = {name: n for name, n in report.diagnostics.items() if name != "evidence_bound"}
    return replace(report, log_evidence=None, diagnostics=found)


def with_places(report: FitReport, places: Places, numbers: Mapping[str, float]) -> FitReport:
    """The report with what the alignment found, and warnings of what it could not mend."""
    warnings = (*report.warnings, *warnings_of(numbers))
    if not places.settled:
        warnings += (f"the alignment had not settled after {places.rounds} rounds; raise rounds",)
    found = {**report.diagnostics, **numbers, "rounds": float(places.rounds)}
    return replace(report, diagnostics=found, warnings=warnings)
