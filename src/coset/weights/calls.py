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


class Listening(Calls):
    """Lets every function pass, and tells of it once it has returned.

    Args:
        hear: Told of the function, its arguments, those by name, and what it returned.

    >>> import torch
    >>> with Listening(lambda function, args, given, result: print(function.__name__, result)):
    ...     found = torch.ones(2).sum()
    ones tensor([1., 1.])
    sum tensor(2.)
    """

    def __init__(self, hear: Callable[[TorchFunction, Arguments, Named, Any], None]) -> None:
        super().__init__()
        self._hear = hear

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function and tells of it."""
        result = function(*args, **given)
        self._hear(function, args, given, result)
        return result
