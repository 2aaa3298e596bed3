"""Watches a network run and notes where its weights are used.

Functions are watched, not modules: a weight used twice, inside a functional call or an attention
layer, is seen each time.  Gradients are then taken to the outputs of the linear maps only, never to
the weights, which saves half of the backward pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from coset.curvature.direct import meet
from coset.curvature.maps import LinearMap, Pair
from coset.curvature.readers import READERS
from coset.curvature.watch import Watch
from coset.vocabulary import Inputs, Weights
from coset.weights.layout import Layout
from coset.weights.network import Network
from coset.weights.uses import probe

Place = tuple[tuple[str, ...], int]
"""One use of a block's weights: the block and its number."""


@dataclass(frozen=True)
class Recorded:
    """Outputs of a network and the linear maps they went through.

    Attributes:
        outputs: With their graph.
        maps: By the names of their tensors; several for a weight that is used several times.
        edges: Where the gradient of each map's outputs is found in the graph.
        foreign: Tensors that something else than a known map reads, with the name of the reader.
    """

    outputs: Tensor
    maps: Mapping[tuple[str, ...], list[LinearMap]]
    edges: Mapping[tuple[str, ...], list[GradientEdge]]
    foreign: Mapping[str, str]

    @property
    def own(self) -> tuple[str, ...] | None:
        """The block whose outputs are those of the network, one vector an example."""
        if self.outputs.dim() != 2 or not self.outputs.requires_grad:
            return None
        last, plain = get_gradient_edge(self.outputs), self.outputs.detach()
        for names, edges in self.edges.items():
            if len(edges) == 1 and edges[0] == last:
                left = self.maps[names][0].left(plain)
                same = left.data_ptr() == plain.data_ptr()  # u is the gradient as it is
                return names if same and left.shape[1:3] == (1, 1) else None
        return None

    @property
    def last_map(self) -> LinearMap | None:
        """The only map, where its outputs at each pixel are those of the network."""
        if len(self.maps) != 1 or self.outputs.dim() < 3 or not self.outputs.requires_grad:
            return None
        (uses,), (edges,) = self.maps.values(), self.edges.values()
        if len(uses) != 1 or edges[0] != get_gradient_edge(self.outputs):
            return None
        plain = self.outputs.detach()
        left, pixels = uses[0].left(plain), plain.flatten(2).mT.unsqueeze(1)
        same = left.data_ptr() == plain.data_ptr()  # u is the gradient, a row a pixel
        return (
            uses[0] if same and left.shape == pixels.shape and torch.equal(left, pixels) else None
        )

    def gradients(self, cotangent: Tensor) -> dict[tuple[str, ...], list[Tensor]]:
        """Of the outputs of every map, for one direction in the network's outputs."""
        edges = [edge for found in self.edges.values() for edge in found]
        gradients = iter(
            torch.autograd.grad(
                self.outputs, edges, cotangent, retain_graph=True, materialize_grads=False
            )
            if edges
            else ()
        )
        return {names: [next(gradients) for _ in found] for names, found in self.edges.items()}

    def visit(
        self, cotangent: Tensor, see: Callable[[tuple[str, ...], list[Tensor]], None]
    ) -> None:
        """Hands over the gradients of each block as soon as the backward pass has come by.

        Then they are still near the processor, and no more of them are kept than a block has.
        """
        waiting: dict[tuple[str, ...], dict[int, Tensor]] = {}

        def arrive(place: Place, gradient: Tensor) -> None:
            names, use = place
            found = waiting.setdefault(names, {})
            found[use] = gradient
            if len(found) == len(self.edges[names]):
                see(names, [found[k] for k in range(len(found))])
                del waiting[names]

        def listen(place: Place, edge: GradientEdge) -> RemovableHandle:
            return edge.node.register_prehook(lambda got: arrive(place, got[edge.output_nr]))

        places, ends = self._places, self._ends
        handles = [listen(place, edge) for place, edge in places.items() if place not in ends]
        try:
            last = torch.autograd.grad(
                self.outputs, [places[place] for place in ends], cotangent, retain_graph=True
            )
        finally:
            for handle in handles:
                handle.remove()
        for place, gradient in zip(ends, last, strict=True):
            arrive(place, gradient)

    @cached_property
    def _places(self) -> dict[Place, GradientEdge]:
        return {
            (names, use): edge
            for names, found in self.edges.items()
            for use, edge in enumerate(found)
        }

    @cached_property
    def _ends(self) -> list[Place]:
        """Maps before which no other comes: a backward pass to them comes by all others."""
        watched = {edge.node for edge in self._places.values()}
        above: set[Node] = set()  # nodes from which the outputs of another map are reached
        for node in reversed(_in_order(self.outputs)):
            following = [after for after, _ in node.next_functions if after is not None]
            if any(after in watched or after in above for after in following):
                above.add(node)
        return [place for place, edge in self._places.items() if edge.node not in above]

    def pairs(self, cotangent: Tensor) -> dict[tuple[str, ...], Pair]:
        """``u`` and ``v`` of every block for one direction in the outputs."""
        return {
            names: pair_of(self.maps[names], found)
            for names, found in self.gradients(cotangent).items()
        }


