"""What ``coset align`` prints of a match."""

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from coset.alignment.barrier import barrier
from coset.alignment.match import measured_between
from coset.alignment.result import Match
from coset.alignment.transpositions import expected_transpositions
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


def show_match(group: SymmetryGroup, one: Weights, other: Weights, result: Match) -> None:
    """Distance and objective before and after, and how far each factor was moved."""
    before = measured_between(group, other, one)
    table = Table(box=None, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {
        "distance": (before.squared_distance**0.5, result.squared_distance**0.5),
        "objective": (before.objective, result.objective),
    }
    for name, (first, second) in rows.items():
        table.add_row(name, f"{first:.6g}", f"{second:.6g}")
    console = Console(soft_wrap=True)
    console.print(table)
    moved = Table(box=None, pad_edge=False)
    for column in ("factor", "units", "transpositions", "random"):
        moved.add_column(column, justify="left" if column == "factor" else "right", no_wrap=True)
    counts = result.transpositions_of
    for factor in group.permutations:
        copies = group.tables.copies(factor)
        chance = copies * expected_transpositions(factor.size)
        units = f"{copies}×{factor.size}" if copies > 1 else f"{factor.size}"
        moved.add_row(factor.name, units, str(counts[factor.name]), f"{chance:.1f}")
    console.print(moved)
    ties = f", {result.ties} tied units" if result.ties else ""
    console.print(f"{result.transpositions} transpositions in all{ties}")


def barrier_lines(
    module: nn.Module,
    one: Weights,
    other: Weights,
    result: Match,
    examples: tuple[Tensor, Tensor],
    *,
    points: int,
    reset_norm: bool,
    repair: bool,
) -> list[str]:
    """Lines that tell of the barrier before and after."""
    before, after = (
        barrier(
            module,
            one,
            weights,
            examples,
            points=points,
            reset_norm=reset_norm,
            repair=repair,
        )
        for weights in (other, result.weights)
    )
    return [
        f"barrier of the loss: {before.height:.4f} before, {after.height:.4f} after",
        f"barrier of the error: {before.error_height:.4f} before, {after.error_height:.4f} after",
    ]
