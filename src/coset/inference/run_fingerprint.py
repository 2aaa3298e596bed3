"""What tells one run from another, so that a record is only taken up by the run that wrote it.

A fingerprint is plain JSON and the same in every process: tensors are named by a digest of their
content, and addresses in memory are left out.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.bayes.batches import Batches, InMemory, repeatable_rows
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.printing import written
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import map_parts, parts_of
from coset.weights.network import Network
from coset.weights.randomness import own_randomness

_OUTPUTS, _THREADS = "outputs", "threads"
_ROWS, _NUMBERS = 8, 64
"""Examples, and numbers among their outputs, by which a network is recognised."""

_ABOUT, _SLACK = "about", 1e-3
"""Outputs that differ by less than this share of the largest may come from another machine."""

_WIDTH, _SHOWN = 60, 3
"""Characters of an entry, and how many entries, in a message."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def fingerprint_of(problem: Problem, starts: Weights) -> dict[str, Any]:
    """What tells runs on one problem from runs on others: its parts, its data, where runs begin."""
    module = problem.network.module
    return {
        _THREADS: torch.get_num_threads(),  # sums are rounded as they are shared out
        "network": None if module is None else _ADDRESS.sub("", written(module)).splitlines(),
        "numbers": sorted({str(tensor.dtype) for tensor in starts.values()}),
        "parameters": list(problem.network.layout.names),
        "likelihood": described(problem.likelihood),
        "prior": described(problem.prior),
        "data": data_fingerprint(problem.train),
        "first weights": digest(starts),
        _OUTPUTS: {_ABOUT: _first_outputs(problem, starts)},
    }


def data_fingerprint(batches: Batches) -> str:
    """Size and content: of a data set, which is not in memory, the content of three examples."""
    if isinstance(batches, InMemory):
        content = digest(_named((batches.inputs, batches.targets)))
    else:
        rows = repeatable_rows(batches)
        if rows is None:
            return f"{batches.size} examples of random content, which is not remembered"
        named = {f"{k} {n}": part for k, row in enumerate(rows) for n, part in _named(row).items()}
        content = digest(named)
    return f"{batches.size} examples {content}"


def _named(batch: Batch) -> dict[str, Tensor]:
    inputs = {f"inputs{number or ''}": part for number, part in enumerate(parts_of(batch[0]))}
    return {**inputs, "targets": batch[1]}


def described(value: Any) -> Any:
    """Settings, and whatever else is made of dataclasses or plain objects, as JSON.

    Fields that are not printed, such as where a run is written down, are left out.

    >>> from coset.bayes.prior import GaussianPrior
    >>> described(GaussianPrior(2.0))
    {'class': 'GaussianPrior', 'precision': 2.0}
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            return f"{tuple(value.shape)} {digest({'': value})}"
        case Mapping():
            return {str(name): described(part) for name, part in value.items()}
        case tuple() | list():
            return [described(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value) if f.repr}
    elif repr(value) == object.__repr__(value):  # nothing but an address
        own = getattr(value, "__dict__", {})
    else:
        return _ADDRESS.sub("", repr(value))
    return {"class": type(value).__name__, **described(own)}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A short name of the content of tensors: their names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def require_same(place: Path, known: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Refuses what another run has written, and says in what the two differ.

    Args:
        place: Where it lies, for the message.
        known: The fingerprint of the run that wrote it.
        needed: That of the run that is to go on.
    """
    found = [
        difference
        for name, value in needed.items()
        for difference in _differences(name, known.get(name), value)
    ]
    if not found:
        return
    found = [part for part in found if part[0] != _OUTPUTS] or found  # outputs follow the rest
    pairs = [(name, *_shown(theirs, ours)) for name, theirs, ours in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    advice = "give another folder, or the network, the settings, the data and the seed of that run"
    if _THREADS in {name for name, *_ in found}:
        advice = f"give another folder, or call torch.set_num_threads({known.get(_THREADS)}) before"
    raise CosetError(
        f"got {place}, the record of a run with "
        + ", ".join(f"{name} {theirs}" for name, theirs, _ in pairs)
        + more,
        "needed " + ", ".join(f"{name} {ours}" for name, _, ours in pairs),
        advice,
    )


def _differences(name: str, known: Any, needed: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two entries differ, and how, as finely as they can be taken apart."""
    if isinstance(known, Mapping) and isinstance(needed, Mapping):
        if _ABOUT in known and _ABOUT in needed:
            if not are_close(known[_ABOUT], needed[_ABOUT]):
                yield name, known[_ABOUT], needed[_ABOUT]
        elif known.get("class") != needed.get("class"):
            yield name, known.get("class"), needed.get("class")
        else:
            for part in sorted({*known, *needed}):
                yield from _differences(f"{name}.{part}", known.get(part), needed.get(part))
    elif isinstance(known, list) and isinstance(needed, list) and len(known) == len(needed):
        for number, pair in enumerate(zip(known, needed, strict=True)):
            yield from _differences(f"{name}[{number}]", *pair)
    elif known != needed:
        yield name, known, needed


def are_close(known: list[float], needed: list[float]) -> bool:
    """Whether outputs are those of the same network, perhaps on another machine.

    >>> are_close([1.0, -2.0], [1.0005, -2.0]), are_close([1.0, -2.0], [1.1, -2.0])
    (True, False)
    """
    try:
        first, second = (torch.tensor(values, dtype=torch.float64) for values in (known, needed))
    except (TypeError, ValueError, RuntimeError):  # what a file holds may be no numbers
        return False
    if first.shape != second.shape:
        return False
    finite = second[second.isfinite()].abs()
    room = _SLACK * float(finite.max()) if len(finite) else 0.0
    return torch.allclose(first, second, rtol=0.0, atol=room, equal_nan=True)


def _shown(known: Any, needed: Any) -> tuple[str, str]:
    """Two values in print; long ones from shortly before their first difference on."""
    texts = repr(known), repr(needed)
    same = next((k for k, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
    begin = max(0, same - _WIDTH // 2) if max(map(len, texts)) > _WIDTH else 0

    def cut(text: str) -> str:
        rest = "…" if len(text) > begin + _WIDTH else ""
        return f"{'…' if begin else ''}{text[begin : begin + _WIDTH]}{rest}"

    return cut(texts[0]), cut(texts[1])


def _first_outputs(problem: Problem, starts: Weights) -> list[float]:
    """A few outputs of the first network: they tell modules apart that print alike."""
    first = {name: tensor[0] for name, tensor in starts.items()}
    with own_randomness(0):
        inputs = problem.train.rows(torch.arange(min(_ROWS, problem.train.size)))[0]
    if not isinstance(problem.train, InMemory):  # a data set may draw its examples at random
        inputs = map_parts(stand_in, inputs)
    return some_outputs(problem.network, first, inputs)


def some_outputs(network: Network, weights: Weights, inputs: Inputs) -> list[float]:
    """A few numbers among the outputs, the same whenever they are asked for."""
    # a network that draws must give the same outputs whenever it is asked
    with own_randomness(0), torch.no_grad():
        outputs = network.apply(weights, inputs).flatten()
    spread = torch.linspace(0, len(outputs) - 1, min(len(outputs), _NUMBERS)).round().long()
    return [float(value) for value in outputs[spread.to(outputs.device)]]


def stand_in(part: Tensor) -> Tensor:
    """Noise of the shape and type of an input; whole numbers stay zero."""
    noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(0))
    return noise.to(part) if part.is_floating_point() else torch.zeros_like(part)
