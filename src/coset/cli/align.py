"""``coset align``: moves one checkpoint along its orbit until it lies near another."""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import Parameter

from coset.cli.factory import check_kinds, source_of
from coset.cli.numbers import whole_number
from coset.cli.places import check_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from coset.alignment.match import By
    from coset.alignment.scales import Scales
    from coset.vocabulary import Weights

_Kind = Literal["float", "int"]


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
    restarts: Annotated[int | None, whole_number(0, 10_000)] = None,
    soft: Annotated[int | None, whole_number(0, 10_000)] = None,
    data: str | None = None,
    points: Annotated[int | None, whole_number(3, 1000)] = None,
    reset_norm: Annotated[bool, Parameter(negative="")] = False,
    repair: Annotated[bool, Parameter(negative="")] = False,
    seed: Annotated[int, whole_number(0, 2**63 - 1)] = 0,
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
        restarts: Further runs, each from the best so far with some units shuffled; none if nothing
            is said; the best is kept; by weights only.
        soft: Rounds of soft permutations before units are sent somewhere, 3 if nothing is said;
            more match better and take longer; by weights only.
        data: A data set (digits, mnist, fashion_mnist, ...) or a safetensors file with inputs and
            targets: shows the barrier of the loss between the networks, before and after.
        points: Points of the barrier, 25 if nothing is said.
        reset_norm: Measure batch-norm statistics again at every point of the barrier.
        repair: Rescale channels at every inner point of the barrier, for networks without norms.
        seed: Where every random number comes from.
    """
    shapes, kinds = input_shape or [], dtype or ["float"]
    ways = _Options(by, scales, restarts, soft, data, points, reset_norm, repair, seed)
    read = [a, b, source_of(model)]
    check_file("--out", out, read if data is None else [*read, Path(data)])
    _check_options(ways)
    check_kinds(input_shape, dtype)
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
    soft: int | None
    data: str | None
    points: int | None
    reset_norm: bool
    repair: bool
    seed: int


def _run(files: _Files, ways: _Options, shapes: list[str], kinds: list[_Kind]) -> None:
    import torch

    from coset.alignment.match import match
    from coset.cli.factory import load_module, read_inputs
    from coset.cli.match_tables import barrier_lines, show_match
    from coset.cli.weight_files import moved_tensors, prove, read_examples, read_weights
    from coset.symmetry.discover import discover

    module = copy.deepcopy(load_module(files.model)).float().eval()
    _check_norms(module, ways)
    inputs = read_inputs(module, shapes, kinds)  # which lets lazy layers find their sizes
    one, other = read_weights(files.a, module), read_weights(files.b, module)
    examples = None if ways.data is None else read_examples(ways.data)
    # in the wider type of the two files, and in single precision at least
    wide = _widest(one.weights, other.weights)
    module, inputs = module.to(wide), tuple(_cast(x, wide) for x in inputs)
    ours, theirs = ({n: w.to(wide) for n, w in c.weights.items()} for c in (one, other))
    if examples is not None:
        examples = _cast(examples[0], wide), _cast(examples[1], wide)
    group = discover(module, inputs)
    generator = torch.Generator().manual_seed(ways.seed)
    with _naming(ways.data if ways.by == "activations" else None):
        result = match(group, theirs, to=ours, by=_way(ways, module, examples), generator=generator)
    moved = moved_tensors(group, result, other, files.b)
    proof = prove(module, inputs, other, moved)
    lines = []
    if examples is not None:
        options = {"reset_norm": ways.reset_norm, "repair": ways.repair}
        points = ways.points or 25
        with _naming(ways.data):
            lines = barrier_lines(module, ours, theirs, result, examples, points=points, **options)
    digest = _write(files, moved.rounded)  # before anything is printed: who reads may stop
    show_match(group, ours, theirs, result)
    for line in lines:
        print(line)
    print(f"same function as {files.b.name}: {proof}")
    print(f"{files.out}: sha256 {digest}")


@contextmanager
def _naming(data: str | None) -> Iterator[None]:
    """What is wrong with examples is said with the option that gave them."""
    from coset.errors import CosetError

    try:
        yield
    except CosetError as error:
        if data is None:
            raise
        wrong = str(error).removeprefix("got ")
        raise CosetError(f"got --data {data} with {wrong}") from error


def _write(files: _Files, tensors: "dict[str, Tensor]") -> str:
    """Writes the moved weights; gives the digest of the file."""
    from coset.store import save_record

    facts = {
        "kind": "weights",
        "aligned_to": files.a.name,
        "from": files.b.name,
        "model": files.model,
    }
    save_record(files.out, tensors, facts)
    return hashlib.sha256(files.out.read_bytes()).hexdigest()


def _check_options(ways: _Options) -> None:
    """Refuses options that would have no effect."""
    from coset.errors import CosetError

    if ways.by == "activations":
        if ways.data is None:
            raise CosetError(
                "got --by activations without --data", "needed data to run", "give --data"
            )
        for word in ("scales", "restarts", "soft"):
            if getattr(ways, word) is not None:
                raise CosetError(
                    f"got --{word} with --by activations",
                    "needed --by weights",
                    f"leave --{word} out",
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
    from coset.alignment.norm_reset import norms_of
    from coset.errors import CosetError

    if ways.reset_norm and not norms_of(module):
        raise CosetError(
            "got --reset-norm for a network without batch norm",
            "needed running statistics to measure again",
            "give --repair instead",
        )


def _widest(*given: "Weights") -> "torch.dtype":
    import torch

    kinds = {tensor.dtype for weights in given for tensor in weights.values()}
    return torch.float64 if torch.float64 in kinds else torch.float32


def _cast(tensor: "Tensor", kind: "torch.dtype") -> "Tensor":
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _way(ways: _Options, module: "nn.Module", examples: "tuple[Tensor, Tensor] | None") -> "By":
    from coset.alignment.by_activations import ByActivations
    from coset.alignment.by_weights import ByWeights

    if ways.by == "activations" and examples is not None:
        return ByActivations(module, examples[0])
    plain = ByWeights(restarts=ways.restarts or 0, scales=ways.scales or "automatic")
    return plain if ways.soft is None else replace(plain, soft=ways.soft)
