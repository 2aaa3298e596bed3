"""Files for ``coset align``: read and checked, moved, and proven to be the same function."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset.alignment.result import Match
from coset.data.datasets import load
from coset.errors import CosetError
from coset.store import load_tensors
from coset.symmetry.check import difference
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.points import random_inputs
from coset.symmetry.tracing import trace
from coset.vocabulary import Weights
from coset.weights.network import weights_of
from coset.weights.refusals import check_floating, require_finite

_SAME = 1e-8
"""Relative difference of outputs in double precision that is taken for rounding."""


class SavedWeights(NamedTuple):
    """Weights of the module, and what else was in the file (batch counters)."""

    weights: Weights
    rest: dict[str, Tensor]


def read_weights(path: Path, module: nn.Module) -> SavedWeights:
    """A file's weights, refused unless they fit the module."""
    found, own = load_tensors(path), weights_of(module)
    known = set(module.state_dict())
    missing = [name for name in own if name not in found]
    unknown = [name for name in found if name not in own and name not in known]
    shapes = [n for n in own if n in found and found[n].shape != own[n].shape]
    for what, names in (("no", missing), ("an unknown", unknown)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CosetError(
                f"got {path} with {what} tensor {names[0]!r}{more}",
                "needed the tensors of the model",
                "check --model",
            )
    if shapes:
        name = shapes[0]
        raise CosetError(
            f"got {path} with {name!r} of shape {tuple(found[name].shape)}",
            f"needed {tuple(own[name].shape)}, as in the model",
            "check --model",
        )
    check_floating(found, own, str(path))
    require_finite(found, own, str(path))
    rest = {name: tensor for name, tensor in found.items() if name not in own}
    return SavedWeights({name: found[name] for name in own}, rest)


def read_examples(data: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a file, or the test part of a data set."""
    if not data.endswith(".safetensors"):
        return load(data).test
    found = load_tensors(data)
    if not {"inputs", "targets"} <= set(found):
        raise CosetError(f"got {data} with {', '.join(sorted(found))}", "needed inputs and targets")
    return found["inputs"], found["targets"]


class Moved(NamedTuple):
    """A file's tensors after alignment, in double precision and as they are written."""

    exact: Weights
    rounded: dict[str, Tensor]


def moved_tensors(group: SymmetryGroup, result: Match, other: SavedWeights, path: Path) -> Moved:
    """All tensors of the file that is moved, tied ones under each of their names."""
    tied = {name: main for name, main in group.aliases.items() if name in other.rest}
    for name, main in tied.items():
        if not torch.equal(other.rest[name], other.weights[main]):
            raise CosetError(
                f"got {path} with {name!r} other than {main!r}",
                "needed equal numbers in tensors that the model ties",
                "check --model",
            )
    exact = group.act(result.element, {n: w.double() for n, w in other.weights.items()})
    rounded = {name: exact[name].to(tensor.dtype) for name, tensor in other.weights.items()}
    copies = {name: rounded[main].clone() for name, main in tied.items()}
    return Moved(exact, {**other.rest, **rounded, **copies})


def prove(module: nn.Module, inputs: tuple[Tensor, ...], before: SavedWeights, after: Moved) -> str:
    """The largest relative difference of outputs, in words; refuses more than rounding.

    All is computed in double precision, whatever the files hold.  What was done to the weights may
    change nothing at all.  Permutations and signs do not round; scales do, and then the weights as
    they are written may differ by what the files' own type allows.
    """
    graph = trace(module, inputs)
    probe = random_inputs(inputs, generator=torch.Generator().manual_seed(0))
    written = {name: after.rounded[name] for name in after.exact}
    reference, moved, read = (
        graph.run({n: w.double() for n, w in weights.items()}, probe, dtype=torch.float64)
        for weights in (before.weights, after.exact, written)
    )
    error = difference(reference, moved)
    _refuse_beyond(error, _SAME, "please report the model; nothing was written")
    coarse = {w.dtype for n, w in written.items() if not torch.equal(w.double(), after.exact[n])}
    if not coarse:
        return f"largest difference {error:.1e}, relative, on random inputs"
    kind = max(coarse, key=lambda kind: torch.finfo(kind).eps)
    allowed = min(1e4 * torch.finfo(kind).eps, 0.1)
    error = difference(reference, read)
    _refuse_beyond(error, allowed, f"scales do not fit {kind}: give --scales keep")
    return (
        f"largest difference {error:.1e}, relative, on random inputs, "
        f"from scales rounded to {str(kind).removeprefix('torch.')} (allowed: {allowed:.1e})"
    )


def _refuse_beyond(error: float, allowed: float, advice: str) -> None:
    if not error <= allowed:
        raise CosetError(
            f"got outputs that differ by {error:.1e} after alignment",
            f"needed at most {allowed:.1e}",
            advice,
        )
