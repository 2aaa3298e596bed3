"""Refuses weights that cannot be matched, and says which tensor is to blame."""

import torch

from coset.errors import CosetError
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


def check_weights(group: SymmetryGroup, weights: Weights, what: str) -> int:
    """Refuses missing tensors, other shapes and numbers that are not finite.

    Returns:
        The number of member axes, 0 or 1.
    """
    lead = check_shapes(group, weights, what)
    check_finite(group, weights, what)
    return lead


def check_shapes(group: SymmetryGroup, weights: Weights, what: str) -> int:
    """Refuses missing tensors, unknown ones and other shapes; the number of member axes."""
    missing = [name for name in group.shapes if name not in weights]
    known = {*group.shapes, *group.aliases}
    unknown = [n for n, t in weights.items() if n not in known and t.is_floating_point()]
    if missing or unknown:
        listed = [f"no {name!r}" for name in missing] + [f"unknown {name!r}" for name in unknown]
        more = " …" if len(listed) > 4 else ""
        raise CosetError(
            f"got {what} with {', '.join(listed[:4])}{more}",
            f"needed the {len(group.shapes)} tensors of the network the group belongs to",
            "match networks of one architecture",
        )
    if all(weights[name].shape == shape for name, shape in group.shapes.items()):
        return 0
    leads = {name: weights[name].dim() - len(shape) for name, shape in group.shapes.items()}
    lead = min(leads.values())
    for name, shape in group.shapes.items():
        got = tuple(weights[name].shape)
        if leads[name] != lead or lead not in (0, 1) or got[lead:] != tuple(shape):
            raise CosetError(
                f"got {name!r} of shape {got} in {what}",
                f"needed {tuple(shape)}, or a stack of such tensors with one member axis",
                "match networks of one architecture",
            )
    return lead


def check_finite(group: SymmetryGroup, weights: Weights, what: str) -> None:
    """Refuses infinite numbers and those that are none."""
    if finite_product(group, weights, weights):
        return
    for name in group.shapes:
        bad = int((~torch.isfinite(weights[name])).sum())
        if bad:
            raise CosetError(
                f"got {what} with {bad} numbers in {name!r} that are infinite or not numbers",
                "needed finite weights",
                "take a checkpoint from before training diverged",
            )


@torch.no_grad()
def finite_product(group: SymmetryGroup, one: Weights, other: Weights) -> bool:
    """Whether ``<one, other>`` is finite: only if all numbers are, so one test does for both."""
    pairs = [(one[name], other[name]) for name in group.shapes]
    if any(a.dtype != b.dtype or a.shape != b.shape or a.device != b.device for a, b in pairs):
        return False  # not to be had so cheaply
    products = [torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in pairs]
    return not products or bool(torch.stack(products).isfinite().all())
