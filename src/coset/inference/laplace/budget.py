"""How much work a fit may do, and on how many rows it seeks mode and precisions.

Work is counted in forward passes of the network on single rows, and that of one forward pass in
multiplications: the same on every machine, so that equal seeds give equal numbers.  No clock and no
load is looked at.

Mode and precisions take about a hundred forward passes a row, the curvature and the evidence at the
end about ten.  Precisions say how large weights are, which some rows tell as well as all; the
curvature grows with every row.  So where there are too many rows for the budget, mode and
precisions are found on some of them, drawn without replacement, and one pass over all rows measures
the curvature there through a few random columns of the output Hessian.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from coset.bayes.batches import InMemory
from coset.bayes.defaults import has_constant_curvature
from coset.bayes.problem import Problem
from coset.curvature.capture import record
from coset.curvature.columns import column_count
from coset.curvature.kfac import KFAC
from coset.curvature.measure import Curvature, blocks_of
from coset.curvature.sampled import MonteCarloFisher, plain
from coset.curvature.tangent import Tangent
from coset.inference.laplace.by_evidence import ByEvidence
from coset.printing import several
from coset.vocabulary import Weights
from coset.weights.inputs import take_rows
from coset.weights.layout import Layout

EPOCHS = 4.0
"""Epochs of training that a fit may cost unless told otherwise."""

EPOCH = 3.0
"""Forward passes of an epoch of training: a gradient is a run and twice as much again."""

FLOOR = 3e11
"""Multiplications that a fit may always take, some 15 to 30 seconds of one core."""

_PRODUCT = 2.0
"""Forward passes of a product with ``J`` or ``Jᵀ``, beside the run itself."""

_TOLD_PRODUCT, _OUTPUTS = 3.5, 0.09
"""The same as a clock has it, for the time left; and the largest share of outputs in that."""

_COLUMN, _CORRECTED = 2.0, 3.0
"""Forward passes of one column sent back: for the Kronecker factors, and along their axes."""

LAYER = 2.0
"""Forward passes of the last layer alone: what it reads, and as much again for all else."""

LEAST = 7.0
"""Forward passes of the least that all layers can have: outputs and their change, one column back,
and mode and precisions on a hundredth of the rows."""

_DIRECTIONS = 16
"""Directions in which a mode is sought, in all steps of tuning, as they are usual."""

_AHEAD = 5.0
"""Forward passes of one direction towards the mode where runs are not kept."""

_MOST_AHEAD = 3
"""Of such directions at most."""

_SHARE = 0.01
"""Share of the rows on which mode and precisions are found before there are such directions."""

STRETCH = 3e12
"""Multiplications after which a long pass is written down, a minute or two of one core."""

_EIGEN = 3.0
"""Multiplications of a decomposition into eigenvectors, times the third power of its size."""

_LAYER_PASSES, _LEAST_EACH = 130, 25_000
"""Passes over a last layer by itself, and the multiplications that one takes as long as at least,
on a row: what is as small as that spends its time elsewhere."""

_ROUGH, _DRAWS = 3, 2
"""Looks at the curvature at the mode on the way, and their random columns."""


@dataclass(frozen=True)
class Plan:
    """What a fit does with its budget.

    Attributes:
        size: Rows that there are.
        rows: Rows on which mode and precisions are found.
        columns: Random columns in the pass over all rows; ``None``: the curvature as it is.
        directions: In which the mode of all rows is sought, from that of some.
        passes: Counted work, in forward passes over all rows; zero where it is not counted.
        last: That of the pass over all rows.

    >>> Plan(size=60000, rows=60000).is_whole, Plan(size=60000, rows=2000).is_whole
    (True, False)
    """

    size: int
    rows: int
    columns: int | None = None
    directions: int = 0
    passes: float = 0.0
    last: float = 0.0
    memory: int = 1 << 30
    because: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether everything is found on all rows."""
        return self.rows >= self.size

    @property
    def ahead(self) -> float:
        """Forward passes of a row, by a clock, while the mode of all rows is sought."""
        return self.directions * _AHEAD * _TOLD_PRODUCT / _PRODUCT

    @property
    def diagnostics(self) -> dict[str, float]:
        """Rows and work, for the report."""
        found = {"rows": float(self.size), "tuning_rows": float(self.rows)}
        return found | ({"passes": self.passes} if self.passes else {})

    @property
    def choice(self) -> str:
        """What was chosen, where it is not everything on all rows."""
        if self.is_whole:
            return self.because
        columns = (
            "" if self.columns is None else f" through {several(self.columns, 'random column')}"
        )
        return (
            f"mode and precisions from {self.rows:,} of {self.size:,} rows, curvature from all"
            f"{columns}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know."""
        if self.is_whole:
            return ()
        told = "log_evidence is an estimate for all rows; Laplace(effort=…) spends more"
        return (f"{self.choice}: {told}",)

    def last_curvature(self, curvature: Curvature) -> Curvature:
        """What is measured in the pass over all rows."""
        return curvature if self.columns is None else MonteCarloFisher(curvature, self.columns)


@dataclass(frozen=True)
class Work:
    """Forward passes of a row.

    Attributes:
        moving: Whether a mode is sought.
        tuning: Where mode and precisions are found on it.
        last: Where only the last curvature and the evidence are.
        column: Of each random column more of that curvature.
        columns: Columns of the last curvature where all are taken.
        each: Multiplications of one.
    """

    moving: bool
    tuning: float
    last: float
    column: float
    columns: int
    each: int

    @staticmethod
    def of(problem: Problem, curvature: Curvature, settings: ByEvidence) -> "Work":
        """Counts the passes of a fit.

        Args:
            problem: Network, likelihood and data.
            curvature: As it was asked for.
            settings: Without ``"auto"``.
        """
        columns = columns_of(problem, curvature)
        structure = plain(curvature)
        corrected = isinstance(structure, KFAC) and structure.corrected
        each = _CORRECTED if corrected else _COLUMN
        moving = settings.mean != "network"
        run = 1 + columns * _COLUMN
        tuning = 1 + run + (2 * _PRODUCT * _DIRECTIONS if moving else 0.0)
        outputs, targets = problem.first_outputs(problem.network.weights)
        gaussian = has_constant_curvature(problem.likelihood, outputs, targets)
        if settings.hessian == "tangent" and not gaussian:
            tuning += _ROUGH * (1 + min(columns, _DRAWS) * each)
        elif corrected:
            tuning += 1 + columns * each
        last = 1 + _PRODUCT  # the run that the columns go back through; outputs and one product
        moving = settings.mean == "tangent"
        return Work(moving, tuning, last, each, columns, multiplications(problem))

    @property
    def first(self) -> float:
        """Of a row whose curvature is measured first, through all columns."""
        return 2 + self.columns * _COLUMN

    def look(self, columns: int | None = None) -> float:
        """Of a row whose curvature is measured again, through so many columns or all."""
        return 1 + (self.columns if columns is None else min(columns, self.columns)) * self.column

    def outputs(self, weights: int, plan: "Plan") -> float:
        """Share of all work that goes into outputs, and into a Jacobian where that is kept."""
        kept = 4 * plan.rows * self.columns * weights <= plan.memory // 4
        cost = plan.rows * (1 + kept * self.columns * _COLUMN)
        search = 2 * _DIRECTIONS * self.columns * weights / self.each
        return min(cost / (plan.passes * plan.size + kept * plan.rows * search), _OUTPUTS)

    def search(self, tangent: Tangent, directions: int) -> float:
        """Of a row while a mode is sought in so many directions.

        Two products with a Jacobian each, or with its matrix where that is kept; a small matrix is
        factorised, about as often.
        """
        matrix, rows = tangent.jacobian.matrix, len(tangent.targets)
        if matrix is None:
            return 2 * _TOLD_PRODUCT * directions
        products = min(matrix.shape) if tangent.is_small else 2
        return directions * products * matrix.numel() / (rows * self.each)

    @property
    def whole(self) -> float:
        """Of a row where everything is found on it."""
        return self.tuning + 1 + self.columns * self.column


def untuned_passes(problem: Problem, curvature: Curvature) -> float:
    """Forward passes of a curvature alone, and of the likelihood."""
    columns, structure = columns_of(problem, curvature), plain(curvature)
    corrected = isinstance(structure, KFAC) and structure.corrected
    return 2 + columns * _COLUMN + corrected * (1 + columns * _CORRECTED)


def columns_of(problem: Problem, curvature: Curvature) -> int:
    """Columns of the output Hessian's root that a curvature sends back for each row."""
    if isinstance(curvature, MonteCarloFisher):
        return curvature.draws
    count, structure = column_count(problem.likelihood, problem.one_output()), plain(curvature)
    most = structure.columns if isinstance(structure, KFAC) else None
    return count if most is None else min(count, most)


def plan_of(
    problem: Problem,
    curvature: Curvature,
    settings: ByEvidence,
    effort: float | None,
    *,
    free: bool,
    groups: int = 1,
) -> Plan:
    """What a fit does with its budget.

    Args:
        problem: Network, likelihood and data.
        curvature: As it was asked for.
        settings: Without ``"auto"``.
        effort: Epochs of training; ``None``: the default budget.
        free: Whether random columns may stand for all; else the curvature is measured as it is.
        groups: Of weights with one precision each: rows have no fewer outputs in all, even where
            that is more than the budget.
    """
    size, work = problem.train.size, Work.of(problem, curvature, settings)
    budget = EPOCH * (EPOCHS if effort is None else effort)
    if effort is None:
        budget = max(budget, FLOOR / (size * work.each))
    if work.whole <= budget:
        return Plan(size, size, passes=work.whole, last=1 + work.columns * work.column)
    columns = work.columns
    if free:  # half of the budget for the pass over all rows
        columns = min(columns, max(1, int((budget / 2 - work.last) / work.column)))
    last = work.last + columns * work.column
    directions = 0
    if work.moving:
        left = budget - last
        one = left - _AHEAD >= _SHARE * work.tuning
        directions = min(_MOST_AHEAD, max(int(one), int(left / 2 / _AHEAD)))
    last += directions * _AHEAD
    least = math.ceil(groups / problem.outputs_each())
    rows = min(size, max(1, least, int((budget - last) * size / work.tuning)))
    drawn = columns if columns < work.columns else None
    return Plan(size, rows, drawn, directions, last + rows / size * work.tuning, last)


def stretches_of(problem: Problem, passes: float) -> int:
    """In how many stretches a pass over all rows is made, of so many forward passes each."""
    work = passes * problem.train.size * multiplications(problem)
    return max(1, math.ceil(work / STRETCH))


def some_rows(problem: Problem, plan: Plan, generator: torch.Generator) -> Problem:
    """The problem over the rows on which mode and precisions are found, drawn and kept."""
    if plan.is_whole:
        return problem
    drawn = torch.randperm(plan.size, generator=generator)[: plan.rows].sort().values
    train = InMemory(*problem.train.rows(drawn), problem.train.batch_size)
    return replace(problem, train=train)


def factor_bytes(problem: Problem, weights: Weights) -> int:
    """Bytes of the Kronecker factors of all layers, while they are measured and decomposed.

    >>> from torch import nn
    >>> data = torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)
    >>> problem = Problem.of(nn.Linear(2, 4), data)
    >>> factor_bytes(problem, problem.network.weights)  # 24 · (4² + 3²) and 40 · 12
    1080
    """
    inputs, _ = next(iter(problem.train))
    network, layout = problem.network, problem.network.layout
    recorded = record(network, weights, layout, take_rows(inputs, slice(1)))
    if recorded.foreign:  # it is refused by name where it is measured
        return 0
    shapes = [block.entries.shape for block in blocks_of(recorded, layout)]
    return sum(24 * b * (o * o + i * i) + 40 * b * o * i for b, o, i in shapes)


def gigabytes(size: float) -> str:
    """Bytes as one says them.

    >>> gigabytes(3 << 29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.3g} GiB"


def features_share(problem: Problem, layer: Layout) -> float:
    """Share of the run of the network in the fit of its last layer."""
    each = multiplications(problem)
    return each / (each + _LAYER_PASSES * max(layer.size, _LEAST_EACH))


def decomposition(problem: Problem, weights: Weights) -> float:
    """Forward passes of a row that the eigenvectors of all layers take as long as."""
    inputs, _ = next(iter(problem.train))
    layout = problem.network.layout
    recorded = record(problem.network, weights, layout, take_rows(inputs, slice(1)))
    if recorded.foreign:
        return 0.0
    shapes = [block.entries.shape for block in blocks_of(recorded, layout)]
    cubes = sum(b * (o**3 + i**3) for b, o, i in shapes)
    return _EIGEN * cubes / multiplications(problem)


def multiplications(problem: Problem) -> int:
    """Of a forward pass of one row: those of its products of matrices, or one a weight if more.

    >>> from torch import nn
    >>> data = torch.zeros(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    >>> multiplications(Problem.of(net, data))  # 4 places of 2 · 9, and 8 · 3
    96
    """
    recurrent = {torch.ops.aten.mkldnn_rnn_layer: _of_recurrent_layer}
    with FlopCounterMode(display=False, custom_mapping=recurrent) as counter:
        problem.one_output()
    return max(int(counter.get_total_flops()) // 2, problem.network.layout.size)


def _of_recurrent_layer(
    inputs: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...], *_: Any, **__: Any
) -> int:
    """Multiplications and additions of a recurrent layer, from the shapes of its arguments."""
    return 2 * math.prod(inputs[:-1]) * (math.prod(first) + math.prod(second))
