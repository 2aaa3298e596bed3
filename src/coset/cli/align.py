"""``coset align``: moves one checkpoint along its orbit until it lies near another."""

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from coset.alignment.by_weights import Scales
    from coset.alignment.match import By
    from coset.alignment.result import Match
    from coset.symmetry.group import SymmetryGroup
    from coset.vocabulary import Weights

_Kind = Literal["float", "int"]
_SAME = 1e-8
"""Relative difference of outputs in double precision that is taken for rounding."""


def align(
    a: Annotated[Path, Parameter(name="A.safetensors", show_default=False)],
    b: Annotated[Path, Parameter(name="B.safetensors", show_default=False)],
    /,
    *,
    model: Annotated[str, Parameter(show_default=False)],
    out: Annotated[Path, Parameter(show_default=False)],
    input_shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    dtype: Annotated[list[_Kind] | None, Parameter(negative="")] = None,
    by: Literal["weights", "activations"] = "weights",
    scales: Literal["automatic", "match", "keep", "canonical", "mass"] | None = None,
    restarts: Annotated[int | None, Parameter(validator=Number(gte=0, lte=10_000))] = None,
    data: str | None = None,
    points: Annotated[int | None, Parameter(validator=Number(gte=3, lte=1000))] = None,
    reset_norm: Annotated[bool, Parameter(negative="")] = False,
    repair: Annotated[bool, Parameter(negative="")] = False,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))] = 0,
) -> None:
    """Aligns the network in B to the network in A and writes it as C, the same function as B.

    Units are permuted, and signs and scales changed where the architecture allows, so that weights
    of the two networks can be compared, averaged and interpolated.

    Args:
        a: The network to align to.
        b: The network that is moved.
        model: A function without arguments that gives the module, as package.module:function or
            ./file.py:function. Example: coset.models:resnet20
        out: The file to write.
        input_shape: Shape of the input with its batch axis, such as 1,3,32,32; once for each input.
            Guessed from the first layer when missing.
        dtype: float, or int for token numbers; once for all inputs or once for each.
        by: What units are compared by; activations need --data.
        scales: Whether positive scales are matched, kept, matched where that helps much (automatic,
            what is done if nothing is said), or fixed by the canonical form or the smallest mass
            first; by weights only.
        restarts: Further random orders, none if nothing is said; the best is kept; by weights only.
        data: A data set (digits, mnist, fashion_mnist, ...) or a safetensors file with inputs and
            targets: shows the barrier of the loss between the networks, before and after.
        points: Points of the barrier, 25 if nothing is said.
        reset_norm: Measure batch-norm statistics again at every point of the barrier.
        repair: Rescale channels at every inner point of the barrier, for networks without norms.
        seed: Where every random number comes from.
    """
    shapes, kinds = input_shape or [], dtype or ["float"]
    ways = _Options(by, scales, restarts, data, points, reset_norm, repair, seed)
    _check_place(out, a, b)
    _check_options(ways)
    _run(_Files(a, b, model, out), ways, shapes, kinds)


class _Files(NamedTuple):
    """What is read and written."""

    a: Path
    b: Path
    model: str
    out: Path


class _Options(NamedTuple):
    """How it is done."""

    by: str
    scales: "Scales | None"
    restarts: int | None
    data: str | None
    points: int | None
    reset_norm: bool
    repair: bool
    seed: int


