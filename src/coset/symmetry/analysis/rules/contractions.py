"""Sums of products."""

from collections.abc import Sequence
from typing import Any

from coset.symmetry.analysis.digits import Value
from coset.symmetry.analysis.primitives import apply
from coset.symmetry.analysis.rules.arithmetic import added
from coset.symmetry.analysis.rules.table import Shape, is_value, rule
from coset.symmetry.analysis.signatures import Signature
from coset.symmetry.analysis.transforms import reshape
from coset.symmetry.analysis.values import Algebra


def contract(algebra: Algebra, values: Sequence[Value], operands: Sequence[str], out: str) -> Value:
    """A sum of products in index notation, one letter an axis."""
    sizes = {
        letter: size
        for value, letters in zip(values, operands, strict=True)
        for letter, size in zip(letters, algebra.shape(value), strict=True)
    }
    names = tuple(tuple((letter,) for letter in letters) for letters in operands)
    signature = Signature(names, tuple((letter,) for letter in out), sizes)
    return apply(algebra, values, signature, "multiply")


@rule("linear")
def _linear(
    algebra: Algebra, shape: Shape, input: Value, weight: Value, bias: Value | None = None
) -> Value:
    lead = letters(len(algebra.shape(input)) - 1)
    out = "Z" if len(algebra.shape(weight)) == 2 else ""
    result = contract(algebra, [input, weight], [f"{lead}Y", f"{out}Y"], lead + out)
    return result if bias is None else added(algebra, shape, result, bias)


@rule("matmul")
def matrix_product(algebra: Algebra, shape: Shape, self: Value, other: Value) -> Value:
    """A matrix product, batch axes broadcast."""
    left, right = algebra.shape(self), algebra.shape(other)
    rows, columns = ("R" if len(left) > 1 else ""), ("C" if len(right) > 1 else "")
    lead = letters(max(len(left), len(right), 2) - 2)
    batch = shape[: len(lead)]
    first, self = _drop_ones(algebra, self, lead, batch, f"{rows}K")
    second, other = _drop_ones(algebra, other, lead, batch, f"K{columns}")
    return contract(algebra, [self, other], [first, second], lead + rows + columns)


def _drop_ones(
    algebra: Algebra, value: Value, lead: str, batch: Shape, own: str
) -> tuple[str, Value]:
    """Removes repeated batch axes of size one, so that every letter has one size."""
    shape = algebra.shape(value)
    extra = len(shape) - len(own)
    letters = lead[len(lead) - extra :]
    full = batch[len(batch) - extra :]
    kept = [i for i in range(extra) if shape[i] == full[i]]
    if len(kept) < extra:
        value = reshape(algebra, value, [*(shape[i] for i in kept), *shape[extra:]])
    return "".join(letters[i] for i in kept) + own, value


@rule("mm", "bmm", "mv", "dot", "vdot")
def _product(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    return matrix_product(algebra, shape, self, next(iter(given.values())))


@rule("addbmm")
def _addbmm(
    algebra: Algebra, shape: Shape, self: Value, batch1: Value, batch2: Value, **given: Any
) -> Value:
    product = contract(algebra, [batch1, batch2], ["bij", "bjk"], "ik")
    return product if given.get("beta") == 0 else added(algebra, shape, product, self)


@rule("addmm", "baddbmm", "addmv")
def _addmm(algebra: Algebra, shape: Shape, self: Value, **given: Any) -> Value:
    first, second = [value for value in given.values() if is_value(value)]
    product = matrix_product(algebra, shape, first, second)
    return product if given.get("beta") == 0 else added(algebra, shape, product, self)


@rule("outer", "ger")
def _outer(algebra: Algebra, shape: Shape, self: Value, vec2: Value) -> Value:
    return contract(algebra, [self, vec2], ["a", "b"], "ab")


@rule("einsum")
def _einsum(
    algebra: Algebra, shape: Shape, equation: str, tensors: Sequence[Value], **_: Any
) -> Value:
    left, _arrow, out = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if not _arrow:
        counts = {c: left.count(c) for c in left if c.isalpha()}
        out = ("..." if "..." in left else "") + "".join(
            sorted(c for c in counts if counts[c] == 1)
        )
    widths = [
        len(algebra.shape(tensor)) - len(letters.replace("...", ""))
        for tensor, letters in zip(tensors, operands, strict=True)
    ]
    dots = letters(max(widths), start="Ā")
    filled = [
        letters.replace("...", dots[len(dots) - width :])
        for letters, width in zip(operands, widths, strict=True)
    ]
    return contract(algebra, tensors, filled, out.replace("...", dots))


@rule("bilinear")
def _bilinear(
    algebra: Algebra,
    shape: Shape,
    input1: Value,
    input2: Value,
    weight: Value,
    bias: Value | None = None,
) -> Value:
    lead = letters(len(shape) - 1)
    operands = [f"{lead}I", f"{lead}J", "OIJ"]
    result = contract(algebra, [input1, input2, weight], operands, f"{lead}O")
    return result if bias is None else added(algebra, shape, result, bias)


def letters(count: int, start: str = "a") -> str:
    """That many different letters."""
    return "".join(chr(ord(start) + i) for i in range(count))
