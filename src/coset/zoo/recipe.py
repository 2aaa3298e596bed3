"""Recipes as data: what a network of a zoo is, what it learns, and how.

A recipe is a TOML file with a table for each part; a key that there is not is refused.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from coset.errors import CosetError

_FOLDER = Path(__file__).parent / "recipes"
_LARGEST = 1_000_000
"""Bytes that the text of a recipe may have."""

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Architecture:
    """The network: a factory of :mod:`coset.models` and its arguments."""

    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Examples:
    """The data: a set of :mod:`coset.data`, or the first so many of its two parts.

    Attributes:
        set: Its name.
        train: How many training examples; 0: all.
        test: How many test examples measure the networks; 0: all.
        standardise: Whether inputs are brought to mean 0 and standard deviation 1.
    """

    set: str
    train: int = 0
    test: int = 0
    standardise: bool = True


@dataclass(frozen=True)
class Training:
    """How each network is trained.

    Attributes:
        epochs: Passes over the training examples.
        batch_size: Examples a step.
        optimiser: ``"sgd"`` or ``"adam"``.
        learning_rate: The rate at the top of the schedule.
        momentum: Of SGD.
        nesterov: Whether SGD's gradient is taken where the momentum leads.
        weight_decay: ``d`` in ``g + d · w``, for all parameters.
        schedule: ``"constant"``, ``"cosine"``, ``"one-cycle"`` or ``"steps"``.
        drop_at: Epochs at which ``"steps"`` lowers the rate.
        drop_by: What the rate is multiplied by there.
        stack: Networks that are trained side by side, as one stack.
        together: Steps that the networks of a stack take as one, before each goes on in its own
            order of the data: a fork.  0: they share nothing.
    """

    epochs: int
    batch_size: int = 64
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "one-cycle", "steps"] = "constant"
    drop_at: tuple[int, ...] = ()
    drop_by: float = 0.1
    stack: int = 1
    together: int = 0


@dataclass(frozen=True)
class Augmentation:
    """How training pictures are changed each time they are shown.

    Attributes:
        crop: Pixels by which a picture is moved at most, up or down and left or right.
        flip: Whether every other picture is mirrored.
    """

    crop: int = 0
    flip: bool = False


@dataclass(frozen=True)
class Keep:
    """Epochs after which weights are kept, besides those of the end."""

    epochs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drop:
    """Which runs are given up: those below an accuracy after an epoch.

    Attributes:
        below: The accuracy on the test examples; 0: no run is dropped.
        after_epoch: When it is measured.
    """

    below: float = 0.0
    after_epoch: int = 1


@dataclass(frozen=True)
class ZooRecipe:
    """How every network of a zoo is made.

    >>> recipe = read_recipe("tiny")
    >>> recipe.data.set, recipe.training.epochs, recipe.keep.epochs
    ('digits', 2, (1,))
    """

    name: str
    about: str
    architecture: Architecture
    data: Examples
    training: Training
    augmentation: Augmentation = field(default_factory=Augmentation)
    keep: Keep = field(default_factory=Keep)
    drop: Drop = field(default_factory=Drop)

    def as_json(self) -> dict[str, Any]:
        """The recipe as it is written into files."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @property
    def digest(self) -> str:
        """Sixteen digits that tell recipes apart; what it is called and says does not count."""
        content = {k: v for k, v in self.as_json().items() if k not in ("name", "about")}
        if not content["training"]["together"]:  # as before there was such a thing
            del content["training"]["together"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def recipes() -> tuple[str, ...]:
    """The names of the recipes that come along.

    >>> "tiny" in recipes()
    True
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def read_recipe(name: str | Path) -> ZooRecipe:
    """Reads a recipe that comes along, by its name, or a TOML file, by its path.

    Raises:
        CosetError: There is none of that name, or it has a key or a value that does not fit.
    """
    if str(name) in recipes():
        path = _FOLDER / f"{name}.toml"
    else:
        path = Path(name)
        if path.suffix != ".toml":
            raise CosetError(
                f"got the recipe {str(name)!r}",
                f"needed one of {', '.join(recipes())}, or the path of a .toml file",
                *_meant(str(name), recipes()),
            )
    return parse_recipe(_text(path), where=path.name, name=path.stem)


def parse_recipe(text: str, *, where: str, name: str) -> ZooRecipe:
    """The recipe that a TOML text describes.

    Args:
        text: The text.
        where: What it is called in messages.
        name: What the recipe is called.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CosetError(f"got {where}, which is no TOML ({error})", "needed a recipe") from error
    return recipe_from({"name": name, **table}, where=where)


def recipe_from(table: Mapping[str, Any], *, where: str) -> ZooRecipe:
    """The recipe that a table describes, as TOML and JSON have it."""
    model = table.get("architecture")
    if isinstance(model, Mapping) and "arguments" not in model:
        given = {key: value for key, value in model.items() if key != "model"}
        kept = {key: value for key, value in model.items() if key == "model"}
        table = {**table, "architecture": {**kept, "arguments": given}}
    recipe = _read(ZooRecipe, table, where, ())
    _check(recipe, where)
    return recipe


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise CosetError(f"got {path}: {error.strerror}", "needed a recipe") from error
    try:
        if len(content) > _LARGEST:
            raise ValueError("it is too large")
        return content.decode()
    except ValueError as error:
        raise CosetError(f"got {path}, which is no text ({error})", "needed a recipe") from error


def _read(kind: type[_Part], table: object, where: str, path: tuple[str, ...]) -> _Part:
    """A dataclass from a table; every key must be a field, every field without a default a key."""
    place = f"[{'.'.join(path)}] of {where}" if path else where
    if not isinstance(table, Mapping):
        raise CosetError(f"got {table!r:.60} for {place}", "needed a table")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key in table:
        if key not in known:
            raise CosetError(
                f"got the key {key!r} in {place}",
                f"needed one of {', '.join(known)}",
                *_meant(str(key), tuple(known)),
            )
    for name, each in known.items():
        if name not in table and each.default is MISSING and each.default_factory is MISSING:
            raise CosetError(f"got {place} without {name!r}", "needed a value for it")
    values = {key: _value(hints[key], value, where, (*path, key)) for key, value in table.items()}
    return kind(**values)


def _value(hint: Any, value: Any, where: str, path: tuple[str, ...]) -> Any:
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return _read(hint, value, where, path)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise _unfit(value, where, path, f"one of {', '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        (each, _) = get_args(hint)
        if not isinstance(value, list | tuple):
            raise _unfit(value, where, path, "a list")
        return tuple(_value(each, one, where, path) for one in value)
    if get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise _unfit(value, where, path, "a table")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise _unfit(value, where, path, kinds[hint])
    return value


def _unfit(value: Any, where: str, path: tuple[str, ...], needed: str) -> CosetError:
    return CosetError(f"got {'.'.join(path)} = {value!r:.60} in {where}", f"needed {needed}")


def _check(recipe: ZooRecipe, where: str) -> None:
    """Refuses numbers that no training can have."""
    training, data = recipe.training, recipe.data
    last = training.epochs
    for name, value, least in (
        ("training.epochs", training.epochs, 1),
        ("training.batch_size", training.batch_size, 1),
        ("training.stack", training.stack, 1),
        ("training.together", training.together, 0),
        ("data.train", data.train, 0),
        ("data.test", data.test, 0),
        ("augmentation.crop", recipe.augmentation.crop, 0),
        ("drop.after_epoch", recipe.drop.after_epoch, 1),
    ):
        if value < least:
            raise _unfit(value, where, (name,), f"at least {least}")
    for name, epochs in (
        ("keep.epochs", recipe.keep.epochs),
        ("training.drop_at", training.drop_at),
        ("drop.after_epoch", (recipe.drop.after_epoch,)),
    ):
        within = all(0 < epoch <= last for epoch in epochs)
        if not within or list(epochs) != sorted(set(epochs)):
            given = list(epochs) if len(epochs) != 1 else epochs[0]
            raise _unfit(given, where, (name,), f"epochs from 1 to {last}, in order")
    if not 0 <= recipe.drop.below < 1:
        raise _unfit(recipe.drop.below, where, ("drop.below",), "a share, at least 0 and below 1")
    for name, number in (
        ("learning_rate", training.learning_rate),
        ("weight_decay", training.weight_decay),
        ("drop_by", training.drop_by),
    ):
        if not 0 <= number < float("inf"):
            raise _unfit(number, where, (f"training.{name}",), "a finite number, at least 0")


def _meant(name: str, known: tuple[str, ...]) -> list[str]:
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return [f"did you mean {close[0]!r}?"] if close else []