def _run(files: _Files, ways: _Options, shapes: list[str], kinds: list[_Kind]) -> None:
    import torch

    from coset.alignment.match import match
    from coset.cli.factory import load_module, read_inputs
    from coset.symmetry.discover import discover

    module = copy.deepcopy(load_module(files.model)).float().eval()
    _check_norms(module, ways)
    one, other = _read(files.a, module), _read(files.b, module)
    inputs = read_inputs(module, shapes, kinds)
    examples = None if ways.data is None else _examples(ways.data)
    # in the wider type of the two files, and in single precision at least
    wide = _widest(one.weights, other.weights)
    module, inputs = module.to(wide), tuple(_cast(x, wide) for x in inputs)
    ours, theirs = ({n: w.to(wide) for n, w in c.weights.items()} for c in (one, other))
    if examples is not None:
        examples = _cast(examples[0], wide), _cast(examples[1], wide)
    group = discover(module, inputs)
    generator = torch.Generator().manual_seed(ways.seed)
    result = match(group, theirs, to=ours, by=_way(ways, module, examples), generator=generator)
    moved = _moved(group, result, other, files.b)
    proof = _proof(module, inputs, other, moved)
    barriers = [] if examples is None else _barriers(module, ours, theirs, result, examples, ways)
    _show(group, ours, theirs, result)
    for line in barriers:
        print(line)
    _write(files, moved, proof)


def _write(files: _Files, moved: "_Moved", proof: str) -> None:
    from coset.store import save_record

    facts = {
        "kind": "weights",
        "aligned_to": files.a.name,
        "from": files.b.name,
        "model": files.model,
    }
    save_record(files.out, moved.rounded, facts)
    digest = hashlib.sha256(files.out.read_bytes()).hexdigest()
    print(f"same function as {files.b.name}: {proof}")
    print(f"{files.out}: sha256 {digest}")


def _widest(*given: "Weights") -> "torch.dtype":
    import torch

    kinds = {tensor.dtype for weights in given for tensor in weights.values()}
    return torch.float64 if torch.float64 in kinds else torch.float32


def _cast(tensor: "Tensor", kind: "torch.dtype") -> "Tensor":
    return tensor.to(kind) if tensor.is_floating_point() else tensor


class _Checkpoint(NamedTuple):
    """Weights of the module, and what else was in the file (batch counters)."""

    weights: "Weights"
    rest: "dict[str, Tensor]"


def _read(path: Path, module: "nn.Module") -> _Checkpoint:
    """A file's weights, refused unless they fit the module."""
    from coset.alignment.checks import check_floating
    from coset.errors import CosetError
    from coset.store import load_tensors
    from coset.weights.network import weights_of

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
    rest = {name: tensor for name, tensor in found.items() if name not in own}
    return _Checkpoint({name: found[name] for name in own}, rest)


def _check_place(out: Path, *sources: Path) -> None:
    """Refuses a file that cannot be written before any work is done."""
    from coset.errors import CosetError

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise CosetError(
            f"got --out {out}, " + ("a folder" if out.is_dir() else "whose folder is missing"),
            "needed the name of a file in a folder that exists",
            "give another --out",
        )
    if out.absolute() in [source.absolute() for source in sources]:
        raise CosetError(f"got --out {out}, which is an input", "needed another name")


def _check_options(ways: _Options) -> None:
    """Refuses options that would have no effect."""
    from coset.errors import CosetError

    if ways.by == "activations":
        if ways.data is None:
            raise CosetError(
                "got --by activations without --data", "needed data to run", "give --data"
            )
        for word, value in (("--scales", ways.scales), ("--restarts", ways.restarts)):
            if value is not None:
                raise CosetError(
                    f"got {word} with --by activations", "needed --by weights", f"leave {word} out"
                )
    measuring = {
        "--points": ways.points is not None,
        "--reset-norm": ways.reset_norm,
        "--repair": ways.repair,
    }
    for word in [word for word, given in measuring.items() if given and ways.data is None]:
        raise CosetError(
            f"got {word} without --data", "needed data to measure a barrier on", "give --data"
        )


def _check_norms(module: "nn.Module", ways: _Options) -> None:
    from coset.alignment.statistics import norms_of
    from coset.errors import CosetError

    if ways.reset_norm and not norms_of(module):
        raise CosetError(
            "got --reset-norm for a network without batch norm",
            "needed running statistics to measure again",
            "give --repair instead",
        )


