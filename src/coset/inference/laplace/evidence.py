"""Evidence of a Gaussian approximation as a function of the prior's precisions.

With the curvature ``H`` and one precision ``λ_g`` for each group of weights,
``log p(y) ≈ log p(y | θ) - ½ Σ λ_g |θ_g|² - ½ log det(I + Λ⁻¹ H)``.  Where a group covers whole
blocks only eigenvalues are needed: ``log det = Σ log(1 + h/λ)`` and the effective number of weights
is ``γ_g = Σ h/(h + λ)`` (MacKay 1992).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.problem import Problem
from coset.inference.laplace.row_evidence import row_effective, row_labels, row_logdet
from coset.linalg import (
    BlockDiagonal,
    Dense,
    Diagonal,
    Kronecker,
    LinearOperator,
    LowRankPlusDiagonal,
    diagonal,
    inverse,
    logdet,
    scale,
    shift,
)
from coset.vocabulary import Weights

_SPAN = 1e8
"""How far a precision may lie above or below the mean curvature of its group."""

_LOOSEST = 1e-3
"""The least precision of a group, times the squared norm of its trained weights."""

_ROUNDING = 1e-14
"""Share of the largest curvature, each in the scale of its weights, up to which one is rounding."""


@dataclass(frozen=True)
class Table:
    """Eigenvalues of a part of the curvature, and the group of each or of all."""

    values: Float[Tensor, " k"]
    group: int | Int[Tensor, " k"]

    def gather(self, precision: Float[Tensor, " g"]) -> Tensor:
        """The precision of each eigenvalue, ready to broadcast."""
        return precision[self.group]

    def spread(self, terms: Float[Tensor, " k"], total: Float[Tensor, " g"]) -> None:
        """Adds one term an eigenvalue to the totals of the groups."""
        if isinstance(self.group, int):
            total[self.group] += terms.sum()
        else:
            total.index_add_(0, self.group, terms)

    def spread_squares(self, terms: Float[Tensor, " k"], total: Float[Tensor, " g"]) -> None:
        """The same for the squares of the terms."""
        if isinstance(self.group, int):
            total[self.group] += torch.dot(terms, terms)  # one pass, nothing kept
        else:
            self.spread(terms.square(), total)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues by group, and operators that groups cut across.

    Attributes:
        tables: Eigenvalues of the parts on which the precision is constant.
        rest: Other parts, each with the group of its coordinates.
        sizes: Number of weights of each group.

    >>> spectrum = spectrum_of(Diagonal(torch.tensor([1.0, 3.0])), torch.tensor([0, 0]), 1)
    >>> spectrum.effective(torch.tensor([1.0], dtype=torch.float64))  # 1/2 + 3/4
    tensor([1.2500], dtype=torch.float64)
    """

    tables: tuple[Table, ...]
    rest: tuple[tuple[LinearOperator, Int[Tensor, " q"]], ...]
    sizes: Float[Tensor, " g"]

    def scaled(self, factor: float) -> "Spectrum":
        """The spectrum of ``factor · H``: another noise precision."""
        if factor == 1:
            return self
        tables = tuple(Table(table.values * factor, table.group) for table in self.tables)
        rest = tuple((scale(operator, factor), labels) for operator, labels in self.rest)
        return Spectrum(tables, rest, self.sizes)

    def half_logdet(self, precision: Float[Tensor, " g"]) -> Float[Tensor, ""]:
        """``½ log det(I + Λ⁻¹ H)``."""
        total = precision.new_zeros(())
        for table in self.tables:
            total = total + torch.log1p(table.values / table.gather(precision)).sum()
        for operator, labels in self.rest:
            rows = row_labels(operator, labels)
            if rows is not None and isinstance(operator, Kronecker):
                total = total + row_logdet(operator, precision[rows])
                continue
            flat = precision[labels]
            total = total + logdet(shift(operator, flat)) - flat.log().sum()
        return total / 2

    def effective(self, precision: Float[Tensor, " g"]) -> Float[Tensor, " g"]:
        """Effective number of weights of each group, ``γ_g = D_g - λ_g tr Σ_gg``."""
        return self.effective_and_slope(precision)[0]

    def effective_and_slope(
        self, precision: Float[Tensor, " g"]
    ) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
        """``γ`` and, of the part given by eigenvalues, ``dγ/d log λ = -Σ h λ / (h + λ)²``."""
        gamma, slope = torch.zeros_like(precision), torch.zeros_like(precision)
        for table in self.tables:
            kept = table.values / (table.values + table.gather(precision))
            table.spread(kept, gamma)
            table.spread_squares(kept, slope)
        slope -= gamma  # Σ k² - Σ k, before what is not given by eigenvalues is added
        for operator, labels in self.rest:
            rows = row_labels(operator, labels)
            if rows is not None and isinstance(operator, Kronecker):
                found = row_effective(operator, precision[rows])
                gamma.index_add_(0, rows.flatten(), found.flatten())
                continue
            flat = precision[labels]
            gamma.index_add_(0, labels, 1 - flat * diagonal(inverse(shift(operator, flat))))
        return gamma, slope

    def traces(self) -> Float[Tensor, " g"]:
        """``tr H_gg``."""
        total = torch.zeros_like(self.sizes)
        for table in self.tables:
            table.spread(table.values, total)
        for operator, labels in self.rest:
            total.index_add_(0, labels, diagonal(operator))
        return total


