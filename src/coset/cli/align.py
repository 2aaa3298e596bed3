"""``coset align``: moves one checkpoint along its orbit until it lies near another."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coset.alignment.by_weights import Scales
    from coset.alignment.match import By
    from coset.alignment.result import Match
    from coset.symmetry.group import SymmetryGroup
    from coset.vocabulary import Weights


def align(
    a: Annotated[Path, Parameter(name="A.safetensors", show_default=False)],
    b: Annotated[Path, Parameter(name="B.safetensors", show_default=False)],
    /,
    *,
    model: Annotated[str, Parameter(show_default=False)],
    out: Annotated[Path, Parameter(show_default=False)],
    input_shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    dtype: Annotated[list[Literal["float", "int"]] | None, Parameter(negative="")] = None,
    by: Literal["weights", "activations"] = "weights",
    scales: Literal["automatic", "match", "keep", "canonical", "mass"] = "automatic",
    restarts: Annotated[int, Parameter(validator=Number(gte=0, lte=10_000))] = 0,
    data: str | None = None,
    points: Annotated[int, Parameter(validator=Number(gte=3, lte=1000))] = 25,
    reset_norm: bool = False,
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
        scales: Whether positive scales are matched, kept, matched where that helps much, or fixed
            by the canonical form or the smallest mass first.
        restarts: Further random orders; the best is kept.
        data: A data set (digits, mnist, fashion_mnist, ...) or a safetensors file with inputs and
            targets: shows the barrier of the loss between the networks, before and after.
        points: Points of the barrier.
        reset_norm: Measure batch-norm statistics again at every point.
        seed: Where every random number comes from.
    """
    _check_place(out, a, b)
    _check_data(by, data)
    request = _Request(
        a, b, model, out, input_shape or [], dtype or ["float"], by, scales, restarts, data, seed
    )
    _run(request, points, reset_norm)


class _Request(NamedTuple):
    """What was asked for."""

    a: Path
    b: Path
    model: str
    out: Path
    input_shape: list[str]
    dtype: list[Literal["float", "int"]]
    by: str
    scales: "Scales"
    restarts: int
    data: str | None
    seed: int


def _run(asked: _Request, points: int, reset_norm: bool) -> None:
    import torch

    from coset.alignment.match import match
    from coset.cli.factory import load_module, read_inputs
    from coset.store import save_record
    from coset.symmetry.discover import discover

    module = load_module(asked.model).eval()
    one, other = _read(asked.a, module), _read(asked.b, module)
    inputs = read_inputs(module, asked.input_shape, asked.dtype)
    examples = None if asked.data is None else _examples(asked.data)
    group = discover(module, inputs)
    generator = torch.Generator().manual_seed(asked.seed)
    way = _way(asked, module, examples)
    result = match(group, other.weights, to=one.weights, by=way, generator=generator)
    error = _proof(module, inputs, other.weights, result.weights)
    _show(group, one.weights, other.weights, result)
    if examples is not None:
        _show_barriers(module, one.weights, other.weights, result, examples, points, reset_norm)
    facts = {
        "kind": "weights",
        "aligned_to": asked.a.name,
        "from": asked.b.name,
        "model": asked.model,
    }
    save_record(asked.out, {**other.rest, **result.weights}, facts)
    digest = hashlib.sha256(asked.out.read_bytes()).hexdigest()
    print(
        f"same function as {asked.b.name}: largest difference {error:.1e}, relative, "
        "on random inputs"
    )
    print(f"{asked.out}: sha256 {digest}")


class _Checkpoint(NamedTuple):
    """Weights of the module, and what else was in the file (batch counters)."""

    weights: "Weights"
    rest: "dict[str, Tensor]"


def _read(path: Path, module: "nn.Module") -> _Checkpoint:
    """A file's weights, refused unless they fit the module."""
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


def _check_data(by: str, data: str | None) -> None:
    from coset.errors import CosetError

    if by == "activations" and data is None:
        raise CosetError("got --by activations without --data", "needed data to run", "give --data")


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


def _way(asked: _Request, module: "nn.Module", examples: "tuple[Tensor, Tensor] | None") -> "By":
    from coset.alignment.activations import ByActivations
    from coset.alignment.by_weights import ByWeights

    if asked.by == "activations" and examples is not None:
        return ByActivations(module, examples[0])
    return ByWeights(restarts=asked.restarts, scales=asked.scales)


def _proof(
    module: "nn.Module", inputs: "tuple[Tensor, ...]", before: "Weights", after: "Weights"
) -> float:
    """The largest relative difference of outputs; refuses more than rounding."""
    import torch

    from coset.errors import CosetError
    from coset.symmetry.check import difference
    from coset.symmetry.points import random_inputs
    from coset.symmetry.tracing import trace

    graph = trace(module, inputs)
    probe = random_inputs(inputs, generator=torch.Generator().manual_seed(0))
    outputs = [
        graph.run({n: w.double() for n, w in weights.items()}, probe, dtype=torch.float64)
        for weights in (before, after)
    ]
    error = difference(*outputs)
    allowed = 1e4 * max(torch.finfo(w.dtype).eps for w in after.values())
    if not error <= allowed:
        raise CosetError(
            f"got outputs that differ by {error:.1e} after alignment",
            f"needed at most {allowed:.1e}",
            "please report the model; nothing was written",
        )
    return error


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


def _show_barriers(
    module: "nn.Module",
    one: "Weights",
    other: "Weights",
    result: "Match",
    examples: "tuple[Tensor, Tensor]",
    points: int,
    reset_norm: bool,
) -> None:
    from coset.alignment.barrier import barrier

    paths = [
        barrier(module, one, weights, examples, points=points, reset_norm=reset_norm)
        for weights in (other, result.weights)
    ]
    for name, values in (
        ("barrier of the loss", [path.height for path in paths]),
        ("barrier of the error", [path.error_height for path in paths]),
    ):
        print(f"{name}: {values[0]:.4f} before, {values[1]:.4f} after")