def _examples(data: str) -> "tuple[Tensor, Tensor]":
    from coset.data.datasets import load
    from coset.errors import CosetError
    from coset.store import load_tensors

    if not data.endswith(".safetensors"):
        return load(data).test
    found = load_tensors(data)
    if not {"inputs", "targets"} <= set(found):
        raise CosetError(f"got {data} with {', '.join(sorted(found))}", "needed inputs and targets")
    return found["inputs"], found["targets"]


def _way(ways: _Options, module: "nn.Module", examples: "tuple[Tensor, Tensor] | None") -> "By":
    from coset.alignment.activations import ByActivations
    from coset.alignment.by_weights import ByWeights

    if ways.by == "activations" and examples is not None:
        return ByActivations(module, examples[0])
    return ByWeights(restarts=ways.restarts or 0, scales=ways.scales or "automatic")


class _Moved(NamedTuple):
    """A file's tensors after alignment, in double precision and as they are written."""

    exact: "Weights"
    rounded: "dict[str, Tensor]"


def _moved(group: "SymmetryGroup", result: "Match", other: _Checkpoint, path: Path) -> _Moved:
    """All tensors of the file that is moved, tied ones under each of their names."""
    import torch

    from coset.errors import CosetError

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
    return _Moved(exact, {**other.rest, **rounded, **copies})


def _proof(
    module: "nn.Module", inputs: "tuple[Tensor, ...]", before: _Checkpoint, after: _Moved
) -> str:
    """The largest relative difference of outputs, in words; refuses more than rounding.

    All is computed in double precision, whatever the files hold.  What was done to the weights may
    change nothing at all.  Permutations and signs do not round; scales do, and then the weights as
    they are written may differ by what the files' own type allows.
    """
    import torch

    from coset.symmetry.check import difference
    from coset.symmetry.points import random_inputs
    from coset.symmetry.tracing import trace

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
    from coset.errors import CosetError

    if not error <= allowed:
        raise CosetError(
            f"got outputs that differ by {error:.1e} after alignment",
            f"needed at most {allowed:.1e}",
            advice,
        )


def _show(group: "SymmetryGroup", one: "Weights", other: "Weights", result: "Match") -> None:
    from rich.console import Console
    from rich.table import Table

    from coset.alignment.match import measured_between
    from coset.alignment.transpositions import expected_transpositions

    before = measured_between(group, other, one)
    table = Table(box=None, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {
        "distance": (before.squared_distance**0.5, result.squared_distance**0.5),
        "objective": (before.objective, result.objective),
    }
    for name, (first, second) in rows.items():
        table.add_row(name, f"{first:.6g}", f"{second:.6g}")
    console = Console(soft_wrap=True)
    console.print(table)
    moved = Table(box=None, pad_edge=False)
    for column in ("factor", "units", "transpositions", "random"):
        moved.add_column(column, justify="left" if column == "factor" else "right", no_wrap=True)
    counts = result.transpositions_of
    for factor in group.permutations:
        copies = group.tables.copies(factor)
        chance = copies * expected_transpositions(factor.size)
        units = f"{copies}×{factor.size}" if copies > 1 else f"{factor.size}"
        moved.add_row(factor.name, units, str(counts[factor.name]), f"{chance:.1f}")
    console.print(moved)
    ties = f", {result.ties} tied units" if result.ties else ""
    console.print(f"{result.transpositions} transpositions in all{ties}")


def _barriers(
    module: "nn.Module",
    one: "Weights",
    other: "Weights",
    result: "Match",
    examples: "tuple[Tensor, Tensor]",
    ways: _Options,
) -> list[str]:
    """Lines that tell of the barrier before and after."""
    from coset.alignment.barrier import barrier

    before, after = (
        barrier(
            module,
            one,
            weights,
            examples,
            points=ways.points or 25,
            reset_norm=ways.reset_norm,
            repair=ways.repair,
        )
        for weights in (other, result.weights)
    )
    return [
        f"barrier of the loss: {before.height:.4f} before, {after.height:.4f} after",
        f"barrier of the error: {before.error_height:.4f} before, {after.error_height:.4f} after",
    ]
