"""Products with a sparse matrix that torch can differentiate, both ways and again."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from torch import Tensor


@dataclass(frozen=True)
class SparseOperator:
    """A constant sparse matrix and its transpose, each by rows, in any floating type.

    >>> from scipy.sparse import csr_array
    >>> SparseOperator(csr_array([[0.0, 2.0]])).forward(torch.tensor([5.0, 7.0]))
    tensor([14.])
    """

    matrix: Any
    _prepared: dict[Any, tuple[Tensor, Tensor, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def forward(self, vectors: Float[Tensor, "*k cols"]) -> Float[Tensor, "*k rows"]:
        """The product with each vector."""
        return _product(self, vectors, transposed=False)

    def adjoint(self, vectors: Float[Tensor, "*k rows"]) -> Float[Tensor, "*k cols"]:
        """The product of the transpose with each vector."""
        return _product(self, vectors, transposed=True)

    def rows(self, like: Tensor, *, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Where rows start, columns and values, of the type and device of a tensor."""
        key = (like.dtype, like.device, transposed)
        if key not in self._prepared:
            matrix = csr_array(self.matrix.T) if transposed else self.matrix
            starts, columns = (
                torch.from_numpy(part.astype("int32")).to(like.device)
                for part in (matrix.indptr, matrix.indices)
            )
            self._prepared[key] = starts, columns, torch.from_numpy(matrix.data).to(like)
        return self._prepared[key]


def _product(operator: SparseOperator, vectors: Tensor, *, transposed: bool) -> Tensor:
    flat = vectors.reshape(-1, vectors.shape[-1])
    product: Tensor = _Product.apply(flat, operator, transposed)
    return product.reshape(*vectors.shape[:-1], product.shape[-1])


def _multiply(
    starts: Tensor, columns: Tensor, values: Tensor, vectors: Float[Tensor, "cols k"], width: int
) -> Float[Tensor, "rows k"]:
    shape = (len(starts) - 1, width)
    matrix = torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
    return matrix @ vectors


def _like_product(
    starts: Tensor, columns: Tensor, values: Tensor, vectors: Tensor, width: int
) -> Tensor:
    return vectors.new_empty(len(starts) - 1, vectors.shape[1])


# Tracers, as that of torch.func.linearize, cannot look into sparse tensors: to them it is one call.
_LIBRARY = torch.library.Library("coset", "FRAGMENT")
_LIBRARY.define(
    "sparse_product(Tensor starts, Tensor columns, Tensor values, Tensor vectors, int width)"
    " -> Tensor"
)
_LIBRARY.impl("sparse_product", _multiply, "CompositeExplicitAutograd")
torch.library.register_fake("coset::sparse_product", _like_product, lib=_LIBRARY)
_sparse_product = torch.ops.coset.sparse_product.default
with warnings.catch_warnings():  # torch says once that compressed rows are new
    warnings.simplefilter("ignore")
    _multiply(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), torch.ones(1, 1), 1)


class _Product(torch.autograd.Function):
    """The product with a constant matrix: linear, so its derivatives are products again."""

    @staticmethod
    def forward(vectors: Tensor, operator: SparseOperator, transposed: bool) -> Tensor:
        columns = operator.matrix.shape[0 if transposed else 1]
        rows = operator.rows(vectors, transposed=transposed)
        product: Tensor = _sparse_product(*rows, vectors.mT.contiguous(), columns)
        return product.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.operator, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(gradient, ctx.operator, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        product: Tensor = _Product.apply(tangent, ctx.operator, ctx.transposed)
        return product

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, None, None], vectors: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        axis = axes[0]
        assert axis is not None  # the matrix has no axis of its own
        moved = vectors.movedim(axis, 0)
        product: Tensor = _Product.apply(moved.reshape(-1, moved.shape[-1]), *rest)
        return product.reshape(*moved.shape[:-1], product.shape[-1]), 0
