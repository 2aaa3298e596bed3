"""A generator in the place of torch's own, for one thread and a while.

Layers, data sets and ``reset_parameters`` draw from torch's own generator, which all threads of a
process share.  Here it is neither seeded nor read: while a user's code runs, each of its draws is
handed a generator that belongs to the thread, so that threads do not change each other's numbers.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coset.weights.calls import Arguments, Calls, Named, TorchFunction

_Found = TypeVar("_Found")

_NAMES = """
    rand randn randint randperm rand_like randn_like randint_like normal normal_ normal_functional
    uniform uniform_ bernoulli bernoulli_ random random_ exponential exponential_ geometric
    geometric_ cauchy cauchy_ log_normal log_normal_ multinomial poisson binomial _standard_gamma
    _sample_dirichlet dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_
    feature_dropout feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout
    rrelu rrelu_ rrelu_with_noise rrelu_with_noise_ rrelu_with_noise_functional gumbel_softmax
    fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_with_indices
    fractional_max_pool3d_with_indices scaled_dot_product_attention multi_head_attention_forward
    lstm gru rnn_tanh rnn_relu svd_lowrank pca_lowrank lobpcg get_approximate_basis
"""
DRAWING = frozenset(_NAMES.split())
"""Functions that may draw; those of ``torch.nn.init`` may all."""

_SWAP = threading.Lock()


@dataclass
class OwnRandomness:
    """What a thread draws from in the place of torch's own generator.

    Attributes:
        generator: Makes the generator, at the first draw.
        draws: How often users' code has drawn from it.
        handed: Whether draws are being handed it at this moment.
    """

    generator: Callable[[], torch.Generator]
    draws: int = 0
    handed: bool = False

    def next(self) -> torch.Generator:
        """The generator, for one more draw."""
        self.draws += 1
        return self.generator()


class _Current(threading.local):
    own: OwnRandomness | None = None


_CURRENT = _Current()


class _Given(TorchDispatchMode):
    """Hands a generator to every operation that would draw from torch's own."""

    def __init__(self, own: OwnRandomness) -> None:
        super().__init__()
        self._own = own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("generator") is not None or not _draws(func) or not _on_cpu(args, given):
            return func(*args, **given)
        own, same = self._own.next(), _with_generator(func)
        if same is not None:
            return same(*args, **{**given, "generator": own})
        with _SWAP:  # only for dropout inside of recurrent layers and attention
            before = torch.get_rng_state()
            torch.set_rng_state(own.get_state())
            try:
                return func(*args, **given)
            finally:
                own.set_state(torch.get_rng_state())
                torch.set_rng_state(before)


@lru_cache(maxsize=1024)
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags or _takes_generator(func)


@lru_cache(maxsize=1024)
def _with_generator(func: Any) -> Any:
    """The operation, or its other form, that takes a generator; ``None`` if there is none."""
    if _takes_generator(func):
        return func
    wanted = {*_argument_names(func), "generator"}
    packet = func.overloadpacket
    others = (getattr(packet, name) for name in packet.overloads())
    return next((other for other in others if _argument_names(other) == wanted), None)


def _takes_generator(func: Any) -> bool:
    return "generator" in _argument_names(func)


def _argument_names(func: Any) -> set[str]:
    return {argument.name for argument in func._schema.arguments}


def _on_cpu(args: Any, given: Named) -> bool:
    device = given.get("device")
    tensors = [part for part in args if isinstance(part, Tensor)]
    return (device is None or torch.device(device).type == "cpu") and all(
        tensor.is_cpu for tensor in tensors
    )


class _OwnDraws(Calls):
    """Gives a generator to the calls that draw, and lets every other call pass.

    To look at each operation inside a call takes as long as some small ones, so only those calls
    are looked into that may draw.
    """

    def __init__(self, own: OwnRandomness) -> None:
        super().__init__()
        self._own = own

    def call(self, function: TorchFunction, args: Arguments, given: Named) -> Any:
        """Runs the function; one that may draw, operation by operation."""
        name = getattr(function, "__name__", "").partition(".")[0]
        draws = name in DRAWING or getattr(function, "__module__", "") == "torch.nn.init"
        if not draws or self._own is not _CURRENT.own:
            return function(*args, **given)
        with _Given(self._own):
            return function(*args, **given)


@contextmanager
def own_randomness(seed: int) -> Iterator[OwnRandomness]:
    """Gives this thread a generator for what users' code draws inside :func:`own_draws`.

    >>> state = torch.get_rng_state()
    >>> with own_randomness(3), own_draws():
    ...     found = torch.rand(())
    >>> bool(found == torch.rand((), generator=torch.Generator().manual_seed(3)))
    True
    >>> bool((torch.get_rng_state() == state).all())
    True
    """
    generator = torch.Generator().manual_seed(seed)
    with _current(OwnRandomness(lambda: generator)) as own:
        yield own


@contextmanager
def _current(own: OwnRandomness) -> Iterator[OwnRandomness]:
    before, _CURRENT.own = _CURRENT.own, own
    try:
        yield own
    finally:
        _CURRENT.own = before


@contextmanager
def own_draws() -> Iterator[None]:
    """Draws inside come from this thread's own generator; without one, from torch's own.

    The doors to users' code open it: networks, data sets, fresh weights.
    """
    own = _CURRENT.own
    if own is None or own.handed:
        yield
        return
    own.handed = True
    try:
        with _OwnDraws(own):
            yield
    finally:
        own.handed = False


def draws_so_far() -> int | None:
    """How often users' code has drawn from this thread's own generator, if there is one."""
    return None if _CURRENT.own is None else _CURRENT.own.draws


def own_state() -> Tensor:
    """The state of this thread's own generator, or of torch's own where there is none."""
    own = _CURRENT.own
    return torch.get_rng_state() if own is None else own.generator().get_state()


def set_own_state(state: Tensor) -> None:
    """Puts back what :func:`own_state` told."""
    if _CURRENT.own is None:
        torch.set_rng_state(state)
    else:
        _CURRENT.own.generator().set_state(state)


def drawn_by(generator: torch.Generator, run: Callable[[], _Found]) -> _Found:
    """What a function gives, where users' code draws by a generator.

    Args:
        generator: Seeds what users' code draws from, at its first draw: few draw.
        run: May use the generator itself too.

    >>> def run():
    ...     with own_draws():
    ...         return torch.rand(())
    >>> generator = torch.Generator().manual_seed(3)
    >>> first = drawn_by(generator, run)
    >>> first == drawn_by(generator, run)
    tensor(False)
    >>> first == drawn_by(generator.manual_seed(3), run)
    tensor(True)
    """

    @lru_cache(maxsize=1)
    def own() -> torch.Generator:
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        return torch.Generator().manual_seed(int(seed))

    with _current(OwnRandomness(own)):
        return run()
