"""The table of rules, how a rule is entered, and what happens without one."""

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

from coset.symmetry.analysis.digits import Cut, Plain, Value
from coset.symmetry.analysis.primitives import apply, freeze
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.values import Algebra

Shape = tuple[int, ...]
Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[str, Rule] = {}

EPSILON = 1e-3
"""Constants up to this size count as the epsilon of a norm when invariances are looked for."""


def rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Enters a function into the table under the schema names of operations."""

    def enter(function: AnyRule) -> AnyRule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def is_value(item: Any) -> TypeGuard[Value]:
    """Whether an argument is a tensor."""
    return isinstance(item, (Plain, Cut))


def unknown(algebra: Algebra, shape: Any, **arguments: Any) -> Any:
    """Refuses all axes and scales of all operands; the result (or each of several) is pinned."""
    operands: list[Value] = []
    for item in arguments.values():
        items = item if isinstance(item, (list, tuple)) else [item]
        operands.extend(value for value in items if is_value(value))
    if shape and isinstance(shape[0], tuple):
        return tuple(refused(algebra, own, *operands) for own in shape)
    return refused(algebra, shape, *operands)


def refused(algebra: Algebra, shape: Shape, *operands: Value) -> Value:
    """Refuses all axes and scales of the operands; the result is pinned."""
    for operand in operands:
        freeze(algebra, operand, "an operation without a rule")
    names: Names = tuple((f"a{i}",) for i in range(len(shape)))
    sizes = {f"a{i}": size for i, size in enumerate(shape)}
    signature = Signature((), names, sizes)
    return apply(algebra, [], signature, "multiply", fresh="an operation without a rule")
