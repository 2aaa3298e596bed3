"""The record of one test network and its symmetries, and the decorator that writes it.

A network is declared by a function that builds it; the function's docstring derives by hand what
the decorator states. Factors are written as (size, *sizes of the factors it lives under), so that
sizes, nesting, number of copies and the order of the group all follow from one tuple.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Example = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A network, an input and the symmetries derived for it by hand.

    Attributes:
        name: The name of the building function.
        factory: Builds the network in eval mode; always the same weights, in general position.
        example: The positional inputs.
        permutations: Sorted (size, depth): units in one copy, number of factors it lives under.
        scalings: Sorted (size, domain) of the scaling factors of size above one.
        invariances: Sorted (tensor, groups).
        log_order: Natural log of the number of permutations: the sum of copies * log(size!).
        continuous: Continuous scalings, sizes times copies, those of size one included;
            None if the scalings of size one were not derived.
        dead: Scale directions that the numerical probe sees beyond `continuous`, because the
            network does not look at an entry (key biases under softmax, rows never read).
        unread: Parameters the output never reads: reported in `pinned`, never factored.
        heavy: Takes seconds rather than a fraction of one.
    """

    name: str
    factory: Callable[[], nn.Module]
    example: Callable[[], Example]
    permutations: tuple[tuple[int, int], ...]
    scalings: tuple[tuple[int, str], ...]
    invariances: tuple[tuple[str, str], ...]
    log_order: float
    continuous: int | None
    dead: int = 0
    unread: tuple[str, ...] = ()
    heavy: bool = False


def case(
    *,
    example: Callable[[], Example],
    permutations: Iterable[tuple[int, ...]] = (),
    positive: Iterable[tuple[int, ...]] = (),
    nonzero: Iterable[tuple[int, ...]] = (),
    sign: Iterable[tuple[int, ...]] = (),
    invariances: Mapping[str, str] | None = None,
    common: int | None = 0,
    dead: int = 0,
    unread: tuple[str, ...] = (),
    heavy: bool = False,
    seed: int = 0,
) -> Callable[[Callable[[], nn.Module]], Case]:
    """Turn a building function into a `Case`.

    Args:
        example: Makes the inputs.
        permutations: Per factor (size, *sizes of its parents).
        positive: Per scaling factor with positive scales (size, *sizes of its parents).
        nonzero: The same for scales of either sign.
        sign: The same for signs alone.
        invariances: Tensor name to groups.
        common: Number of continuous scalings of size one, or None if not derived.
        dead: See `Case`.
        unread: See `Case`.
        heavy: See `Case`.
        seed: Of the weights.
    """
    moved = tuple(permutations)
    domains = {"positive": tuple(positive), "nonzero": tuple(nonzero), "sign": tuple(sign)}
    scaled = sum(math.prod(factor) for key in ("positive", "nonzero") for factor in domains[key])

    def register(build: Callable[[], nn.Module]) -> Case:
        @functools.wraps(build)
        def factory() -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return in_general_position(build()).eval()

        return Case(
            name=build.__name__,
            factory=factory,
            example=example,
            permutations=tuple(sorted((size, len(parents)) for size, *parents in moved)),
            scalings=tuple(
                sorted((f[0], key) for key, factors in domains.items() for f in factors)
            ),
            invariances=tuple(sorted((invariances or {}).items())),
            log_order=sum(math.lgamma(f[0] + 1) * math.prod(f[1:]) for f in moved),
            continuous=None if common is None else scaled + common,
            dead=dead,
            unread=unread,
            heavy=heavy,
        )

    return register


def cases_in(namespace: Mapping[str, Any]) -> tuple[Case, ...]:
    """All cases of a module, in the order they are written."""
    return tuple(value for value in namespace.values() if isinstance(value, Case))


def in_general_position(module: nn.Module) -> nn.Module:
    """Disturb every weight and running statistic, so that nothing holds by accident.

    Fresh norms have weight one and bias zero, fresh layer scales are constant, tokens are zero:
    a missing site would not show. Norm weights of both signs appear.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
            if parameter.ndim == 1:
                parameter.mul_(torch.where(torch.rand_like(parameter) < 0.3, -1.0, 1.0))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * torch.randn_like(buffer))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand_like(buffer))
    return module


def normal(*shape: int, seed: int = 1) -> Callable[[], Tensor]:
    """An example of standard normal numbers."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, vocabulary: int, seed: int = 1) -> Callable[[], Tensor]:
    """An example of token numbers; the last one is the largest of the vocabulary."""

    def draw() -> Tensor:
        numbers = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))
        numbers.view(-1)[-1] = vocabulary - 1
        return numbers

    return draw
