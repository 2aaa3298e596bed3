"""Checks symmetries by running the network, in double precision, at weights in general position."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

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
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """For every tensor, which entries have influence on the output at one random point.

    Seen from gradients, of which only matters whether they are zero; in ``dtype``, because in a
    deep network they may be too small for single precision.
    """
    point = general_position(weights, positive, generator=generator)
    probe = random_inputs(inputs, generator=generator)
    leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in point.items()}
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in weights.items()}
    try:
        with torch.enable_grad():
            outputs = graph.run(leaves, probe, dtype=dtype, leaky=True)
            total = sum(
                (out * torch.randn(out.shape, generator=generator)).sum()
                for out in outputs
                if out.requires_grad
            )
            if not isinstance(total, Tensor):
                return seen
            gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except RuntimeError:  # an operation without a derivative: changes will tell
        return seen
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            seen[name] = gradient != 0
    return seen


def changes(
    graph: Graph,
    weights: Weights,
    inputs: Sequence[Tensor],
    masks: Mapping[str, Tensor],
    *,
    generator: torch.Generator,
) -> bool:
    """Whether other values of the masked entries give other outputs.

    Where a network rounds or compares, its gradients are zero although its weights are read.
    """
    point = general_position(weights, (), generator=generator)
    others = general_position(weights, (), generator=generator)
    changed = dict(point)
    for name, mask in masks.items():
        changed[name] = torch.where(mask, -others[name], point[name])
    probe = random_inputs(inputs, generator=generator)
    one, other = (graph.run(w, probe, dtype=torch.float64) for w in (point, changed))
    return any(
        not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
    )


def alone(group: SymmetryGroup, name: str, element: Element) -> Element:
    """The identity but for one factor of an element."""
    identity = group.identity()
    permutations, scales = dict(identity.permutations), dict(identity.scales)
    if name in permutations:
        permutations[name] = element.permutations[name]
    else:
        scales[name] = element.scales[name]
    return Element(permutations, scales)


@dataclass(frozen=True)
class Probe:
    """A network's outputs at one point, to compare those of moved weights with."""

    graph: Graph
    weights: Weights
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]

    @classmethod
    def at_random(
        cls,
        graph: Graph,
        weights: Weights,
        inputs: Sequence[Tensor],
        positive: Collection[str],
        *,
        generator: torch.Generator,
    ) -> "Probe":
        """At weights in general position and noise, or as close to that as the network allows.

        A logarithm or a root of an input or a weight is no number for most noise: then the noise
        is made positive, then the example is taken, then the given weights.
        """
        point = general_position(weights, positive, generator=generator)
        given = {name: tensor.double() for name, tensor in weights.items()}
        noise = random_inputs(inputs, generator=generator)
        size = [x.abs() for x in noise]
        for where, probe in product((point, given), (noise, size, inputs)):
            outputs = graph.run(where, probe, dtype=torch.float64)
            if not any(bool(out.isnan().any()) for out in outputs):
                break
        return cls(graph, where, probe, outputs)

    def error(self, group: SymmetryGroup, element: Element) -> float:
        """How much an element changes the outputs."""
        moved = group.act(element, self.weights)
        return difference(self.outputs, self.graph.run(moved, self.inputs, dtype=torch.float64))
