"""What every metric asks of its inputs: one cheap pass, one error that says which input is bad."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.likelihood import Missing
from coset.errors import CosetError
from coset.weights.plain import require_plain

SUM_TOLERANCE = 1e-3
"""How far from one the probabilities of an input may sum: half precision stored as single fits."""

HALF_SUM_TOLERANCE = 2e-2
"""The same for tensors in half precision."""


def working(values: Tensor) -> Tensor:
    """The values in the precision we compute in: half precision goes to float32, the rest stays.

    >>> working(torch.ones(2, dtype=torch.float16)).dtype
    torch.float32
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_tensor(name: str, values: object) -> None:
    """Refuse what is not a tensor that can be read."""
    if not isinstance(values, Tensor):
        raise CosetError(
            f"{name} is a {type(values).__name__}", "needed a tensor", "wrap it in torch.as_tensor"
        )
    require_plain(values, name)


def check_floating(name: str, values: Tensor) -> None:
    """Refuse what is not a tensor of real floating-point numbers with at least one entry."""
    check_tensor(name, values)
    if not values.is_floating_point():
        raise CosetError(
            f"{name} has dtype {values.dtype}",
            "needed floating-point numbers",
            f"call {name}.float(), and check the order of the arguments",
        )
    if values.numel() == 0:
        raise CosetError(
            f"{name} is empty: shape {tuple(values.shape)}",
            "needed at least one entry",
            "check that the data set was not exhausted or filtered away",
        )


def check_shape(name: str, values: Tensor, axes: tuple[str, ...]) -> None:
    """Refuse a tensor whose number of axes is not that of ``axes``."""
    if values.ndim != len(axes):
        raise CosetError(
            f"{name} has shape {tuple(values.shape)}",
            f"needed {len(axes)} axes: ({', '.join(axes)})",
            "reshape it, or take another function",
        )


def check_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinities.

    A sum is finite only if every term is, and costs a tenth of testing each term; a sum that
    overflows is settled by the slow test.
    """
    if not math.isfinite(float(values.detach().sum())) and not bool(values.isfinite().all()):
        raise _not_finite(name, values)


def check_not_nan(name: str, values: Tensor) -> None:
    """Refuse NaN, let infinities pass: a ranking can order them."""
    if bool(values.isnan().any()):
        raise _not_finite(name, values)


def _not_finite(name: str, values: Tensor) -> CosetError:
    count = int((~values.isfinite()).sum())
    kind = "NaN" if bool(values.isnan().any()) else "infinite numbers"
    return CosetError(
        f"{name} contains {kind} ({count} of {values.numel()} entries are not finite)",
        "needed finite numbers",
        "look for a diverged member or an overflow in the network's outputs",
    )


def present(targets: Tensor, *predictions: Tensor, missing: Missing) -> tuple[Tensor, ...]:
    """Predictions and, last, targets: as they are, or flat and without entries of NaN targets.

    >>> present(torch.tensor([1.0, math.nan]), torch.tensor([3.0, 4.0]), missing="nan")
    (tensor([3.]), tensor([1.]))
    """
    if missing not in ("refuse", "nan"):
        raise CosetError(
            f"got missing={missing!r}", "needed 'refuse' or 'nan'", "choose one of the two"
        )
    known = ~targets.isnan() if missing == "nan" else None
    if known is None or bool(known.all()):
        return (*predictions, targets)
    if not bool(known.any()):
        raise CosetError(
            "every target is NaN", "needed one target that is known", "check where they come from"
        )
    return (*(values[known] for values in predictions), targets[known])


def check_same_shape(name: str, values: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors of different shapes."""
    if values.shape != other.shape:
        raise CosetError(
            f"{name} has shape {tuple(values.shape)} and {other_name} {tuple(other.shape)}",
            "needed equal shapes",
            "check that both come from the same inputs",
        )


def check_probabilities(name: str, values: Tensor, axes: tuple[str, ...] = ("n", "c")) -> None:
    """Refuse probabilities that are not finite, are negative or do not sum to one over the classes.

    >>> check_probabilities("probabilities", torch.tensor([[2.0, -1.0]]))
    Traceback (most recent call last):
    coset.errors.CosetError: probabilities has entries below zero (smallest -1): they look like \
logits; needed probabilities; call softmax over the class axis first
    """
    check_floating(name, values)
    check_shape(name, values, axes)
    check_simplex(name, values.detach())


def sums_to_one(values: Tensor) -> bool:
    """Whether the entries of the last axis sum to one, as far as their dtype can tell."""
    lowest, highest = working(values).sum(-1).aminmax()
    tolerance = _sum_tolerance(values)
    return bool(lowest >= 1 - tolerance) and bool(highest <= 1 + tolerance)