def spectrum_of(operator: LinearOperator, labels: Int[Tensor, " p"], groups: int) -> Spectrum:
    """Prepares a curvature for many evaluations with different precisions."""
    single = groups == 1  # then nobody has to look at the labels
    sizes = labels.new_tensor([len(labels)]) if single else torch.bincount(labels, minlength=groups)
    tables: list[Table] = []
    rest: list[tuple[LinearOperator, Tensor]] = []
    for part, own in _parts(operator, labels, single):
        constant = single or bool((own == own[0]).all())
        values = _eigenvalues(part) if constant else None
        if isinstance(part, Diagonal):
            values = part.entries
        if values is None:
            rest.append((part, own))
        else:
            group = 0 if single else (int(own[0]) if constant else own)
            tables.append(Table(values.double().flatten().clamp_min(0), group))
    return Spectrum(tuple(tables), tuple(rest), sizes.double())


def _parts(
    operator: LinearOperator, labels: Tensor, single: bool
) -> list[tuple[LinearOperator, Tensor]]:
    if isinstance(operator, BlockDiagonal):
        own = (labels if single else labels[operator.order]).split(operator.sizes)
        return list(zip(operator.blocks, own, strict=True))
    return [(operator, labels)]


def _eigenvalues(operator: LinearOperator) -> Tensor | None:
    """Eigenvalues other than zero, where they are at hand or cheap."""
    if isinstance(operator, Kronecker):
        return operator.table if operator.orthogonal else None
    matrix = None
    if isinstance(operator, Dense):
        matrix = operator.matrix
    elif isinstance(operator, LowRankPlusDiagonal) and not bool(operator.entries.any()):
        matrix = operator.factor.mT @ operator.factor
    values: Tensor | None = None if matrix is None else torch.linalg.eigvalsh(matrix)
    return values


def best_precision(
    spectrum: Spectrum,
    norms: Float[Tensor, " g"],
    start: Float[Tensor, " g"],
    *,
    natural: Float[Tensor, " g"] | None = None,
    tolerance: float = 1e-6,
    sweeps: int = 200,
) -> Float[Tensor, " g"]:
    """The precisions at which ``γ_g = λ_g |θ_g|²``, for fixed ``θ`` and ``H``.

    Newton's method on ``log λ`` where the groups are given by eigenvalues, which is monotone and
    safeguarded; MacKay's fixed point ``λ ← γ / |θ|²`` where they cut across operators.

    Args:
        spectrum: The curvature.
        norms: ``|θ_g|²``.
        start: First guess.
        natural: ``D_g / |θ̃_g|²`` of the trained weights, the scale of each group: the answer where
            the data say nothing of it.  Left out: the first guess.
        tolerance: Of a ``log λ``.
        sweeps: At most so many.
    """
    scales = start if natural is None else natural
    low, high = bounds(spectrum, scales)
    precision = start.clamp(low, high)
    for _ in range(sweeps):
        gamma, slope = spectrum.effective_and_slope(precision)
        if spectrum.rest:
            fresh = gamma / norms.clamp_min(1e-300)
        else:
            pull = precision * norms
            step = ((pull - gamma) / (slope - pull).clamp_max(-1e-300)).clamp(-3, 3)
            fresh = precision * step.exp()
        fresh = fresh.clamp(low, high)
        change = float((fresh / precision).log().abs().max())
        precision = fresh
        # what a Newton step leaves is of the order of the square of that step
        if (change if spectrum.rest else change**2) < tolerance:
            break
    return precision


def bounds(
    spectrum: Spectrum, natural: Float[Tensor, " g"]
) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
    """The least and largest precision of each group, which scale as its weights do.

    They lie around the mean curvature.  A group that hardly any data reach (a filter that is dead
    on all of them, or nearly) has next to none: it is then held at the scale of its trained
    weights, for a new input may wake it.

    >>> spectrum = spectrum_of(Diagonal(torch.tensor([2.0, 0.0])), torch.tensor([0, 1]), 2)
    >>> low, high = bounds(spectrum, torch.tensor([3.0, 5.0]))
    >>> low.tolist(), high.tolist()
    ([0.003, 5.0], [200000000.0, 5.0])
    """
    natural = natural.double()
    mean = spectrum.traces() / spectrum.sizes.clamp_min(1)
    told = mean / natural
    silent = told <= _ROUNDING * told.max()
    loosest = _LOOSEST * natural / spectrum.sizes.clamp_min(1)
    low = torch.where(silent, natural, torch.maximum(mean / _SPAN, loosest))
    return low, torch.where(silent, natural, torch.maximum(mean * _SPAN, natural))


def evidence_at(
    problem: Problem,
    weights: Weights,
    spectrum: Spectrum,
    precision: Float[Tensor, " g"],
    norms: Float[Tensor, " g"],
) -> float:
    """``log p(y | f) - ½ Σ λ_g |θ_g|² - ½ log det(I + Λ⁻¹ H)`` at the network's own weights.

    Args:
        problem: Network, likelihood and data.
        weights: All weights of the network.
        spectrum: The curvature there.
        precision: ``λ``.
        norms: ``|θ_g|²``.
    """
    fit = sum(
        float(problem.likelihood.log_prob(problem.network.apply(weights, x), y).double().sum())
        for x, y in problem.train
    )
    penalty = float((precision * norms).sum()) / 2
    return fit - penalty - float(spectrum.half_logdet(precision))


def switched_off(spectrum: Spectrum, precision: Float[Tensor, " g"]) -> list[int]:
    """Groups of which the data determine less than a hundredth of one weight."""
    gamma = spectrum.effective(precision)
    return [group for group, found in enumerate(gamma.tolist()) if found < 0.01]
