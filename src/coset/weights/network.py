"""A torch module seen as a pure function of its weights."""

import copy
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coset.errors import CosetError, names_like
from coset.printing import brief
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import other_type, parts_of, shapes_of
from coset.weights.layout import Layout
from coset.weights.masks import split_masks, with_masks
from coset.weights.modules import (
    every_name,
    forget_batch_counts,
    frozen_parameters,
    has_ties,
    named_tensors,
    reset_weights,
    saved_buffers,
)
from coset.weights.plain import require_plain
from coset.weights.randomness import own_draws
from coset.weights.refusals import require_weights
from coset.weights.stacking import check_fit, check_ties


@dataclass(frozen=True)
class Network:
    """A module as pure functions; the module itself is copied and never changed.

    Several threads may call the functions at once.

    Attributes:
        apply: ``apply(weights, inputs)`` in evaluation mode.  Partial weights override
            :attr:`weights`, so a posterior over the last layer simply returns fewer tensors; names
            that the network does not have are refused.
            Masks among them (:mod:`coset.weights.masks`) stand in for the dropouts.
        apply_training: ``apply_training(weights, inputs)`` in training mode; returns the outputs
            and the buffers after the pass (batch-norm statistics), again without side effects.
        weights: The module's own weights, detached copies.
        layout: The parameters, without frozen ones (``requires_grad_(False)``) unless all are.
            Buffers are in :attr:`weights` because symmetries move them, but no prior and no
            curvature covers them, nor what is frozen.
        initialise: Fresh weights from a generator.
        module: A copy of the module in evaluation mode, for tools that trace it.
        frozen: Names of the parameters that stay as they are.
    """

    apply: Callable[[Weights, Inputs], Tensor]
    apply_training: Callable[[Weights, Inputs], tuple[Tensor, Weights]]
    weights: Weights
    layout: Layout
    initialise: Callable[[torch.Generator], Weights]
    module: nn.Module | None = None
    frozen: tuple[str, ...] = ()

    __repr__ = brief

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of what comes along with the parameters: saved floating buffers, frozen ones."""
        parameters = set(self.layout.names)
        return tuple(name for name in self.weights if name not in parameters)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the saved floating buffers, which training may change."""
        return tuple(name for name in self.buffers if name not in self.frozen)


def weights_of(module: nn.Module) -> Weights:
    """Detached copies of the parameters and the saved floating buffers.

    A tensor that two names share appears once, under the first.

    >>> sorted(weights_of(nn.Linear(2, 1)))
    ['bias', 'weight']
    """
    return {name: _copied(name, tensor) for name, tensor in named_tensors(unwrapped(module))}


def _copied(name: str, tensor: Tensor) -> Tensor:
    if nn.parameter.is_lazy(tensor):
        raise CosetError(
            f"got {name!r} without a shape, from a lazy module",
            "needed a module whose tensors exist",
            "run it once on an input",
        )
    return tensor.detach().clone()


def tables_of(module: nn.Module) -> dict[str, Tensor]:
    """The saved buffers that are no weights (whole numbers, truth values), not copied.

    >>> tables_of(nn.BatchNorm1d(2))
    {'num_batches_tracked': tensor(0)}
    """
    buffers = saved_buffers(unwrapped(module))
    return {name: buffer for name, buffer in buffers if not buffer.is_floating_point()}


def require_module(module: object) -> None:
    """Refuses what is no module."""
    if isinstance(module, type):
        raise CosetError(
            f"got the class {module.__name__} as the module", "needed a torch.nn.Module"
        )
    if not isinstance(module, nn.Module):
        raise CosetError(f"got a {type(module).__name__} as the module", "needed a torch.nn.Module")


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside ``torch.compile`` and data parallelism, which change names, not functions.

    >>> sorted(weights_of(nn.DataParallel(nn.Linear(2, 1))))
    ['bias', 'weight']
    """
    require_module(module)
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def assign(module: nn.Module, weights: Weights, *, partial: bool = False) -> nn.Module:
    """Writes weights into the module in place and returns it.

    Args:
        module: The module to change.
        weights: All its tensors, or with ``partial`` some of them and of its tables.
        partial: Whether names may be missing.

    Raises:
        CosetError: If a name or shape does not fit, two names of one tensor come with different
            numbers, or the module's own type cannot hold a number (too large, complex); the module
            is then unchanged.
    """
    inner = unwrapped(module)
    require_weights(weights, "weights")
    for name, tensor in weights.items():
        require_plain(tensor, f"the weights {name!r}")
    own = dict(named_tensors(inner)) | (tables_of(inner) if partial else {})
    names = {id(tensor): name for name, tensor in own.items()}
    aliases = {
        name: names[id(tensor)]
        for name, tensor in inner.named_parameters(remove_duplicate=False)
        if name not in own
    }
    given = {name: tensor for name, tensor in weights.items() if name not in aliases}
    check_fit(given, own, partial=partial)
    check_ties(weights, aliases)
    fitting = {name: _converted(name, tensor, own[name]) for name, tensor in given.items()}
    with torch.no_grad():
        for name, tensor in fitting.items():
            own[name].copy_(tensor)
    return module


def _converted(name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in the numbers of another, refused where these cannot hold it."""
    found = tensor.detach().real if tensor.is_complex() else tensor.detach()
    found = found.to(like.dtype)
    lost = tensor.is_complex() and not like.is_complex()
    if like.is_floating_point():
        lost = lost or bool((tensor.isfinite() & ~found.isfinite()).any())
    elif not like.is_complex():
        lost = lost or not torch.equal(found.to(tensor.dtype), tensor.detach())
    if lost:
        raise CosetError(
            f"got weights with {name!r} of type {tensor.dtype}",
            f"needed numbers that {like.dtype}, which the module has, can hold",
            "convert the module with module.to(…) before, or look for numbers without bounds",
        )
    return found


