"""Matching with soft permutations (Peña et al. 2023): all factors move at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from coset.alignment.assignment import best_permutations
from coset.alignment.by_weights import ByWeights, ascend, begin, too_faint, widened
from coset.alignment.plans import Plan, lone_signs, make_plans, matched_tensors
from coset.alignment.result import Outcome
from coset.alignment.scales import Climbed, solve
from coset.alignment.soft import mix, sinkhorn
from coset.alignment.ties import settle_ties
from coset.errors import CosetError
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights


@dataclass(frozen=True)
class BySinkhorn:
    """Gradient ascent of ``<to, soft(weights)>`` over doubly stochastic matrices.

    Each permutation is relaxed to ``Sinkhorn(X / temperature)`` of a free matrix ``X``, each sign
    of unit ``j`` in place ``i`` to ``tanh(Y[i, j] / temperature)``, and signs of layers likewise.
    Gradients are taken through the normalisation, Adam moves all free numbers together, and linear
    assignments round the result.  Coordinate ascent from there settles what rounding has upset.
    Positive scales are treated as by ``ByWeights(scales="automatic")``.

    Attributes:
        steps: Of Adam.
        learning_rate: Of Adam.
        temperature: Smaller is harder.
        iterations: Of the normalisation.
    """

    steps: int = 60
    learning_rate: float = 0.1
    temperature: float = 0.2
    iterations: int = 20

    def __post_init__(self) -> None:
        if min(self.steps, self.iterations) < 1 or min(self.learning_rate, self.temperature) <= 0:
            raise CosetError(
                f"got steps={self.steps}, iterations={self.iterations}, "
                f"learning_rate={self.learning_rate}, temperature={self.temperature}",
                "needed positive numbers",
            )

    def solve(
        self, group: SymmetryGroup, weights: Weights, to: Weights, *, generator: torch.Generator
    ) -> Outcome:
        """The element found for weights that were checked."""
        if not any(plan.terms for plan in make_plans(group).values()):
            return ByWeights().solve(group, weights, to, generator=generator)

        def climb(source: Weights, target: Weights) -> Climbed:
            return self._climb(group, source, target)

        def quick_climb(source: Weights, target: Weights) -> Climbed:
            return ascend(ByWeights(soft=0), group, source, target, generator)

        return solve("automatic", group, weights, to, climb, quick_climb)

    def _climb(self, group: SymmetryGroup, source: Weights, target: Weights) -> Climbed:
        """Permutations and signs, softly first."""
        run = begin(group, target, source, group.identity())
        if too_faint(run.objective(), target):
            return self._climb(group, widened(source), widened(target))
        soft = _Soft.undecided(group, next(iter(source.values())))
        names = sorted(matched_tensors(group))
        size = sum(float(target[name].double().square().sum()) for name in names) or 1.0
        goal = {name: (target[name].double() / size).to(target[name].dtype) for name in names}
        optimiser = torch.optim.Adam(soft.free, lr=self.learning_rate)
        for _ in range(self.steps):
            with torch.enable_grad():
                optimiser.zero_grad()
                moved = self._moved(group, {name: source[name] for name in names}, soft)
                gain = sum((goal[name] * moved[name]).sum() for name in names)
                assert isinstance(gain, Tensor)
                (-gain).backward()
            optimiser.step()
        for name, plan in run.plans.items():
            run.reorder(name, *self._rounded(group, plan, soft))
        run.flip_layers()
        sweeps = run.sweep(list(run.plans), most=100)
        ties = settle_ties(run)
        return run, Outcome(run.element, ties, sweeps, lambda: run.aligned)

    def _moved(self, group: SymmetryGroup, weights: Weights, soft: "_Soft") -> Weights:
        """The weights under soft permutations and signs, outer factors first."""
        moved = dict(weights)
        for name, plan in make_plans(group).items():
            shares = sinkhorn(soft.permutations[name] / self.temperature, self.iterations)
            signs = torch.tanh(soft.signs[name] / self.temperature)
            for term in plan.terms:
                flipping = [sign for sign, flips in zip(signs, term.parity, strict=True) if flips]
                mixing = prod(flipping, start=shares)
                moved[term.site.tensor] = mix(moved[term.site.tensor], term.site, mixing)
        for layer in lone_signs(group):
            mixing = torch.diag_embed(torch.tanh(soft.layers[layer.name] / self.temperature))
            for site in layer.sites:
                if site.power % 2 and site.tensor in moved:
                    moved[site.tensor] = mix(moved[site.tensor], site, mixing)
        return moved

    def _rounded(
        self, group: SymmetryGroup, plan: Plan, soft: "_Soft"
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Where the units of a factor go, and how they are flipped there."""
        name, shape = plan.factor.name, group.tables.shape(plan.factor)
        shares = sinkhorn(soft.permutations[name].detach() / self.temperature, self.iterations)
        order = torch.from_numpy(best_permutations(shares.cpu().numpy())[0])
        flips = {}
        for sign, free in zip(plan.signs, soft.signs[name].detach().cpu(), strict=True):
            chosen = free.gather(-1, order.unsqueeze(-1)).reshape(shape)
            flips[sign.name] = torch.where(chosen < 0, -1.0, 1.0).double()
        return order.reshape(shape), flips


@dataclass(frozen=True)
class _Soft:
    """The free numbers of all factors.

    Attributes:
        permutations: For each factor a matrix a copy.
        signs: For each factor the same for each sign along it.
        layers: For each sign that no permutation moves a vector a copy.
    """

    permutations: Mapping[str, Float[Tensor, "b h h"]]
    signs: Mapping[str, Float[Tensor, "k b h h"]]
    layers: Mapping[str, Float[Tensor, "b k"]]

    @staticmethod
    def undecided(group: SymmetryGroup, like: Tensor) -> "_Soft":
        """Every unit everywhere, and signs of either kind alike: zeros.

        So nothing is known at first but what a single sign or none flips, and the rest follows step
        by step.
        """

        def zeros(*shape: int) -> Tensor:
            return like.new_zeros(shape).requires_grad_()

        plans = make_plans(group)
        shapes = {n: (plan.copies, plan.factor.size, plan.factor.size) for n, plan in plans.items()}
        return _Soft(
            {name: zeros(*shape) for name, shape in shapes.items()},
            {name: zeros(len(plans[name].signs), *shape) for name, shape in shapes.items()},
            {sign.name: zeros(group.tables.copies(sign), sign.size) for sign in lone_signs(group)},
        )

    @property
    def free(self) -> list[Tensor]:
        """All of them."""
        parts = (self.permutations, self.signs, self.layers)
        return [tensor for part in parts for tensor in part.values()]
