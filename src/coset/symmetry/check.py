"""Checks symmetries by running the network, in double precision, at weights in general position."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import torch
from torch import Tensor, nn

from coset.errors import CosetError, require_counts, require_kind
from coset.symmetry.elements import Element, ScaleInvariance
from coset.symmetry.graph import Graph
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.idealised import idealised
from coset.symmetry.points import further_points, general_position, random_inputs, silent, vanishes
from coset.symmetry.runner import Run, module_runner
from coset.symmetry.tracing import trace
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import parts_of, shapes_of
from coset.weights.network import unwrapped, weights_of


def symmetry_error(
    module: nn.Module,
    group: SymmetryGroup,
    example: Inputs,
    *,
    elements: int = 8,
    generator: torch.Generator | None = None,
) -> float:
    """The worst ``|f(g w) - f(w)| / (1 + |f(w)|)`` over random elements ``g``.

    Outputs that are all smaller than one are compared with their own size instead of one.
    Computed in double precision on the traced graph, or on a copy of a module that cannot be
    traced; casts to single precision inside are overruled.

    Raises:
        CosetError: If there is nothing to compare: no element, or no number among the outputs.
    """
    require_kind(SymmetryGroup, group=group)
    require_counts(elements=elements)
    generator = generator or torch.Generator().manual_seed(0)
    module, inputs = unwrapped(module), parts_of(example)
    run = _runner(module, example)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    reference = run(weights, inputs)
    if not any(output.numel() for output in reference):
        raise CosetError(
            f"got an example of {shapes_of(example)}, of which there are no outputs",
            "needed numbers to compare",
        )
    worst = 0.0
    for _ in range(elements):
        moved = group.act(group.sample(generator=generator), weights)
        worst = max(worst, difference(reference, run(moved, inputs)))
    return worst


def _runner(module: nn.Module, example: Inputs) -> Run:
    """The traced graph, or the module itself where it cannot be traced."""
    try:
        return partial(trace(module, example).run, dtype=torch.float64)
    except CosetError:
        return module_runner(module)


def difference(reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The worst relative difference of outputs; infinite if one is not a number.

    Each entry is compared with ``1 + |f|``, or with ``size + |f|`` if the largest entry of its
    output has a ``size`` below one.

    >>> difference([torch.tensor([1e-6, 0.0])], [torch.tensor([1e-6, 1e-6])])
    1.0
    """
    worst = 0.0
    for a, b in zip(reference, outputs, strict=True):
        if a.numel():
            size = a.abs().nan_to_num(nan=0.0, posinf=0.0).max().clamp_max(1)
            # equal infinities (masked scores) are no difference
            gap = torch.where(a == b, 0.0, (b - a).abs() / (size + a.abs()))
            worst = max(worst, float(gap.nan_to_num(nan=torch.inf).max()))
    return worst


def read_entries(
    graph: Graph,
    point: Weights,
    inputs: Sequence[Tensor],
    *,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """For every tensor, which entries have influence on the output at one point.

    Seen from gradients, of which only matters whether they are zero; in ``dtype``, because in a
    deep network they may be too small for single precision.
    """
    probe = random_inputs(inputs, generator=generator)
    leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in point.items()}
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in point.items()}
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
    positive: Collection[str],
    *,
    generator: torch.Generator,
) -> bool:
    """Whether other values of the masked entries give other outputs.

    Where a network rounds or compares, its gradients are zero although its weights are read.
    """
    point = general_position(weights, positive, generator=generator)
    others = general_position(weights, positive, generator=generator)
    changed = dict(point)
    for name, mask in masks.items():
        other = others[name] if name in positive else -others[name]
        changed[name] = torch.where(mask, other, point[name])
    probe = random_inputs(inputs, generator=generator)
    before, after = (graph.run(w, probe, dtype=torch.float64) for w in (point, changed))
    return any(
        not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)
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
    def at(
        cls,
        graph: Graph,
        point: Weights,
        given: Weights,
        inputs: Sequence[Tensor],
        positive: Collection[str] = (),
        *,
        generator: torch.Generator,
    ) -> "Probe":
        """At weights in general position and noise, or as close to that as the network allows.

        A logarithm or a root of an input or a weight is no number for most noise: then the noise
        is made positive, then the example is taken, then the given weights.  Where the outputs are
        zero at all of these, other weights and noise are drawn; ``positive`` weights stay positive.

        Raises:
            CosetError: If the outputs are zero wherever they are numbers.
        """
        noise = random_inputs(inputs, generator=generator)
        size = [x.abs() for x in noise]
        own = {name: tensor.double() for name, tensor in given.items()}
        found: Probe | None = None
        near = product((point, own), (noise, size, inputs))
        further = further_points(given, positive, inputs, generator=generator)
        for where, probe in chain(near, further):
            outputs = graph.run(where, probe, dtype=torch.float64)
            if any(bool(out.isnan().any()) for out in outputs):
                continue
            found = cls(graph, where, probe, outputs)
            if not vanishes(outputs):
                return found
        if found is not None:
            raise silent()
        return cls(graph, where, probe, outputs)

    def error(self, group: SymmetryGroup, element: Element) -> float:
        """How much an element changes the outputs."""
        return self.change(group.act(element, self.weights))

    def change(self, weights: Weights) -> float:
        """How much other weights change the outputs."""
        return difference(self.outputs, self.graph.run(weights, self.inputs, dtype=torch.float64))

    def idealised(self) -> "Probe":
        """The same point of the network whose norms divide out scales exactly."""
        graph = idealised(self.graph)
        outputs = graph.run(self.weights, self.inputs, dtype=torch.float64)
        return Probe(graph, self.weights, self.inputs, outputs)

    def rescaled(
        self, invariances: Iterable[ScaleInvariance], *, generator: torch.Generator
    ) -> Weights:
        """The weights with random scales along some invariances."""
        moved = dict(self.weights)
        for invariance in invariances:
            shape = moved[invariance.tensor].shape
            scales = random_scales(invariance, shape[invariance.axis], generator=generator)
            along = [-1 if axis == invariance.axis else 1 for axis in range(len(shape))]
            moved[invariance.tensor] = moved[invariance.tensor] * scales.view(along)
            if invariance.bias is not None:
                # a layer has one scale, and its bias may be of another length (transposed ones)
                own = scales[:1] if invariance.groups == "layer" else scales
                moved[invariance.bias] = moved[invariance.bias] * own
        return moved


def random_scales(
    invariance: ScaleInvariance, length: int, *, generator: torch.Generator
) -> Tensor:
    """Random positive scales along the axis of an invariance: equal where only those are free."""
    free = {"filter": length, "channel-group": invariance.count, "layer": 1}[invariance.groups]
    if length % free:
        free = 1  # groups of several sizes: all alike are some of what is allowed
    drawn = torch.randn(free, dtype=torch.float64, generator=generator).mul(0.5).exp()
    return drawn.repeat_interleave(length // free)