def functionalise(module: nn.Module) -> Network:
    """Turns a module into a :class:`Network` of pure functions.

    >>> network = functionalise(nn.Linear(2, 1))
    >>> zero = {name: torch.zeros_like(tensor) for name, tensor in network.weights.items()}
    >>> network.apply(zero, torch.ones(3, 2)).tolist()
    [[0.0], [0.0], [0.0]]
    """
    module = unwrapped(module)
    _require_numbers(module)
    evaluating, training = _fixed_copy(module).eval(), _fixed_copy(module).train()
    forget_batch_counts(training)
    weights = weights_of(evaluating)
    frozen = frozen_parameters(module)
    names = [name for name, _ in module.named_parameters() if name not in frozen]
    layout = Layout.of(weights, names)
    statistics = [name for name in weights if name not in {*layout.names, *frozen}]

    evaluator, trainer = _per_thread(evaluating), _per_thread(training)
    tied, known = has_ties(module), every_name(module)

    def apply(given: Weights, inputs: Inputs) -> Tensor:
        proper, masks = split_masks(given)
        _require_known(proper, known)
        with with_masks(masks):
            return _call(evaluator(), proper, inputs, tied=tied)

    def apply_training(given: Weights, inputs: Inputs) -> tuple[Tensor, Weights]:
        _require_known(given, known)
        # functional_call writes buffer updates into the dictionary it is given
        fresh = {name: given.get(name, weights[name]).clone() for name in statistics}
        try:
            outputs = _call(trainer(), {**given, **fresh}, inputs, tied=tied)
        except ValueError as error:
            _name_single_example(error)
            raise
        return outputs, fresh

    def initialise(generator: torch.Generator) -> Weights:
        fresh = weights_of(reset_weights(copy.deepcopy(evaluating), generator, set(frozen)))
        return fresh | {name: weights[name].clone() for name in frozen}

    return Network(apply, apply_training, weights, layout, initialise, evaluating, frozen)


def _require_numbers(module: nn.Module) -> None:
    """Refuses modules that were built without their numbers."""
    for name, tensor in named_tensors(module):
        if not isinstance(tensor, nn.UninitializedParameter) and tensor.is_meta:
            raise CosetError(
                f"got a module with {name!r} on the meta device",
                "needed weights that hold numbers",
                "load them with load_state_dict(…, assign=True), or build the module elsewhere",
            )


def _fixed_copy(module: nn.Module) -> nn.Module:
    """A copy whose parameters take no gradients."""
    try:
        return copy.deepcopy(module).requires_grad_(False)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CosetError(
            f"got a module that cannot be copied ({reason})",
            "needed one whose tensors are parameters and buffers that have their shapes",
            "run lazy layers once; use nn.utils.parametrizations.weight_norm and spectral_norm in "
            "place of those in nn.utils",
        ) from error


REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)
"""What modules raise when they are called with what they cannot take."""


def refusal(inputs: Inputs, error: Exception, weights: Iterable[Tensor] = ()) -> CosetError:
    """The error of inputs that a network, with these weights, does not take."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CosetError(
        f"got inputs of {shapes_of(inputs)}",
        f"the network refused them: {reason}",
        other_type(inputs, weights)
        or "give one example a row, inputs[None] for a single one, and a tuple of as many tensors "
        "as the network was trained with",
    )


def _name_single_example(error: ValueError) -> None:
    """Names what torch says where batch norm is given a single value."""
    if "more than 1 value per channel" in str(error):
        raise CosetError(
            "got a batch of one example for a network with batch norm",
            "needed two at least, to take a variance of",
            "give more data or another batch_size",
        ) from error


def _per_thread(module: nn.Module) -> Callable[[], nn.Module]:
    """A copy for each thread: during a call the weights given stand in the module itself."""
    copies = threading.local()

    def own() -> nn.Module:
        if not hasattr(copies, "module"):
            copies.module = copy.deepcopy(module)
        found: nn.Module = copies.module
        return found

    return own


def _call(module: nn.Module, weights: Weights, inputs: Inputs, *, tied: bool) -> Tensor:
    # to look for ties at every call would take as long as a small layer
    with own_draws():
        outputs: Tensor = functional_call(module, weights, parts_of(inputs), tie_weights=tied)
    return outputs


def _require_known(weights: Weights, known: frozenset[str]) -> None:
    """Refuses names that the network does not have, which torch would pass over."""
    if weights.keys() <= known:
        return
    unknown = next(name for name in weights if name not in known)
    raise CosetError(
        f"got weights with unknown {unknown!r}",
        f"needed names of the network, such as {names_like(str(unknown), sorted(known))}",
        "check that the weights belong to this architecture",
    )