def pair_of(uses: Sequence[LinearMap], gradients: Sequence[Tensor]) -> Pair:
    """``u`` and ``v`` of one block: each use of its weights is a few more positions."""
    parts = [use.pair(gradient) for use, gradient in zip(uses, gradients, strict=True)]
    if len(parts) == 1:
        return parts[0]
    left, right = (torch.cat(side, dim=2) for side in zip(*parts, strict=True))
    return left, right


def record(
    network: Network,
    weights: Weights,
    layout: Layout,
    inputs: Inputs,
    *,
    separate: frozenset[str] = frozenset(),
) -> Recorded:
    """Runs the network and notes every use of the tensors of a layout.

    Args:
        network: The network.
        weights: All its weights.
        layout: The tensors of interest.
        inputs: Examples along the first axis.
        separate: Weights that are not to share a block with their bias.
    """
    watch, outputs = _watched_run(network, weights, layout, inputs, separate)
    if not watch.in_step:
        # what a network makes in its first call is there in the second; and one that looks at its
        # inputs (is a mask all ones?) goes the same way with all of them
        watch, outputs = _watched_run(network, weights, layout, inputs, separate, whole=True)
    reached = {*_in_order(outputs)}
    uses: dict[tuple[str, ...], list[LinearMap]] = {}
    edges: dict[tuple[str, ...], list[GradientEdge]] = {}
    for use, edge in watch.found:
        if edge.node not in reached:
            continue  # a branch that ends nowhere
        uses.setdefault(use.names, []).append(use)
        edges.setdefault(use.names, []).append(edge)
    clash = _clashing(uses)
    if clash:
        return record(network, weights, layout, inputs, separate=separate | clash)
    seen = {name for names in uses for name in names}
    unread = {name: "nothing" for name in layout.names if name not in seen}
    mixed = _of_two_kinds(uses, layout.restrict(weights))
    return Recorded(
        outputs, uses, edges, {**unread, **watch.unseen(reached), **watch.foreign, **mixed}
    )


def _watched_run(
    network: Network,
    weights: Weights,
    layout: Layout,
    inputs: Inputs,
    separate: frozenset[str],
    *,
    whole: bool = False,
) -> tuple[Watch, Tensor]:
    plain = {name: tensor.detach() for name, tensor in weights.items()}
    watched = {name: plain[name] for name in layout.names}
    with torch.enable_grad():  # for the probe as for the run that is watched
        other = probe(lambda few: network.apply(plain, few), inputs, whole=whole)
    watch = Watch(watched, plain.values(), other, separate, READERS, meet)
    with torch.enable_grad(), watch:
        return watch, network.apply({**plain, **watch.leaves}, inputs)


def _in_order(outputs: Tensor) -> list[Node]:
    """All nodes of the graph that a gradient of the outputs reaches, each before what it feeds."""
    found: list[Node] = []
    seen: set[Node] = set()
    waiting: list[tuple[Node | None, bool]] = [(outputs.grad_fn, False)]
    while waiting:
        node, done = waiting.pop()
        if node is None:
            continue
        if done:
            found.append(node)  # after all that it feeds
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(following, False) for following, _ in node.next_functions]
    found.reverse()
    return found


def _of_two_kinds(
    uses: Mapping[tuple[str, ...], Sequence[LinearMap]], weights: Weights
) -> dict[str, str]:
    """Weights that are used in two ways: in two places of a block, or as blocks of two layouts."""
    found: dict[str, str] = {}
    for names, maps in uses.items():
        twice = len({*names}) < len(names)
        if len(maps) == 1 and not twice:
            continue
        index = [torch.arange(weights[name].numel()).view(weights[name].shape) for name in names]
        first, *others = (use.join(index) for use in maps)
        if twice or not all(torch.equal(first, other) for other in others):
            found.update({name: "two kinds of layers" for name in names})
    return found


def _clashing(uses: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Weights that are used with different biases, or with and without."""
    blocks: dict[str, set[tuple[str, ...]]] = {}
    for names in uses:
        for name in names:
            blocks.setdefault(name, set()).add(names)
    return frozenset(name for name, found in blocks.items() if len(found) > 1)
