"""What training changes and what it finds: all of it can be written down and taken up again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.defaults import with_noise
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem
from coset.inference.training.noise import Noise
from coset.inference.training.recipe import Recipe
from coset.inference.training.snapshots import Kept
from coset.inference.training.stopping import Best
from coset.inference.training.updates import Updates
from coset.posterior.families import FitReport, Snapshot
from coset.vocabulary import Weights
from coset.weights.randomness import own_state, set_own_state
from coset.weights.stacking import check_fit


@dataclass(frozen=True)
class Trained:
    """What training found.

    Attributes:
        weights: The members, as a stack.
        losses: Mean negative log-likelihood of each member on the data that measure it: the
            validation data, or its last epoch.
        variances: Learnt noise variance of each member, where it is learnt.
        epochs: Epochs each member was trained for.
        steps: Steps of the longest training.
        collected: What was collected after the epochs.
        snapshots: All members as a stack, by the epochs after which they were kept.
    """

    weights: Weights
    losses: Float[Tensor, " m"]
    variances: Float[Tensor, " m"] | None
    epochs: tuple[int, ...]
    steps: int
    collected: Mapping[str, Any] = field(default_factory=dict)
    snapshots: Mapping[int, Weights] = field(default_factory=dict)


@dataclass
class TrainingState:
    """Everything that changes during training.

    Attributes:
        numbers: Which member each row of the stack is; rows leave when their member stops.
        weights: Parameters and buffers of the members, as a stack.
        updates: The optimiser with its state.
        orders: One generator a member for the order of its data.
        masks: One generator a member for its dropout.
        noise: Learnt noise, if there is one.
        losses: Mean losses over the last epoch.
        best: The best weights so far by the validation data, if there are any.
        epoch: Epochs done.
        step: Steps done.
        order: The order of the data in the epoch under way.
        total: Sum of the losses of the examples seen in it.
        finished: Members that have stopped.
        collected: Room for what is collected after every epoch: tensors, numbers and tuples.
        kept: Snapshots by epoch.
    """

    numbers: list[int]
    weights: Weights
    updates: Updates
    orders: list[torch.Generator]
    masks: list[torch.Generator]
    noise: Noise | None
    losses: Float[Tensor, " m"]
    best: Best | None = None
    epoch: int = 0
    step: int = 0
    order: Int[Tensor, "m n"] | None = None
    total: Float[Tensor, " *m"] = field(default_factory=lambda: torch.zeros(()))
    finished: dict[int, Trained] = field(default_factory=dict)
    collected: dict[str, Any] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)

    def snapshot(self) -> dict[str, Any]:
        """The state as tensors, numbers, mappings and tuples."""
        return {
            "numbers": tuple(self.numbers),
            "weights": self.weights,
            "optimiser": self.updates.state(),
            "orders": tuple(generator.get_state() for generator in self.orders),
            "masks": tuple(generator.get_state() for generator in self.masks),
            "torch": own_state(),
            "noise": None if self.noise is None else vars(self.noise),
            "losses": self.losses,
            "best": None if self.best is None else vars(self.best),
            "epoch": self.epoch,
            "step": self.step,
            "order": self.order,
            "total": self.total,
            "finished": {
                str(number): {**vars(found), "snapshots": {}}
                for number, found in self.finished.items()
            },
            "collected": self.collected,
            "kept": {str(epoch): vars(kept) for epoch, kept in self.kept.items()},
        }

    def take_up(self, saved: Mapping[str, Any], recipe: Recipe, problem: Problem) -> None:
        """Becomes the state that a snapshot was taken of."""
        self.numbers = list(saved["numbers"])
        rows = len(self.numbers)
        fresh = {n: w[:1].expand(rows, *w.shape[1:]) for n, w in self.weights.items()}
        check_fit(saved["weights"], fresh, what="members", typed=True)
        self.weights = dict(saved["weights"])
        parameters = problem.network.layout.restrict(self.weights)
        self.updates = Updates.of(recipe.optimiser, problem, parameters)
        self.updates.take_up(saved["optimiser"])
        self.orders = [_generator(state) for state in saved["orders"]]
        self.masks = [_generator(state) for state in saved["masks"]]
        set_own_state(saved["torch"].cpu())
        self.noise = None if saved["noise"] is None else Noise(**saved["noise"])
        self.best = None if saved["best"] is None else Best(**saved["best"])
        self.losses, self.total = saved["losses"], saved["total"]
        self.epoch, self.step = saved["epoch"], saved["step"]
        self.order = None if saved["order"] is None else saved["order"].cpu()
        self.finished = {int(k): Trained(**found) for k, found in saved["finished"].items()}
        self.collected = dict(saved["collected"])
        kept = saved.get("kept", {})
        self.kept = {int(k): Kept(tuple(v["numbers"]), v["weights"]) for k, v in kept.items()}


def join(parts: Sequence[Trained]) -> Trained:
    """Puts stacks of members side by side; what was collected is left out."""
    variances = [part.variances for part in parts if part.variances is not None]
    return Trained(
        {name: torch.cat([part.weights[name] for part in parts]) for name in parts[0].weights},
        torch.cat([part.losses for part in parts]),
        torch.cat(variances) if variances else None,
        tuple(epochs for part in parts for epochs in part.epochs),
        max(part.steps for part in parts),
        snapshots={
            epoch: {n: torch.cat([part.snapshots[epoch][n] for part in parts]) for n in weights}
            for epoch, weights in parts[0].snapshots.items()
        },
    )


def report_of(trained: Trained, likelihood: Likelihood) -> FitReport:
    """The learnt noise and the numbers of a training.

    A mixture of members with noise variances ``σ²`` has the mean of them as its own.  Snapshots are
    stacks of all members: :func:`of_member` gives those of one.
    """
    learnt = None
    if trained.variances is not None:
        learnt = with_noise(likelihood, float(trained.variances.mean().sqrt()))
    diagnostics = {
        "loss": float(trained.losses.mean()),
        "epochs": float(max(trained.epochs)),
        "steps": float(trained.steps),
    }
    kept = tuple(Snapshot(epoch, weights) for epoch, weights in trained.snapshots.items())
    return FitReport(likelihood=learnt, diagnostics=diagnostics, snapshots=kept)


def of_member(report: FitReport, row: int) -> FitReport:
    """The report of one member, with its own snapshots."""
    kept = tuple(
        Snapshot(each.epoch, {name: tensor[row] for name, tensor in each.weights.items()})
        for each in report.snapshots
    )
    return replace(report, snapshots=kept)


def _generator(state: Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state.cpu())
    return generator
