"""Checks symmetries by running the network, in double precision, at weights in general position."""

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.elements import Element
from coset.symmetry.graph import Example, Graph
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.points import general_position, random_inputs
from coset.symmetry.runner import Run, module_runner
from coset.symmetry.tracing import trace
from coset.vocabulary import Weights
from coset.weights.network import weights_of


def symmetry_error(
    module: nn.Module,
    group: SymmetryGroup,
    example: Example,
    *,
    elements: int = 8,
    generator: torch.Generator | None = None,
) -> float:
    """The worst ``|f(g w) - f(w)| / (1 + |f(w)|)`` over random elements ``g``.

    Computed in double precision on the traced graph, or on a copy of a module that cannot be
    traced; casts to single precision inside are overruled.
    """
    generator = generator or torch.Generator().manual_seed(0)
    inputs = example if isinstance(example, tuple) else (example,)
    run = _runner(module, example)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    reference = run(weights, inputs)
    worst = 0.0
    for _ in range(elements):
        moved = group.act(group.sample(generator=generator), weights)
        worst = max(worst, difference(reference, run(moved, inputs)))
    return worst


def _runner(module: nn.Module, example: Example) -> Run:
    """The traced graph, or the module itself where it cannot be traced."""
    try:
        return partial(trace(module, example).run, dtype=torch.float64)
    except CosetError:
        return module_runner(module)


def difference(reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The worst relative difference of outputs; infinite if one is not a number."""
    worst = 0.0
    for a, b in zip(reference, outputs, strict=True):
        if a.numel():
            # equal infinities (masked scores) are no difference
            gap = torch.where(a == b, 0.0, (b - a).abs() / (1 + a.abs()))
            worst = max(worst, float(gap.nan_to_num(nan=torch.inf).max()))
    return worst


def read_entries(
    graph: Graph,
    weights: Weights,
    inputs: Sequence[Tensor],
    positive: Collection[str],
    *,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """For every tensor, which entries have influence on the output at one random point.

    Seen from gradients, in single precision: only whether they are zero matters.
    """
    point = general_position(weights, positive, generator=generator)
    leaves = {name: tensor.float().requires_grad_() for name, tensor in point.items()}
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in weights.items()}
    with torch.enable_grad():
        outputs = graph.run(
            leaves, random_inputs(inputs, generator=generator), dtype=torch.float32, leaky=True
        )
        total = sum(
            (out * torch.randn(out.shape, generator=generator)).sum()
            for out in outputs
            if out.requires_grad
        )
        if not isinstance(total, Tensor):
            return seen
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            seen[name] = gradient != 0
    return seen


def alone(group: SymmetryGroup, name: str, element: Element) -> Element:
    """The identity but for one factor of an element."""
    identity = group.identity()
    permutations, scales = dict(identity.permutations), dict(identity.scales)
    if name in permutations:
        permutations[name] = element.permutations[name]
    else:
        scales[name] = element.scales[name]
    return Element(permutations, scales)


def element_error(
    graph: Graph, group: SymmetryGroup, weights: Weights, inputs: Sequence[Tensor], element: Element
) -> float:
    """The error of one element at given double-precision weights."""
    reference = graph.run(weights, inputs, dtype=torch.float64)
    moved = graph.run(group.act(element, weights), inputs, dtype=torch.float64)
    return difference(reference, moved)
