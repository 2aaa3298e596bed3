"""Stacks: many members of one architecture in one dictionary."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.vocabulary import Weights
from coset.weights.refusals import require_weights


def stack(members: Iterable[Weights]) -> Weights:
    """Puts members of one architecture side by side, along a new first axis.

    >>> stack([{"w": torch.zeros(2)}, {"w": torch.ones(2)}])["w"].shape
    torch.Size([2, 2])
    """
    members = list(members)
    if not members:
        raise CosetError("got no weights to stack", "needed at least one member")
    for index, member in enumerate(members):
        require_weights(member, f"member {index}")
        check_fit(member, members[0], what=f"member {index}")
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def unstack(members: Weights) -> list[Weights]:
    """The members of a stack, one dictionary each.

    >>> [w["w"].tolist() for w in unstack({"w": torch.tensor([[1.0], [2.0]])})]
    [[1.0], [2.0]]
    """
    return [
        {name: tensor[index] for name, tensor in members.items()}
        for index in range(members_of(members))
    ]


def members_of(members: Weights) -> int:
    """How many members a stack holds."""
    require_weights(members, "a stack")
    if not members:
        raise CosetError("got an empty stack", "needed at least one tensor")
    counts = {tensor.shape[0] if tensor.dim() else 0 for tensor in members.values()}
    if len(counts) != 1 or 0 in counts:
        raise CosetError(
            f"got leading axes of sizes {sorted(counts)}",
            "needed one member axis of the same size on every tensor",
            "build stacks with coset.stack",
        )
    return counts.pop()


def check_fit(
    weights: Mapping[str, Tensor],
    pattern: Mapping[str, Tensor],
    *,
    what: str = "weights",
    partial: bool = False,
    typed: bool = False,
) -> None:
    """Refuses weights whose names or shapes differ from those of ``pattern``.

    Args:
        weights: What was given.
        pattern: What it must be like.
        what: What it is, for the message.
        partial: Whether names may be missing.
        typed: Whether types of numbers must be the same too.
    """
    unknown = [name for name in weights if name not in pattern]
    missing = [] if partial else [name for name in pattern if name not in weights]
    if unknown or missing:
        listed = [f"unknown {name!r}" for name in unknown] + [f"no {name!r}" for name in missing]
        raise CosetError(
            f"got {what} with {', '.join(listed[:4])}" + (" …" if len(listed) > 4 else ""),
            f"needed the {len(pattern)} tensors of the network",
            "check that the weights belong to this architecture; weights_of(module) gives those of "
            "a module, without the counters of its state_dict()",
        )
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise CosetError(
                f"got {what} with {name!r} of type {type(tensor).__name__}", "needed tensors"
            )
        if typed and tensor.dtype != pattern[name].dtype:
            raise CosetError(
                f"got {what} with {name!r} of type {tensor.dtype}",
                f"needed {pattern[name].dtype}, as the network has",
                "convert the weights or the module",
            )
        if tensor.shape != pattern[name].shape:
            raise CosetError(
                f"got {what} with {name!r} of shape {tuple(tensor.shape)}",
                f"needed {tuple(pattern[name].shape)}",
                "check that the weights belong to this architecture",
            )


def check_ties(weights: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Refuses different numbers under names that mean one tensor.

    Args:
        weights: What was given.
        aliases: For further names of a tensor its first one.
    """
    for name, main in aliases.items():
        one, other = weights.get(name), weights.get(main)
        if name == main or not isinstance(one, Tensor) or not isinstance(other, Tensor):
            continue
        same = one.shape == other.shape and torch.allclose(
            one.double(), other.double(), rtol=0.0, atol=0.0, equal_nan=True
        )
        if not same:
            raise CosetError(
                f"got weights with {name!r} other than {main!r}",
                "needed equal numbers in tensors that the network ties",
                "check that the weights belong to this architecture",
            )
