"""Dense, diagonal, block-diagonal and low-rank operators, all symmetric unless said."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.linalg.cholesky import cholesky
from coset.linalg.operators import (
    FromFunctions,
    LinearOperator,
    cast,
    diagonal,
    inverse,
    logdet,
    root,
    scale,
    shift,
    solve,
)
from coset.printing import brief


@dataclass(frozen=True)
class Dense:
    """A matrix.

    >>> float(logdet(Dense(torch.diag(torch.tensor([2.0, 8.0]))))) / torch.tensor(2.0).log()
    tensor(4.)
    """

    matrix: Float[Tensor, "rows cols"]

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.matrix.shape[0], self.matrix.shape[1]

    def matmat(self, x: Float[Tensor, "cols k"]) -> Float[Tensor, "rows k"]:
        """The product."""
        return self.matrix @ x

    def adjoint(self) -> "Dense":
        """The transpose."""
        return Dense(self.matrix.mT)


@dataclass(frozen=True)
class Diagonal:
    """A diagonal matrix.

    >>> solve(Diagonal(torch.tensor([2.0, 4.0])), torch.ones(2, 1)).flatten()
    tensor([0.5000, 0.2500])
    """

    entries: Float[Tensor, " p"]

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.entries), len(self.entries)

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        return self.entries.unsqueeze(1) * x

    def adjoint(self) -> "Diagonal":
        """Itself."""
        return self


@dataclass(frozen=True)
class BlockDiagonal:
    """Blocks along the diagonal, after a reordering of the coordinates.

    Attributes:
        blocks: Symmetric operators.
        order: Coordinates in the order of the blocks: ``x[order]`` is the concatenation of the
            blocks' own vectors.

    >>> blocks = (Diagonal(torch.tensor([2.0])), Diagonal(torch.tensor([3.0])))
    >>> BlockDiagonal(blocks, torch.tensor([1, 0])).matmat(torch.ones(2, 1)).flatten()
    tensor([3., 2.])
    """

    blocks: tuple[LinearOperator, ...]
    order: Int[Tensor, " p"]

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.order), len(self.order)

    @property
    def sizes(self) -> list[int]:
        """Rows of each block."""
        return [block.shape[0] for block in self.blocks]

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        parts = x[self.order].split(self.sizes)
        products = [block.matmat(part) for block, part in zip(self.blocks, parts, strict=True)]
        return self.scatter(torch.cat(products))

    def adjoint(self) -> "BlockDiagonal":
        """Itself."""
        return self

    def scatter(self, ordered: Float[Tensor, "p ..."]) -> Float[Tensor, "p ..."]:
        """From the order of the blocks to that of the coordinates."""
        result = torch.empty_like(ordered)
        result[self.order] = ordered
        return result


@dataclass(frozen=True)
class LowRankPlusDiagonal:
    """``diag(d) + sign · F Fᵀ``; the inverse of one sign is of the other.

    >>> operator = LowRankPlusDiagonal(torch.ones(2), torch.ones(2, 1))
    >>> inverse(operator).matmat(torch.eye(2))  # (I + 11ᵀ)⁻¹ = I - 11ᵀ / 3
    tensor([[ 0.6667, -0.3333],
            [-0.3333,  0.6667]])
    """

    entries: Float[Tensor, " p"]
    factor: Float[Tensor, "p r"]
    sign: int = 1

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.entries), len(self.entries)

    def matmat(self, x: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The product."""
        return self.entries.unsqueeze(1) * x + self.sign * (self.factor @ (self.factor.mT @ x))

    def adjoint(self) -> "LowRankPlusDiagonal":
        """Itself."""
        return self

    def whitened(self) -> tuple[Float[Tensor, " r"], Float[Tensor, "r r"], Float[Tensor, "p r"]]:
        """Eigenvalues and vectors of ``Eᵀ E``, and ``E = diag(d)^-½ F``."""
        whitened = self.factor / self.entries.sqrt().unsqueeze(1)
        values, vectors = torch.linalg.eigh(whitened.mT @ whitened)
        return values.clamp_min(0), vectors, whitened


@solve.register
def _(operator: Dense, target: Tensor) -> Tensor:
    return torch.cholesky_solve(target, cholesky(operator.matrix))


@solve.register
def _(operator: Diagonal, target: Tensor) -> Tensor:
    return target / operator.entries.unsqueeze(1)


@solve.register
def _(operator: BlockDiagonal, target: Tensor) -> Tensor:
    parts = target[operator.order].split(operator.sizes)
    solved = [solve(block, part) for block, part in zip(operator.blocks, parts, strict=True)]
    return operator.scatter(torch.cat(solved))


@solve.register
def _(operator: LowRankPlusDiagonal, target: Tensor) -> Tensor:
    return inverse(operator).matmat(target)


@logdet.register
def _(operator: Dense) -> Tensor:
    return 2 * cholesky(operator.matrix).diagonal().log().sum()


@logdet.register
def _(operator: Diagonal) -> Tensor:
    return operator.entries.log().sum()


@logdet.register
def _(operator: BlockDiagonal) -> Tensor:
    return torch.stack([logdet(block) for block in operator.blocks]).sum()


@logdet.register
def _(operator: LowRankPlusDiagonal) -> Tensor:
    values, _, _ = operator.whitened()
    return operator.entries.log().sum() + torch.log1p(operator.sign * values).sum()


