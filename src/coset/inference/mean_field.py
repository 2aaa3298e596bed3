"""Mean-field variational inference: Bayes by backprop (Blundell et al. 2015)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import GaussianNoise
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.local_noise import LocalNoise, local_layers
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.training.members import member_seeds, starting_points
from coset.inference.training.noise import Noise, half_squares, is_learnt
from coset.inference.training.optimisers import Adam, Optimiser
from coset.inference.training.recipe import Recipe
from coset.inference.training.schedules import Cosine, Schedule
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.vocabulary import Batch, Progress, Weights
from coset.weights.arithmetic import noise_like
from coset.weights.masks import dropout_off


@dataclass(frozen=True)
class MeanField:
    """An independent Gaussian for every weight, the closest to the posterior.

    Minimises ``-E_q Σ log p(y | f(x; w)) + T · KL(q ‖ p)`` over means and standard deviations, with
    ``KL = ½ Σ (λσ² + λμ² - 1 - log λσ²)`` for the prior precision ``λ``.  Linear layers on one
    vector an example draw their outputs (local reparameterisation, Kingma et al. 2015), other
    tensors are drawn themselves, once a batch.

    Attributes:
        temperature: ``T``, the weight of the KL term; below one the posterior is cold.
        initial_std: Standard deviation of every weight at the start.
        base: A training of the means before (an empirical-Bayes start); ``None``: none.
        optimiser: Of means and logarithms of standard deviations.
        schedule: Of the learning rate.
        epochs: Passes over the data.  ``None``: as many as give 2,000 steps, and at least 10.
        batch_size: Examples a step at most.
    """

    temperature: float = 1.0
    initial_std: float = 0.05
    base: MaximumAPosteriori | None = None
    optimiser: Optimiser = field(default_factory=lambda: Adam(1e-2))
    schedule: Schedule = field(default_factory=Cosine)
    epochs: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
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
            start = self.base.fit(problem, start=start, generator=generator).weights
        starts = starting_points(problem, start, member_seeds(1, generator))
        first = {name: tensor[0].detach().clone() for name, tensor in starts.items()}
        names = problem.network.layout.names
        means = {name: first[name].requires_grad_() for name in names}
        log_stds = {
            name: torch.full_like(mean, math.log(self.initial_std), requires_grad=True)
            for name, mean in means.items()
        }
        buffers = {name: first[name] for name in problem.network.buffers}
        run = _Run(self, problem, precisions, means, log_stds, buffers)
        run.train(generator, progress)
        return run.posterior()


class _Run:
    """The state of a fit and its loop."""

    def __init__(
        self,
        method: MeanField,
        problem: Problem,
        precisions: Weights,
        means: Weights,
        log_stds: Weights,
        buffers: Weights,
    ) -> None:
        self._method, self._problem = method, problem
        self._precisions, self._means, self._log_stds = precisions, means, log_stds
        self._buffers = buffers
        self._learnt = is_learnt(problem.likelihood)
        self._noise: Noise | None = None
        self._loss = math.nan
        few = problem.train.rows(torch.arange(min(2, problem.train.size)))[0]
        self._local = local_layers(problem.network, few)
        both = [*means.values(), *log_stds.values()]
        groups = [{"params": both, "weight_decay": 0.0}]
        self._optimiser = method.optimiser.build(groups, fused=False)

    def train(self, generator: torch.Generator, progress: Progress | None) -> None:
        recipe, size = self._method.recipe, self._problem.train.size
        epochs, batches = recipe.passes(size), recipe.batches(size)
        for epoch in range(epochs):
            order, total = torch.randperm(size, generator=generator), 0.0
            for number, index in enumerate(order.tensor_split(batches)):
                done = (epoch * batches + number) / (epochs * batches)
                rate = recipe.optimiser.learning_rate * recipe.schedule.factor(done)
                batch = self._problem.train.rows(index)
                loss = self._step(batch, rate, generator)
                if not math.isfinite(loss):
                    raise CosetError(
                        f"got a loss of {loss} in epoch {epoch + 1} with a rate of {rate:g}",
                        "needed finite losses",
                        "lower the learning rate or the initial standard deviation",
                    )
                total += loss * len(index)
            self._loss = total / size
            if self._noise is not None:
                self._noise = self._noise.updated(torch.tensor([self._loss]))
            if progress is not None:
                progress((epoch + 1) / epochs, f"epoch {epoch + 1} of {epochs}")

    def _step(self, batch: Batch, rate: float, generator: torch.Generator) -> float:
        inputs, targets = batch
        outputs = self._outputs(inputs, generator)
        log_prob = half_squares if self._learnt else self._problem.likelihood.log_prob
        data = -log_prob(outputs, targets).mean()
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
        drawn, local = {}, {}
        noise = noise_like(
            {name: mean for name, mean in self._means.items() if name not in self._local},
            generator=generator,
        )
        for name, mean in self._means.items():
            std = self._log_stds[name].exp()
            if name in self._local:
                drawn[name] = mean
                local[id(mean)] = std.square()
            else:
                drawn[name] = torch.addcmul(mean, std, noise[name])
        with dropout_off(), LocalNoise(local, generator):
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

    def posterior(self) -> LowRankGaussian:
        likelihood, loss = None, self._loss
        if self._noise is not None:
            likelihood = GaussianNoise(float(self._noise.variance.sqrt()))
            loss = float(self._noise.losses(torch.tensor([self._loss])))
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
