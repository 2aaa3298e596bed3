"""Runs a module in double precision whatever it asks for, and tells which tensors it answers."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coset.vocabulary import Weights

Run = Callable[[Weights, Sequence[Tensor]], list[Tensor]]
"""Outputs from weights and inputs, in double precision."""

_SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class _DoubleOnly(TorchDispatchMode):
    """Overrules casts to smaller floating types, which would hide a symmetry behind rounding."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if keywords.get("dtype") in _SMALL_FLOATS:
            keywords["dtype"] = torch.float64
        return func(*args, **keywords)


def module_runner(module: nn.Module) -> Run:
    """A function that runs a copy of the module in evaluation mode; the module is not changed."""
    copied = copy.deepcopy(module).cpu().double().eval().requires_grad_(False)

    def run(weights: Weights, inputs: Sequence[Tensor]) -> list[Tensor]:
        arguments = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        with torch.no_grad(), _DoubleOnly():
            found = tensors_in(functional_call(copied, dict(weights), arguments))
            return [x.double() if x.is_floating_point() else x for x in found]

    return run


_CACHES = ("past_key_values", "cache_params", "mems")
"""What models of transformers call what they keep for the next call."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors inside nested outputs, without caches for the next call, which are no answers.

    >>> keys, logits = torch.zeros(1), torch.ones(2)
    >>> list(tensors_in({"logits": logits, "past_key_values": ((keys, keys),)}))
    [tensor([1., 1.])]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in([part for name, part in value.items() if name not in _CACHES])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        yield from tensors_in({each.name: getattr(value, each.name) for each in fields(value)})
    elif not type(value).__name__.endswith("Cache"):
        leaves = tree_leaves(value)  # of classes that their authors have described to torch
        yield from (leaf for leaf in leaves if isinstance(leaf, Tensor))


@contextmanager
def answering_in_tensors(module: nn.Module) -> Iterator[None]:
    """While it runs the module returns a flat tuple of its answers: tracers know no other kinds."""
    hook = module.register_forward_hook(lambda _, __, found: tuple(tensors_in(found)))
    try:
        yield
    finally:
        hook.remove()
