"""Refuses weights and inputs that cannot be used, and says which tensor is to blame."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from coset.errors import CosetError, require_kind
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import check_finite_inputs, count_rows
from coset.weights.network import REFUSALS, Network, functionalise, refusal
from coset.weights.refusals import check_floating, require_finite

Answer = TypeVar("Answer")

TO = "the weights to match to"
MOVED = "the weights to move"


def seeded(generator: object) -> torch.Generator:
    """The generator, of which ``None`` is a fresh one of seed 0; all else is refused.

    >>> seeded(None).initial_seed()
    0
    """
    if generator is None:
        return torch.Generator().manual_seed(0)
    require_kind(torch.Generator, "torch.Generator", generator=generator)
    assert isinstance(generator, torch.Generator)
    return generator


def check_weights(group: SymmetryGroup, weights: Weights, what: str) -> int:
    """Refuses missing tensors, unknown ones, other shapes and numbers that are not finite.

    Returns:
        The number of member axes, 0 or 1.
    """
    if weights.keys() != group.shapes.keys():
        _check_names(group, weights, what)
    check_floating(weights, group.shapes, what)
    leads = {name: weights[name].dim() - len(shape) for name, shape in group.shapes.items()}
    lead = min(leads.values(), default=0)
    for name, shape in group.shapes.items():
        got = tuple(weights[name].shape)
        if leads[name] != lead or lead not in (0, 1) or got[lead:] != tuple(shape):
            raise CosetError(
                f"got {name!r} of shape {got} in {what}",
                f"needed {tuple(shape)}, or a stack of such tensors with one member axis",
                "match networks of one architecture",
            )
    require_finite(weights, group.shapes, what)
    return lead


def _check_names(group: SymmetryGroup, weights: Weights, what: str) -> None:
    """Refuses missing tensors and unknown ones."""
    missing = [name for name in group.shapes if name not in weights]
    others = [n for n in weights if n not in group.shapes and n not in group.aliases]
    unknown = [name for name in others if weights[name].is_floating_point()]
    if missing or unknown:
        listed = [f"no {name!r}" for name in missing] + [f"unknown {name!r}" for name in unknown]
        more = " …" if len(listed) > 4 else ""
        raise CosetError(
            f"got {what} with {', '.join(listed[:4])}{more}",
            f"needed the {len(group.shapes)} tensors of the network the group belongs to",
            "match networks of one architecture",
        )


def network_of(module: nn.Module, what: str) -> Network:
    """A module as pure functions."""
    if not isinstance(module, nn.Module):
        raise CosetError(
            f"got {what} with a module of type {type(module).__name__}", "needed a torch.nn.Module"
        )
    return functionalise(module)


def check_network(group: SymmetryGroup, network: Network, what: str) -> None:
    """Refuses a network that the group does not belong to."""
    found = {name: tuple(tensor.shape) for name, tensor in network.weights.items()}
    for name in {**group.shapes, **found}:
        if found.get(name) != group.shapes.get(name) and name not in group.aliases:
            raise CosetError(
                f"got {what} with a module whose {name!r} is {_sized(found.get(name))}",
                f"needed {_sized(group.shapes.get(name))}, as in the network of the group",
                "give the module that discover was called with",
            )


def _sized(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {tuple(shape)}"


def answer(
    call: Callable[[Inputs], Answer], inputs: Inputs, weights: Iterable[Tensor] = ()
) -> Answer:
    """What a network with some weights says to inputs, blamed if it cannot take them."""
    count_rows(inputs)
    check_finite_inputs(inputs)
    try:
        return call(inputs)
    except CosetError:
        raise
    except REFUSALS as error:
        raise refusal(inputs, error, weights) from error
