"""Samples made alike by symmetries, and Gaussians fitted to them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from coset.alignment.by_covariance import ByCovariance
from coset.alignment.by_weights import ByWeights
from coset.alignment.gaussians import Marginals, solve_gaussians
from coset.alignment.many import match_stream
from coset.alignment.match import By, match
from coset.alignment.plans import matched_tensors
from coset.alignment.result import transpositions_of
from coset.inference.sampling.adaptation import Moments
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.unit_blocks import UnitBlocks
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.layout import Layout

_PRECISION = 1e-6
_FLOOR = 1e-4
"""Least variance of a weight for the density of samples, as a share of the mean variance."""


@dataclass(frozen=True)
class Places:
    """Where each of many samples goes.

    Attributes:
        elements: What moves each sample to its place; empty where none is moved.
        rounds: How many times all were matched.
        settled: Whether the last round moved nothing any more.
    """

    elements: tuple[Element, ...] = ()
    rounds: int = 0
    settled: bool = True


def find_places(
    group: SymmetryGroup,
    members: Sequence[Weights],
    *,
    by: By,
    to_mean: bool,
    rounds: int,
    generator: torch.Generator,
) -> Places:
    """Matches all samples to their moving mean, or to the first; one is in memory at a time."""
    if isinstance(by, ByCovariance):
        members, by = _Seen(members, by), by.by
    if not to_mean:
        first = members[0]
        found = (
            match(group, members[k], to=first, by=by, generator=generator).element
            for k in range(len(members))
        )
        return Places(tuple(found), 1)
    frame = match_stream(group, members, by=by, rounds=rounds, generator=generator)
    elements = tuple(_member(frame.element, k) for k in range(len(members)))
    settled = len(frame.moved) < rounds or frame.moved[-1] == 0
    return Places(elements, len(frame.moved), settled)


@dataclass(frozen=True)
class _Seen(Sequence[Weights]):
    """Samples as they are compared, one at a time."""

    members: Sequence[Weights]
    by: ByCovariance

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, k: Any) -> Any:
        return self.by.seen(self.members[k])


def by_likelihood(
    group: SymmetryGroup,
    members: Sequence[Weights],
    places: Places,
    *,
    rounds: int,
    generator: torch.Generator,
) -> Places:
    """Moves samples where the Gaussian of all is highest, fits it again, and so on (hard EM).

    Up to a constant the log-density of a sample is ``<w, μ / σ²> - <w², 1 / 2σ²>``: a matching of
    weights with their squares beside them.  Each round can only raise the sum over all samples.
    """
    by = ByWeights(anchored=False, scales="keep")  # from where each is
    elements, voting = list(places.elements), matched_tensors(group)
    for number in range(rounds):
        now = Places(tuple(elements))
        gaussian = _marginals(moved(group, now, members))
        weighing = {
            name: std**-2 if name in voting else torch.zeros_like(std)
            for name, std in gaussian.std.items()
        }
        to = Marginals(
            {name: mean * weighing[name] for name, mean in gaussian.mean.items()},
            {name: -weights / 2 for name, weights in weighing.items()},
        )
        changed = 0
        for k, aligned in enumerate(moved(group, now, members)):
            double = {name: w.double() for name, w in aligned.items()}
            own = Marginals(double, {name: w.square() for name, w in double.items()})
            found = solve_gaussians(by, group, own, to, generator=generator).element
            if _density(group.act(found, double), to) > _density(double, to) + _PRECISION:
                elements[k] = group.compose(elements[k], found)
                changed += 1
        if not changed:
            return Places(tuple(elements), places.rounds + number + 1, places.settled)
    return Places(tuple(elements), places.rounds + rounds, False)


def _density(weights: Weights, to: Marginals) -> float:
    """The log-density without constants."""
    return sum(
        float((weights[name] * mean + weights[name].square() * to.std[name]).sum())
        for name, mean in to.mean.items()
    )


def _marginals(samples: Iterable[Weights]) -> Marginals:
    """Means and floored standard deviations of samples read one at a time, in double precision."""
    moments: Moments | None = None
    layout: Layout | None = None
    for sample in samples:
        layout = layout or Layout.of(sample)
        flat = layout.flatten(sample).double().unsqueeze(0)
        moments = (Moments.none(flat) if moments is None else moments).including(flat)
    assert moments is not None, "the caller has counted the samples"
    assert layout is not None
    variance = moments.squares[0] / (moments.count - 1)
    std = variance.clamp_min(_FLOOR * float(variance.mean())).sqrt()
    return Marginals(layout.unflatten(moments.mean[0]), layout.unflatten(std))


def moved(group: SymmetryGroup, places: Places, members: Sequence[Weights]) -> Iterator[Weights]:
    """The samples in their places, one at a time."""
    for k, element in enumerate(places.elements):
        yield group.act(element, members[k])


def switches_along(group: SymmetryGroup, places: Places, chains: int = 1) -> Int[Tensor, "m s"]:
    """How many units have changed places from each sample to the next, one row a chain.

    Samples come chain after chain, as many of each; from one chain to the next nothing is counted.
    """
    length = len(places.elements) // chains
    rows = [places.elements[k * length : (k + 1) * length] for k in range(chains)]
    return torch.tensor(
        [
            [_transpositions(group.compose(a, group.inverse(b))) for a, b in pairwise(row)]
            for row in rows
        ],
        dtype=torch.long,
    )


def label_switches(group: SymmetryGroup, places: Places, chains: int = 1) -> dict[str, float]:
    """Mean numbers of transpositions: to the reference, and along the chains."""
    away = torch.tensor([_transpositions(element) for element in places.elements])
    along = switches_along(group, places, chains)
    return {
        "transpositions": float(away.double().mean()),
        "transpositions_between_neighbours": float(along.double().mean()) if along.numel() else 0.0,
    }


def _transpositions(element: Element) -> int:
    return int(sum(transpositions_of(element.permutations).values()))


def _member(element: Element, k: int) -> Element:
    return Element(
        {name: table[k] for name, table in element.permutations.items()},
        {name: table[k] for name, table in element.scales.items()},
    )


def streamed(samples: Iterable[Weights], layout: Layout, report: FitReport) -> LowRankGaussian:
    """The diagonal Gaussian of samples read one at a time: Welford's mean and squares."""
    moments: Moments | None = None
    for sample in samples:
        flat = layout.flatten(sample).unsqueeze(0)
        moments = (Moments.none(flat) if moments is None else moments).including(flat)
    assert moments is not None, "the caller has counted the samples"
    std = (moments.squares[0] / (moments.count - 1)).sqrt()
    return LowRankGaussian(layout.unflatten(moments.mean[0]), layout.unflatten(std), report=report)


