"""``MODULE:FACTORY`` and ``--input-shape`` on the command line become a module and its inputs."""

import sys
from collections.abc import Sequence
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
    found: Any = _import(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CosetError(
                f"got {text!r}, but {place} has no {part!r}",
                f"needed a factory of {place}",
                _instead(found, part),
            )
        found = getattr(found, part)
    if not isinstance(found, nn.Module):
        found = _called(found, text)
    if not isinstance(found, nn.Module):
        raise CosetError(
            f"got {type(found).__name__} from {text!r}", "needed a torch.nn.Module from the factory"
        )
    return found


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
    inputs = tuple(_zeros(_shape(s), kind, s) for s, kind in zip(shapes, kinds, strict=True))
    problem = _problem(module, inputs)
    if problem:
        raise CosetError(
            f"got --input-shape {' '.join(shapes)}, which the network refuses: {problem}",
            "needed the shape of its input with a batch axis in front",
            "give another --input-shape, or --dtype int for token numbers",
        )
    return inputs


def _import(place: str) -> ModuleType:
    here, caching = str(Path.cwd()), sys.dont_write_bytecode
    sys.path.insert(0, here)
    sys.dont_write_bytecode = True  # looking at a file leaves nothing beside it
    try:
        if not place.endswith(".py"):
            return import_module(place)
        path = Path(place)
        if not path.is_file():
            raise CosetError(f"got {place}, which is no file", "needed a Python file")
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
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
    finally:
        sys.dont_write_bytecode = caching
        if here in sys.path:
            sys.path.remove(here)


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
    names = [n for n, value in vars(found).items() if callable(value) and n[0].islower()]
    close = get_close_matches(part, names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(names[:5])}"


def _told(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 160 else text[:159] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shape(text: str) -> tuple[int, ...]:
    words = text.replace("x", ",").split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise CosetError(
            f"got --input-shape {text!r}",
            "needed positive whole numbers with commas",
            "such as --input-shape 1,3,32,32",
        )
    return tuple(int(word) for word in words)


def _zeros(shape: tuple[int, ...], kind: str, text: str) -> "Tensor":
    import torch

    try:
        return torch.zeros(shape, dtype=torch.int64 if kind == "int" else torch.float32)
    except RuntimeError as error:  # more than fits in memory
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
    except Exception as error:  # whatever the user's forward raises
        return _told(error)
    finally:
        for child, flag in flags:
            child.training = flag
    return ""


def _guessed(module: "nn.Module") -> "tuple[Tensor, ...]":
    """A first input that the network accepts, tried from what its first layer takes."""
    for kind, shape in _candidates(module):
        inputs = (_zeros(shape, kind, ",".join(map(str, shape))),)
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
