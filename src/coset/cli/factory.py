"""``MODULE:FACTORY`` and ``--input-shape`` on the command line become a module and its inputs."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coset.errors import CosetError

if TYPE_CHECKING:
    from torch import Tensor, nn

_PICTURES = (32, 28, 64, 224)
"""Sides of pictures that are tried when no shape is given."""

_SIZE = re.compile(r"\s*0*[1-9][0-9]{0,17}\s*")
"""A positive whole number that fits into 64 bits."""


def load_module(text: str) -> "nn.Module":
    """Imports and builds a network.

    Args:
        text: ``package.module:factory`` or ``./file.py:factory``; the factory is called without
            arguments and may be a module already.

    Raises:
        CosetError: If it cannot be imported, found, called, or gives no module.
    """
    from torch import nn

    place, _, name = text.rpartition(":")
    if not place or not name:
        raise CosetError(
            f"got {text!r}",
            "needed MODULE:FACTORY",
            "such as coset.models:resnet20 or ./net.py:make",
        )
    with _importing(place):  # what a factory imports when it is called is found there too
        found: Any = _import(place)
        for part in name.split("."):
            found = _part(found, part, text, place)
        if not isinstance(found, nn.Module):
            found = _called(found, text)
    if not isinstance(found, nn.Module):
        raise CosetError(
            f"got {type(found).__name__} from {text!r}", "needed a torch.nn.Module from the factory"
        )
    return found


def source_of(text: str) -> Path:
    """The file that ``./file.py:factory`` names, which no command may write over.

    >>> source_of("nets/small.py:make").name
    'small.py'
    """
    return Path(text.rpartition(":")[0])


def check_kinds(shapes: Sequence[str] | None, kinds: Sequence[str] | None) -> None:
    """Refuses ``--dtype`` where it would have no effect: guessed inputs have a type already."""
    if kinds and not shapes:
        raise CosetError(
            f"got --dtype {kinds[0]} without --input-shape",
            "needed the shape of the input that has this type",
            "give --input-shape, or leave --dtype out",
        )


def read_inputs(
    module: "nn.Module", shapes: Sequence[str], kinds: Sequence[str]
) -> "tuple[Tensor, ...]":
    """Example inputs of the given shapes, or guessed from the first layer; the module accepts them.

    Raises:
        CosetError: If a shape cannot be read or the module does not accept it.
    """
    if not shapes:
        return _guessed(module)
    if len(kinds) not in (1, len(shapes)):
        raise CosetError(
            f"got {len(kinds)} times --dtype for {len(shapes)} times --input-shape",
            "needed one for all inputs or one for each",
        )
    kinds = list(kinds) * (len(shapes) if len(kinds) == 1 else 1)
    given = enumerate(zip(shapes, kinds, strict=True))
    inputs = tuple(_example(module, _shape(text), kind, seed) for seed, (text, kind) in given)
    problem = _problem(module, inputs)
    if problem:
        raise CosetError(
            f"got --input-shape {' '.join(shapes)}, which the network refuses: {problem}",
            "needed the shape of its input with a batch axis in front",
            "give another --input-shape, or --dtype int for token numbers",
        )
    return inputs


@contextmanager
def _importing(place: str) -> Iterator[None]:
    """Imports look in the current folder, before it in that of a file, and leave nothing there."""
    ours, caching = [str(Path.cwd())], sys.dont_write_bytecode
    if place.endswith(".py"):
        ours.insert(0, str(Path(place).absolute().parent))
    sys.path[:0] = ours
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = caching
        for folder in ours:
            if folder in sys.path:
                sys.path.remove(folder)


def _import(place: str) -> ModuleType:
    if not place.endswith(".py") and (os.sep in place or place[0] == "."):
        raise CosetError(
            f"got {place!r}, neither a module's name nor a Python file",
            "needed package.module or ./file.py",
        )
    try:
        return _import_file(place) if place.endswith(".py") else import_module(place)
    except CosetError:
        raise
    except ModuleNotFoundError as error:
        raise CosetError(
            f"got {place!r}: {error}", "needed a module that can be imported", "check its name"
        ) from error
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise CosetError(
            f"got {place!r}, whose import raised {_told(error)}", "needed an import without errors"
        ) from error


def _import_file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise CosetError(f"got {place}, which is no file", "needed a Python file")
    # dataclasses look their module up; by a name of our own it hides no other
    spec = spec_from_file_location(f"coset_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _part(found: Any, part: str, text: str, place: str) -> Any:
    try:
        return getattr(found, part)
    except AttributeError as error:
        raise CosetError(
            f"got {text!r}, but {place} has no {part!r}",
            f"needed a factory of {place}",
            _instead(found, part),
        ) from error
    except Exception as error:  # properties are the user's code too
        raise CosetError(
            f"got {text!r}, whose {part!r} raised {_told(error)}", f"needed a factory of {place}"
        ) from error


def _called(factory: Any, text: str) -> Any:
    if not callable(factory):
        raise CosetError(f"got {text!r}, a {type(factory).__name__}", "needed a function or class")
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise CosetError(
            f"got {text!r}, which raised {_told(error)}",
            "needed a factory that can be called without arguments",
            "wrap it in one that fills them in",
        ) from error


def _instead(found: Any, part: str) -> str:
    inside = getattr(found, "__dict__", {})  # numbers, lists and the like have none
    names = [name for name, value in inside.items() if callable(value) and name[0] != "_"]
    close = get_close_matches(part, names, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"it has {', '.join(names[:5]) or 'nothing that could be called'}"


def _told(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 160 else text[:159] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shape(text: str) -> tuple[int, ...]:
    words = text.replace("x", ",").split(",")
    if not all(map(_SIZE.fullmatch, words)):
        raise CosetError(
            f"got --input-shape {text!r}",
            "needed positive whole numbers with commas",
            "such as --input-shape 1,3,32,32",
        )
    return tuple(int(word) for word in words)


def _example(module: "nn.Module", shape: tuple[int, ...], kind: str, seed: int) -> "Tensor":
    """Random tokens, or noise in the precision of the network: inputs all alike hide errors.

    Whole numbers after the first input are zeros, for they may count something else than tokens.
    """
    import torch
    from torch import nn

    tables = [child for child in module.modules() if isinstance(child, nn.Embedding)]
    tokens = min((table.num_embeddings for table in tables), default=1) if seed == 0 else 1
    generator = torch.Generator().manual_seed(seed)
    own = [tensor.dtype for tensor in module.parameters() if tensor.dtype.is_floating_point]
    floats = own[0] if own else torch.float32
    try:
        if kind == "int":
            return torch.randint(tokens, shape, generator=generator)
        return torch.randn(shape, dtype=floats, generator=generator)
    except RuntimeError as error:  # more than fits in memory
        text = ",".join(map(str, shape))
        raise CosetError(
            f"got --input-shape {text}: {_told(error)}", "needed a smaller one"
        ) from error


def _problem(module: "nn.Module", inputs: "tuple[Tensor, ...]") -> str:
    """What a network in evaluation mode says against inputs, or nothing."""
    import torch

    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            module(*inputs)
    except (Exception, SystemExit) as error:  # whatever the user's forward raises
        return _told(error)
    finally:
        for child, flag in flags:
            child.training = flag
    return ""


def _guessed(module: "nn.Module") -> "tuple[Tensor, ...]":
    """A first input that the network accepts, tried from what its first layer takes."""
    # a lazy layer has no size yet, and would take the first it is given
    for kind, shape in [each for each in _candidates(module) if all(each[1])]:
        inputs = (_example(module, shape, kind, 0),)
        if not _problem(module, inputs):
            return inputs
    raise CosetError(
        "got no --input-shape, and none could be guessed from the network's first layer",
        "needed the shape of its input",
        "such as --input-shape 1,3,32,32",
    )


def _candidates(module: "nn.Module") -> list[tuple[str, tuple[int, ...]]]:
    from torch import nn

    for child in module.modules():
        if isinstance(child, nn.Linear):
            return [("float", (1, child.in_features)), ("float", (1, 16, child.in_features))]
        if isinstance(child, nn.Conv1d):
            return [("float", (1, child.in_channels, side)) for side in _PICTURES]
        if isinstance(child, nn.Conv2d):
            return [("float", (1, child.in_channels, side, side)) for side in _PICTURES]
        if isinstance(child, nn.Embedding):
            return [("int", (1, 8))]
        if isinstance(child, nn.RNNBase):
            return [("float", (4, 1, child.input_size))]
    return []