def _sum_tolerance(values: Tensor) -> float:
    return SUM_TOLERANCE if values.dtype.itemsize >= 4 else HALF_SUM_TOLERANCE


def check_simplex(name: str, values: Tensor) -> None:
    """The numerical half of ``check_probabilities``: two fast reductions over the entries."""
    smallest = float(values.amin())
    if smallest >= 0 and sums_to_one(values):
        return
    check_finite(name, values)
    if smallest < 0:
        raise CosetError(
            f"{name} has entries below zero (smallest {smallest:.4g}): they look like logits",
            "needed probabilities",
            "call softmax over the class axis first",
        )
    sums = working(values).sum(-1).flatten()
    worst = float(sums[(sums - 1).abs().argmax()])
    hint = ": they look like logits" if float(values.amax()) > 1 + _sum_tolerance(values) else ""
    raise CosetError(
        f"{name} sums to {worst:.4g} over the classes of an input{hint}",
        "needed probabilities that sum to one",
        "call softmax over the last axis, or divide by the sum",
    )


def check_targets(targets: Tensor, count: int, classes: int) -> None:
    """Refuse targets that are not one class index for each of ``count`` inputs.

    >>> check_targets(torch.tensor([0, 3]), 2, 3)
    Traceback (most recent call last):
    coset.errors.CosetError: targets run from 0 to 3; needed class indices from 0 to 2; check the \
labels, or the number of outputs of the network
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        kind = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise CosetError(
            f"targets are {kind}",
            "needed a tensor of integer class indices",
            "call targets.long(), or argmax over the classes if they are one-hot",
        )
    if targets.ndim != 1 or len(targets) != count:
        raise CosetError(
            f"targets has shape {tuple(targets.shape)} for {count} inputs",
            f"needed shape ({count},), one class index for each input",
            "check that probabilities and targets come from the same inputs",
        )
    if targets.dtype == torch.bool:
        targets = targets.to(torch.uint8)
    lowest, highest = (int(bound) for bound in targets.aminmax())
    if lowest < 0 or highest >= classes:
        raise CosetError(
            f"targets run from {lowest} to {highest}",
            f"needed class indices from 0 to {classes - 1}",
            "check the labels, or the number of outputs of the network",
        )


def check_classification(probabilities: Tensor, targets: Tensor) -> None:
    """Refuse probabilities and targets that do not belong together."""
    check_probabilities("probabilities", probabilities)
    check_targets(targets, *probabilities.shape)


def counted(
    probabilities: Float[Tensor, "n c ..."],
    targets: Int[Tensor, "n ..."],
    ignore: int | None,
) -> tuple[Float[Tensor, "k c"], Int[Tensor, " k"]]:
    """Probabilities and labels of all inputs, or of all pixels, that count, after the checks.

    >>> p = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> counted(p, torch.tensor([0, 255]), 255)[0].tolist()
    [[0.899..., 0.100...]]
    """
    check_floating("probabilities", probabilities)
    check_tensor("targets", targets)
    if probabilities.ndim > 2:
        probabilities, targets = flatten_pixels(probabilities, targets)
    if ignore is not None:
        if targets.shape != probabilities.shape[:1]:
            check_targets(targets, *probabilities.shape)
        known = targets != ignore
        if not bool(known.any()):
            raise CosetError(
                f"every target is {ignore}, the label to ignore",
                "needed one that counts",
                "check where the labels come from",
            )
        probabilities, targets = probabilities[known], targets[known]
    check_classification(probabilities, targets)
    return probabilities, targets


def flatten_pixels(
    probabilities: Float[Tensor, "n c ..."], targets: Int[Tensor, "n ..."]
) -> tuple[Float[Tensor, "inputs c"], Int[Tensor, " inputs"]]:
    """Every pixel as an input: (n, c, …) becomes (n · pixels, c)."""
    check_pixels(probabilities, targets)
    return probabilities.movedim(1, -1).flatten(0, -2), targets.flatten()


def check_pixels(probabilities: Tensor, targets: Tensor) -> None:
    """Refuse targets that are not one for each pixel of the probabilities."""
    shape = tuple(probabilities.shape)
    if len(shape) < 2 or tuple(targets.shape) != shape[:1] + shape[2:]:
        raise CosetError(
            f"probabilities have shape {shape}, targets {tuple(targets.shape)}",
            "needed (n, c, …) and (n, …)",
            "check that both come from the same images",
        )


def check_scores(name: str, scores: Tensor) -> None:
    """Refuse scores that are not one number, NaN excluded, for each input."""
    check_floating(name, scores)
    check_shape(name, scores, ("n",))
    check_not_nan(name, scores)


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a count below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CosetError(
            f"{name} is {value!r}", f"needed a whole number of at least {least}", f"change {name}"
        )
