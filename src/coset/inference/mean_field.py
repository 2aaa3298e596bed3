"""Mean-field variational inference: Bayes by backprop (Blundell et al. 2015)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import GaussianNoise
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.checkpoint import Checkpoint
from coset.inference.facts import described
from coset.inference.local_noise import (
    Deviations,
    NoisyLayers,
    flipped_draw,
    local_draw,
    noisy_layers,
)
from coset.inference.map_estimate import MaximumAPosteriori, require_training
from coset.inference.method import within
from coset.inference.training.loop import require_finite_weights
from coset.inference.training.members import member_seeds, starting_points
from coset.inference.training.noise import Noise, half_squares, is_learnt
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.recipe import Recipe
from coset.inference.training.records import (
    Record,
    part_of,
    record_of,
    refuse_two_checkpoints,
)
from coset.inference.training.schedules import Cosine, Schedule
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.vocabulary import Batch, Progress, Weights
from coset.weights.arithmetic import noise_like
from coset.weights.masks import dropout_off

Estimator = Literal["local", "flipout", "shared"]

_PASSES = (4, 64)
"""Least and most passes over the data for the bound; in between a tenth of the epochs."""


@dataclass(frozen=True)
class MeanField:
    """An independent Gaussian for every weight, the closest to the posterior.

    Minimises ``-E_q Σ log p(y | f(x; w)) + T · KL(q ‖ p)`` over means and standard deviations, with
    ``KL = ½ Σ (λσ² + λμ² - 1 - log λσ²)`` for the prior precision ``λ``.

    Attributes:
        temperature: ``T``, the weight of the KL term; below one the posterior is cold.
        initial_std: Standard deviation of every weight at the start.
        base: A training of the means before (an empirical-Bayes start); ``None``: none.
        optimiser: Of means and logarithms of standard deviations.
        schedule: Of the learning rate.
        epochs: Passes over the data.  ``None``: as many as give 2,000 steps, and at least 10.
        batch_size: Examples a step at most.
        estimator: Where a step's noise is drawn; all give the same gradients on average.
            ``"local"``: in the outputs of linear layers on one vector an example (local
            reparameterisation, Kingma et al. 2015).  ``"flipout"``: in the weights of linear
            layers and convolutions, with signs of its own for every example (Wen et al. 2018).
            ``"shared"``: in the weights, one draw for the whole batch, as both do for all
            other tensors.
        checkpoint: Where a long run is written down, to be taken up again.
    """

    temperature: float = 1.0
    initial_std: float = 0.05
    base: MaximumAPosteriori | None = None
    optimiser: Optimiser = field(default_factory=lambda: Adam(1e-2))
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64
    estimator: Estimator = "local"
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.estimator not in get_args(Estimator):
            raise CosetError(
                f"got estimator={self.estimator!r}",
                f"needed one of {', '.join(get_args(Estimator))}",
            )
        if self.base is not None:
            require_training(self.base, "MeanField")
        refuse_two_checkpoints("MeanField", self.base)
        if not 0 <= self.temperature < math.inf or not 0 < self.initial_std < math.inf:
            raise CosetError(
                f"got a temperature of {self.temperature} and an initial standard deviation of "
                f"{self.initial_std}",
                "needed a temperature of zero or more and a positive standard deviation",
            )
        _ = self.recipe  # refuses what cannot be trained with

    @property
    def recipe(self) -> Recipe:
        """The settings of the training."""
        return Recipe(self.optimiser, self.schedule, self.epochs, self.batch_size)

    def fit(
        self,
        problem: Problem,
        *,
        start: Weights | None = None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> LowRankGaussian:
        """Fits means, from ``start`` or fresh weights, and standard deviations.

        Raises:
            CosetError: If data or weights do not fit the network, if a prior precision is zero, or
                if the loss stops being finite.
        """
        problem.check()
        precisions = _precisions(problem)
        if self.base is not None:
            base = replace(self.base, checkpoint=part_of(self.checkpoint, "base"))
            before = within(progress, 0.0, 0.5, "training")
            start = base.fit(problem, start=start, generator=generator, progress=before).weights
            progress = within(progress, 0.5, 1.0, "mean field")
        seeds = member_seeds(1, generator)
        starts = starting_points(problem, start, seeds)
        kind = described(replace(self, base=None))  # the base has a record of its own
        record = record_of(self.checkpoint, kind, problem, self.recipe, seeds, starts)
        run = _Run(self, problem, precisions, starts, record)
        run.train(generator, progress)
        return run.posterior(generator)


class _Run:
    """The state of a fit and its loop."""

    def __init__(
        self,
        method: MeanField,
        problem: Problem,
        precisions: Weights,
        starts: Weights,
        record: Record | None,
    ) -> None:
        self._method, self._problem = method, problem
        self._precisions, self._record = precisions, record
        first = {name: tensor[0].detach().clone() for name, tensor in starts.items()}
        self._means = {name: first[name] for name in problem.network.layout.names}
        self._log_stds = {
            name: torch.full_like(mean, math.log(method.initial_std))
            for name, mean in self._means.items()
        }
        self._buffers = {name: first[name] for name in problem.network.buffers}
        self._learnt = is_learnt(problem.likelihood)
        self._log_prob = half_squares if self._learnt else problem.likelihood.log_prob
        self._noise: Noise | None = None
        self._loss, self._total = math.nan, 0.0
        self._epoch, self._step_number = 0, 0
        self._order: Tensor | None = None
        self._noisy = noisy_layers(problem, method.estimator)
        self._tie_optimiser()

    def _tie_optimiser(self) -> None:
        self._leaves = {
            **{f"mean {name}": mean.requires_grad_() for name, mean in self._means.items()},
            **{f"std {name}": std.requires_grad_() for name, std in self._log_stds.items()},
        }
        groups = [{"params": [*self._leaves.values()], "weight_decay": 0.0}]
        self._optimiser = self._method.optimiser.build(groups, fused=False)

    def _snapshot(self, generator: torch.Generator) -> dict[str, Any]:
        return {
            "means": self._means,
            "log_stds": self._log_stds,
            "optimiser": {n: dict(self._optimiser.state[w]) for n, w in self._leaves.items()},
            "buffers": self._buffers,
            "noise": None if self._noise is None else vars(self._noise),
            "loss": self._loss,
            "total": self._total,
            "epoch": self._epoch,
            "step": self._step_number,
            "order": self._order,
            "generator": generator.get_state(),
        }

    def _take_up(self, saved: Mapping[str, Any], generator: torch.Generator) -> None:
        names = tuple(self._means)  # files have an order of their own, and sums depend on it
        self._means = {name: saved["means"][name] for name in names}
        self._log_stds = {name: saved["log_stds"][name] for name in names}
        self._tie_optimiser()
        for name, leaf in self._leaves.items():
            self._optimiser.state[leaf] = dict(saved["optimiser"][name])
        self._buffers = dict(saved["buffers"])
        self._noise = None if saved["noise"] is None else Noise(**saved["noise"])
        self._loss, self._total = saved["loss"], saved["total"]
        self._epoch, self._step_number = saved["epoch"], saved["step"]
        self._order = None if saved["order"] is None else saved["order"].cpu()
        generator.set_state(saved["generator"].cpu())

    def train(self, generator: torch.Generator, progress: Progress | None) -> None:
        recipe, size = self._method.recipe, self._problem.train.size
        epochs, batches = recipe.passes(size), recipe.batches(size)
        if self._record is not None:
            saved = self._record.read(next(iter(self._means.values())).device)
            if saved is not None:
                self._take_up(saved, generator)
        before = self._epoch
        while self._epoch < epochs:
            self._train_epoch(epochs * batches, generator)
            if progress is not None:
                progress(self._epoch / epochs, f"epoch {self._epoch} of {epochs}")
        if self._record is not None and self._epoch > before:
            self._record.write(self._snapshot(generator))
        for part in (self._means, self._log_stds):
            stack = {name: tensor.detach().unsqueeze(0) for name, tensor in part.items()}
            require_finite_weights(stack, [0], self._step_number)

    def _train_epoch(self, steps: int, generator: torch.Generator) -> None:
        """An epoch, or what is left of it."""
        recipe, size = self._method.recipe, self._problem.train.size
        batches = recipe.batches(size)
        if self._order is None:
            self._order, self._total = torch.randperm(size, generator=generator), 0.0
        done = self._step_number - self._epoch * batches
        for index in self._order.tensor_split(batches)[done:]:
            factor = recipe.schedule.factor(self._step_number / steps)
            rate = recipe.optimiser.learning_rate * factor
            loss = self._step(self._problem.train.rows(index), rate, generator)
            if not math.isfinite(loss):
                raise CosetError(
                    f"got a loss of {loss} in epoch {self._epoch + 1} with a rate of {rate:g}",
                    "needed finite losses",
                    "lower the learning rate or the initial standard deviation",
                )
            self._total += loss * len(index)
            self._step_number += 1
            if self._record is not None and self._record.due(self._step_number):
                self._record.write(self._snapshot(generator))
        self._loss, self._order = self._total / size, None
        if self._noise is not None:
            self._noise = self._noise.updated(torch.tensor([self._loss]))
        self._epoch += 1

    def _step(self, batch: Batch, rate: float, generator: torch.Generator) -> float:
        inputs, targets = batch
        outputs = self._outputs(inputs, generator)
        data = -self._log_prob(outputs, targets).mean()
        if self._learnt and self._noise is None:
            self._noise = Noise.first(data.detach().reshape(1), targets.shape[1:].numel())
        scale = 1.0 if self._noise is None else 1 / float(self._noise.variance)
        penalty = self._method.temperature * self.divergence() / self._problem.train.size
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad()
        (data * scale + penalty).backward()
        self._optimiser.step()
        return float(data.detach())

    def _outputs(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Outputs of random weights; also keeps the buffers after the pass."""
        stds = {name: log_std.exp() for name, log_std in self._log_stds.items()}
        shared = {name: mean for name, mean in self._means.items() if name not in self._noisy}
        noise = noise_like(shared, generator=generator)
        drawn = self._means | {
            name: torch.addcmul(mean, stds[name], noise[name]) for name, mean in shared.items()
        }
        own = Deviations({id(self._means[name]): stds[name] for name in self._noisy}, generator)
        draw = flipped_draw if self._method.estimator == "flipout" else local_draw
        with dropout_off(), NoisyLayers(own, draw):
            outputs, buffers = self._problem.network.apply_training(
                {**drawn, **self._buffers}, inputs
            )
        self._buffers = {name: tensor.detach() for name, tensor in buffers.items()}
        return outputs

    def divergence(self) -> Float[Tensor, ""]:
        """``KL(q ‖ p)``."""
        parts = []
        for name, mean in self._means.items():
            precision, log_std = self._precisions[name], self._log_stds[name]
            scaled = precision * (mean.square() + (2 * log_std).exp())
            parts.append((scaled - 1 - 2 * log_std - precision.log()).sum() / 2)
        return torch.stack(parts).sum()

    @torch.no_grad()
    def _expected_loss(self, generator: torch.Generator) -> float:
        """The mean over passes of the mean loss under ``q``; one pass would be mostly noise."""
        passes = min(max(self._epoch // 10, _PASSES[0]), _PASSES[1])
        kept, total = self._buffers, 0.0
        for _ in range(passes):
            for inputs, targets in self._problem.train:
                each = self._log_prob(self._outputs(inputs, generator), targets)
                total -= float(each.sum())
        self._buffers = kept
        return total / (passes * self._problem.train.size)

    def posterior(self, generator: torch.Generator) -> LowRankGaussian:
        likelihood, loss = None, self._expected_loss(generator)
        if self._noise is not None:
            likelihood = GaussianNoise(float(self._noise.variance.sqrt()))
            loss = float(self._noise.losses(torch.tensor([loss])))
        divergence = float(self.divergence().detach())
        numbers: Mapping[str, float] = {
            "loss": loss,
            "divergence": divergence,
            "evidence_bound": -loss * self._problem.train.size - divergence,
        }
        return LowRankGaussian(
            {name: mean.detach() for name, mean in self._means.items()},
            {name: log_std.detach().exp() for name, log_std in self._log_stds.items()},
            fixed=self._buffers,
            report=FitReport(likelihood=likelihood, diagnostics=numbers),
        )


def _precisions(problem: Problem) -> Weights:
    found = {}
    for name in problem.network.layout.names:
        tensor = problem.network.weights[name]
        found[name] = problem.prior.of(name, tensor).expand(tensor.shape)
        if not bool((found[name] > 0).all()):
            raise CosetError(
                f"got a prior precision of zero for {name!r}",
                "needed a proper prior, whose divergence is finite",
                "give a positive precision",
            )
    return found
