"""Samples made alike by symmetries, and Gaussians fitted to them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from coset.alignment.match import By, match
from coset.alignment.result import transpositions_of
from coset.inference.adaptation import Moments
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.unit_blocks import UnitBlocks
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Progress, Weights
from coset.weights.layout import Layout
from coset.weights.stacking import stack, unstack


@dataclass(frozen=True)
class Aligned:
    """Samples after alignment.

    Attributes:
        weights: The samples, as a stack.
        elements: What was done to each; empty where nothing was.
        rounds: How many times all were matched.
        settled: Whether the last round changed no permutation any more.
    """

    weights: Weights
    elements: tuple[Element, ...] = ()
    rounds: int = 0
    settled: bool = True


def unaligned(samples: Weights) -> Aligned:
    """The samples as they are."""
    return Aligned(samples)


def align(
    group: SymmetryGroup,
    samples: Weights,
    *,
    by: By,
    to_mean: bool,
    rounds: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Aligned:
    """Matches all samples to the first, or in turns to their mean until nothing moves.

    Each round can only lower the spread ``Σ |w_i - mean|²``: the mean is the best centre, and the
    best match the best place of a sample (when the matching finds it).
    """
    members = unstack(samples)
    centre = members[0]
    elements: list[Element] = []
    most = rounds if to_mean else 1
    for number in range(most):
        matched = []
        for index, member in enumerate(members):
            matched.append(match(group, member, to=centre, by=by, generator=generator))
            if progress is not None:
                done = (number + (index + 1) / len(members)) / most
                progress(done, f"round {number + 1}, sample {index + 1} of {len(members)}")
        before, elements = elements, [result.element for result in matched]
        aligned = stack([result.weights for result in matched])
        still = bool(before) and all(map(_same, before, elements))
        if still or not to_mean:
            return Aligned(aligned, tuple(elements), number + 1)
        centre = {name: tensor.mean(0) for name, tensor in aligned.items()}
    return Aligned(aligned, tuple(elements), most, settled=False)


def _same(one: Element, other: Element) -> bool:
    return all(
        torch.equal(table, other.permutations[name]) for name, table in one.permutations.items()
    )


def label_switches(group: SymmetryGroup, aligned: Aligned) -> dict[str, float]:
    """Mean numbers of transpositions: to the reference, and from one sample to the next.

    Along a chain the second counts how many units have changed places between two states.
    """
    elements = aligned.elements
    steps = [group.compose(first, group.inverse(second)) for first, second in pairwise(elements)]
    return {
        "transpositions": _mean_transpositions(elements),
        "transpositions_between_neighbours": _mean_transpositions(steps),
    }


def _mean_transpositions(elements: Iterable[Element]) -> float:
    counts = [sum(transpositions_of(element.permutations).values()) for element in elements]
    return sum(counts) / max(1, len(counts))


@dataclass(frozen=True)
class Streamed:
    """Moments of aligned samples that were read one at a time."""

    moments: Moments
    elements: tuple[Element, ...]
    rounds: int
    settled: bool


def stream(
    group: SymmetryGroup,
    source: Callable[[], Iterable[Weights]],
    layout: Layout,
    *,
    by: By,
    to_mean: bool,
    rounds: int,
    generator: torch.Generator,
) -> Streamed:
    """As :func:`align`, with one sample in memory: mean and squares are Welford's.

    ``source`` is called once a round and gives the same samples in the same order every time.
    """
    centre: Weights = next(iter(source()))
    elements: list[Element] = []
    most = rounds if to_mean else 1
    for number in range(most):
        before, elements = elements, []
        moments = Moments.none(layout.flatten(centre).unsqueeze(0))
        for sample in source():
            result = match(group, sample, to=centre, by=by, generator=generator)
            moments = moments.including(layout.flatten(result.weights).unsqueeze(0))
            elements.append(result.element)
        still = bool(before) and all(map(_same, before, elements))
        if still or not to_mean:
            return Streamed(moments, tuple(elements), number + 1, settled=True)
        # statistics that only come along, such as those of batch norm, stay the first sample's
        centre = centre | layout.unflatten(moments.mean[0])
    return Streamed(moments, tuple(elements), most, settled=False)


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
