"""The torch functions that a network calls, one by one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

TorchFunction = Callable[..., Any]
Arguments = tuple[Any, ...]
Named = dict[str, Any]


class Calls(TorchFunctionMode, ABC):
    """Hands every torch function that is called inside ``with`` to :meth:`call`.

    While :meth:`call` runs it is off, so that what is called there is not seen.

    >>> class Names(Calls):
    ...     def call(self, function, args, given):
    ...         print(function.__name__)
    ...         return function(*args, **given)
    >>> import torch
    >>> with Names():
    ...     found = torch.ones(2).exp()
    ones
    exp
    """

    def __torch_function__(
        self,
        function: TorchFunction,
        types: Any,
        args: Arguments = (),
        kwargs: Named | None = None,
    ) -> Any:
        """As torch calls it."""
        return self.call(function, args, kwargs or {})

    @abstractmethod
    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function, or something in its place."""
