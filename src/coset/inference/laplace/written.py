"""Steps of a fit that are written down, so that a long one goes on where it stopped.

Each is a pass over the data or a search for a mode; what lies between them is quick and is computed
again.  A long pass is made in stretches of rows, whose sums are written down one by one.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from coset.bayes.batches import Batches
from coset.curvature.kfac import KFAC
from coset.curvature.measure import Curvature, Measured
from coset.curvature.sampled import MonteCarloFisher, plain
from coset.curvature.subspace import Span
from coset.curvature.tangent import Point
from coset.inference.passes import stretches
from coset.inference.run_record import Steps
from coset.linalg import BlockDiagonal, Kronecker, LinearOperator


def written_measured(steps: Steps, measure: Callable[[], Measured]) -> Measured:
    """A curvature as a step of its own."""
    if not steps.are_written:
        return measure()

    def found() -> tuple[LinearOperator, tuple[tuple[str, ...], ...], tuple[str, ...]]:
        measured = measure()
        return measured.operator, measured.layers, measured.notes

    return Measured(*steps.kept(found))


def written_point(steps: Steps, find: Callable[[], Point]) -> Point:
    """A value of the weights as a step of its own."""
    if not steps.are_written:
        return find()

    def found() -> tuple[Tensor, Tensor, bool]:
        point = find()
        return point.flat, point.outputs, point.converged

    return Point(*steps.kept(found))


def written_span(steps: Steps, search: Callable[[], Span]) -> Span:
    """A search for a mode as a step of its own."""
    if not steps.are_written:
        return search()

    def found() -> tuple[Tensor, Tensor, bool, Tensor, Tensor, Tensor]:
        span = search()
        base = span.base
        return base.flat, base.outputs, base.converged, span.directions, span.changes, span.place

    flat, outputs, converged, directions, changes, place = steps.kept(found)
    return Span(Point(flat, outputs, converged), directions, changes, place)


def is_corrected(curvature: Curvature) -> bool:
    """Whether what is measured anew is the diagonal in a known eigenbasis, a sum over rows."""
    structure = plain(curvature)
    return isinstance(structure, KFAC) and structure.corrected


def measured_in_stretches(
    steps: Steps,
    count: int,
    train: Batches,
    curvature: Curvature,
    previous: Measured,
    measure: Callable[[Batches, slice, Curvature], Measured],
) -> Measured:
    """The diagonal in the eigenbasis of ``previous``, from so many stretches of the rows.

    Args:
        steps: Where each is written down.
        count: How many.
        train: All rows.
        curvature: Kronecker factors with their correction, sampled or not.
        previous: The eigenbasis.
        measure: Given a stretch, which rows these are, and what is measured there.
    """
    total: list[Tensor] = []
    notes: tuple[str, ...] = ()
    begin = 0
    for number, part in enumerate(stretches(train, count)):
        recipe, rows = curvature, slice(begin, begin + part.size)
        if isinstance(curvature, MonteCarloFisher):  # an odd seed is that of a second look
            recipe = replace(curvature, seed=curvature.seed + 2 * number)

        def found(
            part: Batches = part, rows: slice = rows, recipe: Curvature = recipe
        ) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
            measured = measure(part, rows, recipe)
            return tuple(block.table for block in _blocks(measured)), measured.notes

        tables, notes = steps.kept(found)
        total = [a + b for a, b in zip(total, tables, strict=True)] if total else [*tables]
        begin += part.size
    assert isinstance(previous.operator, BlockDiagonal)
    blocks = [replace(b, table=t) for b, t in zip(_blocks(previous), total, strict=True)]
    return Measured(
        BlockDiagonal(tuple(blocks), previous.operator.order), previous.layers, tuple(notes)
    )


def _blocks(measured: Measured) -> list[Kronecker]:
    assert isinstance(measured.operator, BlockDiagonal)
    found = [block for block in measured.operator.blocks if isinstance(block, Kronecker)]
    assert len(found) == len(measured.operator.blocks), "all blocks of KFAC are products"
    return found