@diagonal.register
def _(operator: Dense) -> Tensor:
    return operator.matrix.diagonal()


@diagonal.register
def _(operator: Diagonal) -> Tensor:
    return operator.entries


@diagonal.register
def _(operator: BlockDiagonal) -> Tensor:
    return operator.scatter(torch.cat([diagonal(block) for block in operator.blocks]))


@diagonal.register
def _(operator: LowRankPlusDiagonal) -> Tensor:
    return operator.entries + operator.sign * operator.factor.square().sum(1)


@root.register
def _(operator: Dense) -> LinearOperator:
    return Dense(cholesky(operator.matrix))


@root.register
def _(operator: Diagonal) -> LinearOperator:
    return Diagonal(operator.entries.sqrt())


@root.register
def _(operator: BlockDiagonal) -> LinearOperator:
    roots = [root(block) for block in operator.blocks]

    def forward(x: Tensor) -> Tensor:
        parts = x.split([r.shape[1] for r in roots])
        return operator.scatter(torch.cat([r.matmat(p) for r, p in zip(roots, parts, strict=True)]))

    def backward(x: Tensor) -> Tensor:
        parts = x[operator.order].split(operator.sizes)
        return torch.cat([r.adjoint().matmat(p) for r, p in zip(roots, parts, strict=True)])

    return FromFunctions(operator.shape, forward, backward)


@root.register
def _(operator: LowRankPlusDiagonal) -> LinearOperator:
    values, vectors, whitened = operator.whitened()
    # E = U S Vᵀ: (I + sign E Eᵀ)^½ = I + U (√(1 + sign S²) - 1) Uᵀ, and U = E V S⁻¹
    gain = (1 + operator.sign * values).clamp_min(0).sqrt() - 1
    middle = (vectors * (gain / values.clamp_min(torch.finfo(values.dtype).tiny))) @ vectors.mT
    outer = operator.entries.sqrt().unsqueeze(1)

    def symmetric(x: Tensor) -> Tensor:
        return x + whitened @ (middle @ (whitened.mT @ x))

    return FromFunctions(
        operator.shape, lambda x: outer * symmetric(x), lambda x: symmetric(outer * x)
    )


@inverse.register
def _(operator: Dense) -> LinearOperator:
    # by rows, as a file holds it: products of the two layouts round differently
    return Dense(torch.cholesky_inverse(cholesky(operator.matrix)).contiguous())


@inverse.register
def _(operator: Diagonal) -> LinearOperator:
    return Diagonal(1 / operator.entries)


@inverse.register
def _(operator: BlockDiagonal) -> LinearOperator:
    return BlockDiagonal(tuple(inverse(block) for block in operator.blocks), operator.order)


@inverse.register
def _(operator: LowRankPlusDiagonal) -> LinearOperator:
    values, vectors, whitened = operator.whitened()
    factor = (whitened @ vectors) * (1 + operator.sign * values).rsqrt()
    entries = 1 / operator.entries
    return LowRankPlusDiagonal(entries, entries.sqrt().unsqueeze(1) * factor, -operator.sign)


@shift.register
def _(operator: Dense, precision: Tensor) -> LinearOperator:
    return Dense(operator.matrix + torch.diag(precision))


@shift.register
def _(operator: Diagonal, precision: Tensor) -> LinearOperator:
    return Diagonal(operator.entries + precision)


@shift.register
def _(operator: BlockDiagonal, precision: Tensor) -> LinearOperator:
    parts = precision[operator.order].split(operator.sizes)
    shifted = (shift(block, part) for block, part in zip(operator.blocks, parts, strict=True))
    return BlockDiagonal(tuple(shifted), operator.order)


@shift.register
def _(operator: LowRankPlusDiagonal, precision: Tensor) -> LinearOperator:
    return LowRankPlusDiagonal(operator.entries + precision, operator.factor, operator.sign)


@scale.register
def _(operator: Dense, factor: float) -> LinearOperator:
    return Dense(operator.matrix * factor)


@scale.register
def _(operator: Diagonal, factor: float) -> LinearOperator:
    return Diagonal(operator.entries * factor)


@scale.register
def _(operator: BlockDiagonal, factor: float) -> LinearOperator:
    return BlockDiagonal(tuple(scale(block, factor) for block in operator.blocks), operator.order)


@scale.register
def _(operator: LowRankPlusDiagonal, factor: float) -> LinearOperator:
    return LowRankPlusDiagonal(
        operator.entries * factor, operator.factor * factor**0.5, operator.sign
    )


@cast.register
def _(operator: Dense, dtype: torch.dtype) -> LinearOperator:
    return Dense(operator.matrix.to(dtype))


@cast.register
def _(operator: Diagonal, dtype: torch.dtype) -> LinearOperator:
    return Diagonal(operator.entries.to(dtype))


@cast.register
def _(operator: BlockDiagonal, dtype: torch.dtype) -> LinearOperator:
    return BlockDiagonal(tuple(cast(block, dtype) for block in operator.blocks), operator.order)


@cast.register
def _(operator: LowRankPlusDiagonal, dtype: torch.dtype) -> LinearOperator:
    return LowRankPlusDiagonal(operator.entries.to(dtype), operator.factor.to(dtype), operator.sign)
