"""What a torch module holds: its tensors and their names, and fresh values for them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.weights.randomness import own_draws, own_randomness


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and floating buffers that a file of the module would hold, each once."""
    yield from module.named_parameters()
    for name, buffer in saved_buffers(module):
        if buffer.is_floating_point():
            yield name, buffer


def saved_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that a file of the module would hold."""
    saved = module.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


def frozen_parameters(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that stay: those without gradients, unless no other is left.

    And those without entries, of which nothing can change.
    """
    named = dict(module.named_parameters())
    some = any(each.requires_grad for each in named.values())
    return tuple(
        name
        for name, each in named.items()
        if not each.numel() or (some and not each.requires_grad)
    )


def has_ties(module: nn.Module) -> bool:
    """Whether a tensor has several names."""
    tensors = [
        id(tensor)
        for named in (module.named_parameters, module.named_buffers)
        for _, tensor in named(remove_duplicate=False)
    ]
    return len(set(tensors)) < len(tensors)


def every_name(module: nn.Module) -> frozenset[str]:
    """Names under which a module can be given tensors, also those of ties and of tables."""
    return frozenset(
        name
        for named in (module.named_parameters, module.named_buffers)
        for name, _ in named(remove_duplicate=False)
    )


def forget_batch_counts(module: nn.Module) -> None:
    """Drops the integer batch counters, which vmap could not keep per member."""
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._NormBase):
            if child.momentum is None and child.track_running_stats:
                raise CosetError(
                    "got a batch norm with momentum=None (cumulative averages)",
                    "needed a fixed momentum, so that statistics do not depend on a counter",
                    "set momentum, for example to 0.1",
                )
            child.num_batches_tracked = None


def reset_weights(module: nn.Module, generator: torch.Generator, frozen: set[str]) -> nn.Module:
    """Re-initialises every layer, children before parents, from the generator alone.

    A layer whose parameters are all frozen is left as it is, with its statistics.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with own_randomness(seed), own_draws():
        for name, child in reversed(list(module.named_modules())):
            own = [
                f"{name}.{each}".lstrip(".") for each, _ in child.named_parameters(recurse=False)
            ]
            if own and frozen.issuperset(own):
                continue
            reset = getattr(child, "reset_parameters", None) or getattr(
                child, "_reset_parameters", None
            )
            if reset is not None:
                reset()
            elif own:
                raise CosetError(
                    f"got {type(child).__name__} {name!r} with parameters and no reset_parameters",
                    "needed a way to draw fresh weights",
                    "give the class a reset_parameters method, or pass start=",
                )
    return module
