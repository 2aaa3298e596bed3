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
    _check_finite(group, weights, what)
    return lead


def _check_finite(group: SymmetryGroup, weights: Weights, what: str) -> None:
    if not group.shapes or bool(
        torch.stack([weights[n].sum() for n in group.shapes]).isfinite().all()
    ):
        return  # one test for all: a sum is finite only if its parts are
    for name in group.shapes:
        bad = int((~torch.isfinite(weights[name])).sum())
        if bad:
            raise CosetError(
                f"got {what} with {bad} numbers in {name!r} that are infinite or not numbers",
                "needed finite weights",
                "take a checkpoint from before training diverged",
            )
