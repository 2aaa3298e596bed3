"""The table of posterior quality of Laurent et al. 2024, in the poster's units."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from coset.errors import CosetError, require_kind
from coset.inference.folding import fold_masks
from coset.metrics.catalogue import Metric
from coset.metrics.collection import Data, batches
from coset.metrics.discrepancy import stack_discrepancies
from coset.metrics.diversity import mutual_information
from coset.metrics.evaluation import evaluate
from coset.posterior.families import Finite, Mixture, Posterior
from coset.posterior.linearised import Linearised
from coset.posterior.links import SampledSoftmax
from coset.posterior.random_masks import RandomMasks
from coset.predictor import Predictor
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonicalise
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout
from coset.weights.stacking import check_fit, members_of

_EXAMPLES = 8
"""Test inputs on which it is checked that masks became part of the weights."""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        title: As on the poster.
        unit: What a raw value is multiplied with.
        best: Whether small or large values are good.
    """

    title: str
    unit: float
    best: Literal["low", "high"]


COLUMNS = {
    "maximum_mean_discrepancy": Column("MMD", 10, "low"),
    "canonical_mean_discrepancy": Column("NS", 10, "low"),
    "accuracy": Column("Acc", 100, "high"),
    "expected_calibration_error": Column("ECE", 100, "low"),
    "classwise_calibration_error": Column("ACE", 1000, "low"),
    "brier": Column("Brier", 100, "low"),
    "aupr": Column("AUPR", 100, "high"),
    "fpr_at_95": Column("FPR95", 100, "low"),
    "mutual_information": Column("IDMI", 100, "low"),
    "outlier_mutual_information": Column("OODMI", 100, "high"),
}
"""The ten columns by the name of their raw value: squared MMD in tenths, accuracy, ECE, Brier, AUPR
and FPR95 in per cent, the class-wise adaptive calibration error in per mille, mutual information in
hundredths of a nat."""

PREDICTED: tuple[str | Metric, ...] = (
    "accuracy",
    "expected_calibration_error",
    "classwise_calibration_error",
    "brier",
    "aupr",
    "fpr_at_95",
)
"""What is computed from mean predictions, those of the outliers included, in one pass."""

DIVERSE: tuple[str | Metric, ...] = (
    "mutual_information",
    Metric(
        "outlier_mutual_information",
        mutual_information,
        ("outlier_members", "outlier_log_weights"),
        "high",
        mutual_information,
    ),
)
"""What is computed from the predictions of members."""


def posterior_quality_table(
    posteriors: Mapping[str, Predictor],
    reference: Weights | Posterior,
    test: Data,
    outliers: Data,
    *,
    group: SymmetryGroup | None = None,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> dict[str, dict[str, float]]:
    """One row a posterior, ten columns: distance to a reference, calibration, detection, diversity.

    MMD compares draws of the parameters with the reference's, NS the same after ``canonicalise``
    has removed the symmetries of both; parameters that a posterior leaves alone take part with the
    network's own values.  Masks of dropout become part of the weights that read what they drop,
    which is the posterior over weights that dropout stands for; where they cannot (dropout of
    attention, say), both distances are NaN.

    Args:
        posteriors: Predictors by the name of their row.
        reference: What counts as the true posterior: a stack of independently trained networks, or
            a posterior to draw from.
        test: Classification data, as for ``evaluate``.
        outliers: Out-of-distribution inputs.
        group: The symmetries of the network, from ``discover``; without it NS is NaN.
        draws: Samples of a posterior that is not a finite set of members.
        generator: For the samples; the seed is 0 without one.

    Returns:
        The rows, by the titles of ``COLUMNS``, in its units.
    """
    require_kind(Mapping, posteriors=posteriors)
    require_kind(Mapping | Posterior, reference=reference)
    require_kind(SymmetryGroup | None, group=group)
    for name, predictor in posteriors.items():
        require_kind(Predictor, **{str(name): predictor})
    if not posteriors:
        raise CosetError("got no posteriors", "needed at least one", "pass {name: predictor}")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    first = next(iter(posteriors.values()))
    few = take_rows(next(batches(test, first.network.module))[0], slice(_EXAMPLES))
    target = _drawn(reference, first, draws, generator, few)
    if target is None:
        raise CosetError(
            "got a reference with dropout that cannot become part of its weights",
            "needed draws that are one setting of the weights each",
            "give another posterior, or a stack of trained networks",
        )
    canonical_target = target if group is None else canonicalise(group, target)
    table = {}
    for name, predictor in posteriors.items():
        samples = _drawn(predictor.posterior, predictor, draws, generator, few)
        layout = predictor.network.layout
        raw = dict.fromkeys(("maximum_mean_discrepancy", "canonical_mean_discrepancy"), math.nan)
        if samples is not None:
            raw["maximum_mean_discrepancy"] = _distance(samples, target, layout)
        if samples is not None and group is not None:
            canonical = canonicalise(group, samples)
            raw["canonical_mean_discrepancy"] = _distance(canonical, canonical_target, layout)
        raw |= _predicted(predictor, test, outliers)
        table[name] = {column.title: column.unit * raw[key] for key, column in COLUMNS.items()}
    return table


def _predicted(predictor: Predictor, test: Data, outliers: Data) -> dict[str, float]:
    """What predictions show; a closed form is drawn from once more to see how members differ."""
    rule = predictor.rule
    if isinstance(rule, Linearised) and not isinstance(rule.link, SampledSoftmax):
        drawn = replace(predictor, rule=Linearised(SampledSoftmax()))
        found = evaluate(predictor, test, outliers=outliers, metrics=PREDICTED)
        return found | evaluate(drawn, test, outliers=outliers, metrics=DIVERSE)
    return evaluate(predictor, test, outliers=outliers, metrics=PREDICTED + DIVERSE)


def _drawn(
    posterior: Weights | Posterior,
    predictor: Predictor,
    draws: int,
    generator: torch.Generator,
    inputs: Inputs,
) -> Weights | None:
    """All members of a finite posterior, else draws, completed by the network's own tensors.

    ``None`` where masks of dropout cannot become part of the weights.
    """
    if isinstance(posterior, dict):
        members = posterior
    elif isinstance(posterior, Finite) and posterior.log_weights.unique().numel() == 1:
        members = posterior.members
    else:
        members = _shared_masks(posterior).sample(draws, generator=generator)
    own = predictor.network.weights
    if any(name not in own for name in members):
        try:
            members = fold_masks(predictor.network, members, inputs)
        except CosetError:
            return None
    check_fit({name: tensor[0] for name, tensor in members.items()}, own, partial=True)
    if members_of(members) == 1:
        # The unbiased estimate compares pairs; a point twice is the same point.
        members = {name: torch.cat([tensor, tensor]) for name, tensor in members.items()}
    count = members_of(members)
    return {
        name: members[name] if name in members else tensor.expand(count, *tensor.shape)
        for name, tensor in own.items()
    }


def _shared_masks(posterior: Posterior) -> Posterior:
    """Dropout with one mask for all rows: each row by itself sees the same law of weights."""
    if isinstance(posterior, RandomMasks):
        return replace(posterior, per_example=False)
    if isinstance(posterior, Mixture):
        return replace(posterior, components=tuple(map(_shared_masks, posterior.components)))
    return posterior


def _distance(samples: Weights, reference: Weights, layout: Layout) -> float:
    """The largest squared MMD over the parameters; buffers follow from them."""
    return float(stack_discrepancies(layout.restrict(samples), layout.restrict(reference)).largest)
