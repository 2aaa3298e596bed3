"""More data for a fitted Gaussian posterior, without the old data.

The old posterior ``N(θ₀, P⁻¹)`` is the prior of the new data.  In the tangent model at ``θ₀`` the
new mode minimises ``-log p(y | h(θ)) + ½ (θ - θ₀)ᵀ P (θ - θ₀)``, and the new precision is ``P + H``
with the curvature ``H`` of the new data there.
"""

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.curvature.capture import Recorded
from coset.curvature.maps import outer
from coset.curvature.measure import has_order, recordings, squares
from coset.curvature.structures import DiagonalOnly, Full, weighted_rows
from coset.curvature.tangent import Point, Quadratic, Tangent, tangent_of
from coset.errors import CosetError
from coset.inference.laplace.part import Columns
from coset.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Embedded,
    Kronecker,
    LinearOperator,
    LowRankPlusDiagonal,
    RowBlocks,
    cast,
    inverse,
    logdet,
)
from coset.posterior.gaussian import Gaussian, stored
from coset.vocabulary import Weights

NewMean = Literal["moved", "kept"]

_STEPS, _ITERATIONS = 20, 200
"""Newton steps, and conjugate gradients in each, at most."""

_HALVES = 10
"""How often the way to the mode is halved at most."""


@torch.no_grad()
def add_data(posterior: Gaussian, problem: Problem, *, mean: NewMean = "moved") -> Gaussian:
    """The posterior after some more data.

    Exact for the tangent model where the covariance is full.  A Kronecker covariance keeps its
    eigenvectors and adds the exact second moments of the new gradients along them; a diagonal one
    adds the diagonal.

    Args:
        posterior: Of the data so far.
        problem: Network, likelihood and the new data; its prior is not used.
        mean: ``"moved"``: to the new mode, or as far as the network itself gains; ``"kept"``: only
            the covariance learns.
    """
    if mean not in ("moved", "kept"):
        raise CosetError(f"got mean={mean!r}", "needed 'moved' or 'kept'")
    covariance = posterior.covariance
    inner = covariance.inner if isinstance(covariance, Embedded) else covariance
    before = inverse(cast(inner, torch.float64))
    tangent = _tangent(posterior, problem)
    start = tangent.start("full")
    point = start
    if mean == "moved":
        point = tangent.find_mode(
            Quadratic(before, start.flat),
            start=start,
            preconditioner=cast(inner, start.flat.dtype),
            steps=_STEPS,
            iterations=_ITERATIONS,
        )
    after = _added(before, posterior, problem, point.outputs)
    gain = _log_evidence(tangent, point, start, before, after)
    updated = stored(inverse(after), start.flat.dtype)
    if isinstance(covariance, Embedded):
        updated = replace(covariance, inner=updated)
    flat = posterior.layout.flatten(posterior.mean)
    if mean == "moved":
        flat = flat + _step_of_the_network(posterior, problem, point.flat - start.flat, before)
    report = posterior.report
    if report.log_evidence is not None:
        known = _STRUCTURES.get(type(before), report.evidence_curvature)
        evidence = report.log_evidence + gain
        report = replace(report, log_evidence=evidence, evidence_curvature=known)
    return replace(
        posterior, mean=posterior.layout.unflatten(flat), covariance=updated, report=report
    )


_STRUCTURES: dict[type, str] = {BlockDiagonal: "KFAC", Diagonal: "DiagonalOnly"}
"""The curvature that a precision of some structure takes up."""


def _tangent(posterior: Gaussian, problem: Problem) -> Tangent:
    weights, layout = posterior.centre(problem.network), posterior.layout
    if isinstance(posterior.covariance, Embedded):
        return Columns(layout, posterior.covariance.index, Full()).tangent(problem, weights)
    return tangent_of(problem, weights, layout)


