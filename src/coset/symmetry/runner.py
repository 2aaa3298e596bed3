"""Runs a module that cannot be traced, in double precision whatever it asks for."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

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
            return list(_tensors(functional_call(copied, dict(weights), arguments)))

    return run


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside nested outputs."""
    if isinstance(value, Tensor):
        yield value.double() if value.is_floating_point() else value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