def diagonal(samples: Weights, fixed: Weights, report: FitReport) -> LowRankGaussian:
    """Means and standard deviations (with ``S - 1``) of each weight."""
    return LowRankGaussian(
        {name: tensor.mean(0) for name, tensor in samples.items()},
        {name: tensor.std(0) for name, tensor in samples.items()},
        fixed=fixed,
        report=report,
    )


def low_rank(samples: Weights, rank: int, fixed: Weights, report: FitReport) -> LowRankGaussian:
    """The leading directions of the sample covariance, and what they leave on its diagonal.

    With as many directions as samples this is the Gaussian of the sample covariance.
    """
    names = tuple(samples)
    layout = Layout(names, tuple(tuple(samples[name].shape[1:]) for name in names))
    flat = layout.flatten(samples).double()
    mean = flat.mean(0)
    centred = (flat - mean) / (len(flat) - 1) ** 0.5
    _, vectors = torch.linalg.eigh(centred @ centred.T)  # S × S, however many weights
    kept = vectors[:, -min(rank, len(flat) - 1) :]
    factors = kept.T @ centred
    rest = (centred.square().sum(0) - factors.square().sum(0)).clamp_min(0)
    like = samples[names[0]]

    def shaped(values: Tensor) -> Weights:
        return layout.unflatten(values.to(like.dtype))

    return LowRankGaussian(shaped(mean), shaped(rest.sqrt()), shaped(factors), fixed, report)


def unit_blocks(samples: Weights, fixed: Weights, report: FitReport) -> UnitBlocks:
    """A sample covariance for the weights and the bias of each unit, independent between units."""
    means = {name: tensor.mean(0) for name, tensor in samples.items()}
    scale = (len(next(iter(samples.values()))) - 1) ** 0.5
    deviations = {name: (tensor - means[name]) / scale for name, tensor in samples.items()}
    return UnitBlocks(means, deviations, fixed, report)
