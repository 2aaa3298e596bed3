"""Refuses what is given in the place of weights, and weights that cannot be used."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from torch import Tensor, nn

from coset.errors import CosetError
from coset.vocabulary import Weights


def as_weights(given: object, what: str) -> Weights:
    """A dictionary of tensors, detached from any graph of gradients; all else is refused."""
    require_weights(given, what)
    assert isinstance(given, Mapping)
    if not any(map(attrgetter("requires_grad"), given.values())):
        return dict(given)
    return {name: tensor.detach() for name, tensor in given.items()}


def require_weights(given: object, what: str) -> None:
    """Refuses what is no dictionary of tensors."""
    if isinstance(given, Mapping):
        if all(issubclass(kind, Tensor) for kind in set(map(type, given.values()))):
            return
        name, wrong = next((n, t) for n, t in given.items() if not isinstance(t, Tensor))
        raise CosetError(
            f"got {what} with {name!r} of type {type(wrong).__name__}", "needed tensors"
        )
    raise CosetError(
        f"got {what} of type {type(given).__name__}",
        "needed weights, a dictionary of tensors",
        "take coset.weights_of(module)"
        if isinstance(given, nn.Module)
        else "take those of coset.weights_of(module), or put several together with coset.stack",
    )


def check_floating(weights: Weights, names: Iterable[str], what: str) -> None:
    """Refuses whole numbers where a network has real ones."""
    kinds = set(map(attrgetter("dtype"), map(weights.__getitem__, names)))
    if not all(map(attrgetter("is_floating_point"), kinds)):
        wrong = [name for name in names if not weights[name].is_floating_point()]
        raise CosetError(
            f"got {what} with {wrong[0]!r} of type {weights[wrong[0]].dtype}",
            "needed floating-point numbers",
            "take the weights as they were before they were quantised or cast",
        )


def require_finite(weights: Weights, names: Iterable[str], what: str) -> None:
    """Refuses infinite numbers and those that are none; only masks may be infinite."""
    for name in names:
        bad = int((~weights[name].isfinite()).sum())
        if bad and not is_mask(weights[name]):
            raise CosetError(
                f"got {what} with {bad} numbers in {name!r} that are infinite or not numbers",
                "needed finite weights",
                "take a checkpoint from before training diverged",
            )


def is_mask(tensor: Tensor) -> bool:
    """Whether there are only zeros and ``-inf``, in a table as is added to scores of attention.

    >>> import torch
    >>> is_mask(torch.tensor([[0.0, -torch.inf]])), is_mask(torch.tensor([[0.5, -torch.inf]]))
    (True, False)
    """
    zero = tensor == 0
    return tensor.dim() > 1 and bool(zero.any()) and bool((zero | tensor.isneginf()).all())
