"""Batches that are dictionaries: which name is the target, and the order of the others.

Tokenisers and many data sets yield ``{"input_ids": …, "attention_mask": …, "labels": …}``.  The
order of such a dictionary means nothing: ``module.forward`` says which name comes where.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from coset.errors import CosetError
from coset.weights.network import unwrapped

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names by which targets are known."""

_ORDINARY = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def named_pair(batch: Mapping[str, Any], module: nn.Module | None) -> tuple[Any, Any]:
    """Inputs in the order in which a module takes them, and targets.

    >>> class Network(nn.Module):
    ...     def forward(self, input_ids, attention_mask): ...
    >>> named_pair({"attention_mask": "m", "labels": "y", "input_ids": "x"}, Network())
    (('x', 'm'), 'y')
    """
    taken = None if module is None else _taken(module)
    target = _target(batch, taken)
    if target is None:
        raise CosetError(
            f"got dictionaries of {_listed(batch)}",
            f"needed targets among them, by one of the names {', '.join(TARGETS)}",
            "rename them, or give a collate_fn that returns (inputs, targets)",
        )
    if taken is None:
        raise CosetError(
            f"got dictionaries of {_listed(batch)} without the module that takes them",
            "needed inputs in the order in which the network takes them, and targets last",
            "give as_batches(…, module=module), or a collate_fn:\n\n"
            "    def collate(examples):\n"
            "        batch = default_collate(examples)  # or what the loader does now\n"
            f"        return {_in_order(batch, target)}\n\n"
            "    DataLoader(dataset, batch_size=…, collate_fn=collate)\n",
        )
    inputs = {name: part for name, part in batch.items() if name != target}
    return _ordered(inputs, taken, type(module).__name__), batch[target]


def named_inputs(batch: Mapping[str, Any], module: nn.Module | None) -> Any:
    """Inputs in the order in which a module takes them; targets among them are left out.

    >>> named_inputs({"pixels": "x", "labels": "y"}, nn.Linear(2, 1))
    'x'
    """
    if module is None:
        raise CosetError(
            f"got a dictionary of {_listed(batch)} as inputs",
            "needed a tensor, or a tuple of them in the order in which the network takes them",
            f"write ({', '.join(f'inputs[{name!r}]' for name in batch)})",
        )
    taken = _taken(module)
    target = _target(batch, taken)
    if target in _required(taken):
        target = None
    inputs = {name: part for name, part in batch.items() if name != target}
    return _ordered(inputs, taken, type(module).__name__)


def has_target(batch: Mapping[str, Any]) -> bool:
    """Whether one of the names is that of targets.

    >>> has_target({"pixels": 0, "label": 1}), has_target({"pixels": 0})
    (True, False)
    """
    return any(name in batch for name in TARGETS)


def _taken(module: nn.Module) -> list[inspect.Parameter]:
    """What a module is called with by place."""
    found = inspect.signature(unwrapped(module).forward).parameters.values()
    return [parameter for parameter in found if parameter.kind in _ORDINARY]


def _required(taken: Sequence[inspect.Parameter]) -> list[str]:
    return [parameter.name for parameter in taken if parameter.default is parameter.empty]


def _target(batch: Mapping[str, Any], taken: Sequence[inspect.Parameter] | None) -> str | None:
    """The name of the targets; a name that the module takes only where there is no other."""
    found = [name for name in TARGETS if name in batch]
    inputs = set() if taken is None else {parameter.name for parameter in taken}
    return next((name for name in found if name not in inputs), found[0] if found else None)


def _ordered(inputs: Mapping[str, Any], taken: Sequence[inspect.Parameter], module: str) -> Any:
    names = [parameter.name for parameter in taken]
    required = _required(taken)
    if len(inputs) == 1 and names and set(required) <= {names[0]}:
        name, part = next(iter(inputs.items()))
        if name == names[0] or name not in names:  # a single input may have any name
            return part
    call = f"{module}.forward({', '.join(names)})"
    strange = [name for name in inputs if name not in names]
    if strange or not inputs:
        raise CosetError(
            f"got dictionaries whose inputs are {_listed(inputs) or 'none'}",
            f"needed names that {call} takes",
            f"leave {_listed(strange)} out of the examples, or rename what forward takes"
            if strange
            else "give inputs beside the targets",
        )
    last = max(names.index(name) for name in [*inputs, *required])
    missing = [name for name in names[: last + 1] if name not in inputs]
    if missing:
        raise CosetError(
            f"got dictionaries whose inputs are {_listed(inputs)}",
            f"needed {_listed(missing)} too, which {call} takes before or among them",
            "give it, or wrap the module in one whose forward takes what the examples have",
        )
    ordered = tuple(inputs[name] for name in names[: last + 1])
    return ordered[0] if len(ordered) == 1 else ordered


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))


def _in_order(names: Iterable[Any], target: str) -> str:
    """How to write named inputs and targets as a pair."""
    inputs = [f"batch[{name!r}]" for name in names if name != target] or ["batch[…]"]
    first = f"({', '.join(inputs)})" if len(inputs) > 1 else inputs[0]
    return f"{first}, batch[{target!r}]"