def _step_of_the_network(
    posterior: Gaussian, problem: Problem, step: Float[Tensor, " p"], precision: LinearOperator
) -> Float[Tensor, " p"]:
    """The step to the mode of the tangent model, halved while that helps the network.

    A network is its tangent close by only, and a whole step may lead where it fits neither the
    old data nor the new.
    """
    layout, covariance = posterior.layout, posterior.covariance
    centre, start = posterior.centre(problem.network), layout.flatten(posterior.mean)
    wide = step.double().unsqueeze(1)
    penalty = float((wide * precision.matmat(wide)).sum()) / 2
    whole = covariance.widen(step) if isinstance(covariance, Embedded) else step

    def cost(length: float) -> float:
        weights = {**centre, **layout.unflatten(start + length * whole)}
        fits = (
            problem.likelihood.log_prob(problem.network.apply(weights, x).double(), y).sum()
            for x, y in problem.train
        )
        return length**2 * penalty - float(sum(fits))

    length, value = 1.0, cost(1.0)
    for _ in range(_HALVES):
        shorter = cost(length / 2)
        if not shorter < value and math.isfinite(value):
            break
        length, value = length / 2, shorter
    return (length if value < cost(0.0) else 0.0) * whole


def _log_evidence(
    tangent: Tangent, point: Point, start: Point, before: LinearOperator, after: LinearOperator
) -> float:
    """``log p(new data | old data)``, as Laplace sees it."""
    moved = (point.flat - start.flat).double().unsqueeze(1)
    fit = float(tangent.log_likelihood(point.outputs.double()))
    penalty = float((moved * before.matmat(moved)).sum()) / 2
    return fit - penalty - float(logdet(after) - logdet(before)) / 2


def _added(
    precision: LinearOperator, posterior: Gaussian, problem: Problem, outputs: Tensor
) -> LinearOperator:
    """The precision plus the curvature of the new data, in the same structure."""
    weights, layout = posterior.centre(problem.network), posterior.layout
    covariance = posterior.covariance
    index = covariance.index if isinstance(covariance, Embedded) else None
    if isinstance(precision, Diagonal):
        built = DiagonalOnly().build(problem, weights, layout, outputs=outputs).operator
        assert isinstance(built, Diagonal)
        return Diagonal(precision.entries + built.entries)
    if isinstance(precision, BlockDiagonal):
        return _added_blocks(precision, posterior, problem, weights, outputs)
    rows = [part.double() for part in weighted_rows(problem, weights, layout, outputs, index)]
    if isinstance(precision, LowRankPlusDiagonal) and precision.sign > 0:
        factor = torch.cat([precision.factor, *(part.mT for part in rows)], dim=1)
        if factor.shape[1] < factor.shape[0]:
            return LowRankPlusDiagonal(precision.entries, factor)
        return Dense(torch.diag(precision.entries) + factor @ factor.mT)
    if isinstance(precision, Dense):
        matrix = precision.matrix.clone()
        for part in rows:
            matrix += part.mT @ part
        return Dense(matrix)
    raise CosetError(
        f"got a covariance of type {type(covariance).__name__}",
        "needed a full, Kronecker, diagonal or low-rank one",
        "fit again with all data",
    )


def _added_blocks(
    precision: BlockDiagonal,
    posterior: Gaussian,
    problem: Problem,
    weights: Weights,
    outputs: Tensor,
) -> BlockDiagonal:
    """Layer by layer, along the eigenvectors of the old precision."""
    blocks = dict(zip(posterior.layers, precision.blocks, strict=True))
    separate = frozenset(names[0] for names in posterior.layers if len(names) == 1)
    for recorded, _, columns in recordings(problem, weights, posterior.layout, outputs, separate):
        if not has_order(recorded, posterior.layout, posterior.layers, precision.order):
            raise CosetError(
                "got a posterior whose blocks list the weights in another order",
                "needed one that this version fitted",
                "fit it again",
            )
        for column in columns:
            blocks = _with_column(blocks, recorded, column)
    return BlockDiagonal(tuple(blocks[names] for names in posterior.layers), precision.order)


def _with_column(
    blocks: dict[tuple[str, ...], LinearOperator], recorded: Recorded, column: Tensor
) -> dict[tuple[str, ...], LinearOperator]:
    found: dict[tuple[str, ...], LinearOperator] = {}
    for names, (left, right) in recorded.pairs(column).items():
        block = blocks[names]
        if isinstance(block, Kronecker):
            turned = (left @ block.left.to(left.dtype), right @ block.right.to(right.dtype))
            found[names] = replace(block, table=block.table + squares(turned).double())
        else:
            assert isinstance(block, RowBlocks)
            gradients = outer(left, right @ block.right.to(right.dtype)).double()  # n b o i
            found[names] = RowBlocks(
                block.right, block.middle + torch.einsum("nboi,nbpi->biop", gradients, gradients)
            )
    return {**blocks, **found}
