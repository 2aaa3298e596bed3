"""The training of mean fields: a stack of them, one a mode, each as if it were alone."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from coset.bayes.batches import in_equal_parts
from coset.bayes.defaults import with_noise
from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.local_noise import (
    Deviations,
    NoisyLayers,
    flipped_draw,
    local_draw,
    noisy_layers,
)
from coset.inference.run_record import RunRecord
from coset.inference.training.gradients import Objective
from coset.inference.training.loop import require_finite_weights
from coset.inference.training.noise import (
    Noise,
    half_squares,
    is_learnt,
    residuals_per_example,
)
from coset.inference.training.recipe import Recipe
from coset.inference.training.updates import require_slots
from coset.posterior.families import FitReport
from coset.posterior.low_rank import LowRankGaussian
from coset.vocabulary import Batch, Inputs, Progress, Weights
from coset.weights.arithmetic import noise_like
from coset.weights.inputs import for_members, take_rows
from coset.weights.masks import dropout_off
from coset.weights.randomness import own_state, set_own_state
from coset.weights.stacking import check_fit, stack

Estimator = Literal["local", "flipout", "shared"]

_PASSES = (4, 64)
"""Least and most passes over the data for the bound; in between a tenth of the epochs."""


class VariationalMethod(Protocol):
    """What the training needs to be told; the fields of the method say what they mean."""

    @property
    def temperature(self) -> float:
        """The weight of the KL term."""
        ...

    @property
    def initial_std(self) -> float:
        """Standard deviation of every weight at the start."""
        ...

    @property
    def estimator(self) -> Estimator:
        """Where a step's noise is drawn."""
        ...

    @property
    def recipe(self) -> Recipe:
        """The settings of the training."""
        ...


class Run:
    """The state of a fit and its loop; all tensors are stacks with a member for each mode."""

    def __init__(
        self,
        method: VariationalMethod,
        problem: Problem,
        precisions: Weights,
        starts: Weights,
        generators: Sequence[torch.Generator],
        record: RunRecord,
    ) -> None:
        self._method, self._problem = method, problem
        self._precisions, self._record = precisions, record
        self._generators = tuple(generators)
        first = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in starts.items()
        }
        self._means = {name: first[name] for name in problem.network.layout.names}
        self._log_stds = {
            name: torch.full_like(mean, math.log(method.initial_std))
            for name, mean in self._means.items()
        }
        self._buffers = {name: first[name] for name in problem.network.buffers}
        self._learnt = is_learnt(problem.likelihood)
        log_prob = problem.likelihood.log_prob
        if self._learnt:
            log_prob = partial(half_squares, likelihood=problem.likelihood)
        self._objective = Objective(problem.network, log_prob)
        self._noise: Noise | None = None
        self._losses = self._total = torch.zeros(())
        self._epoch, self._step_number = 0, 0
        self._order: Tensor | None = None
        self._noisy = noisy_layers(problem, method.estimator)
        self._tie_optimiser()
        self._together = self._is_vectorised()

    def _tie_optimiser(self) -> None:
        self._leaves = {
            **{f"mean {name}": mean.requires_grad_() for name, mean in self._means.items()},
            **{f"std {name}": std.requires_grad_() for name, std in self._log_stds.items()},
        }
        groups = [{"params": [*self._leaves.values()], "weight_decay": 0.0}]
        self._optimiser = self._method.recipe.optimiser.build(groups, fused=False)

    def _snapshot(self) -> dict[str, Any]:
        return {
            "means": self._means,
            "log_stds": self._log_stds,
            "optimiser": {n: dict(self._optimiser.state[w]) for n, w in self._leaves.items()},
            "buffers": self._buffers,
            "noise": None if self._noise is None else vars(self._noise),
            "losses": self._losses,
            "total": self._total,
            "epoch": self._epoch,
            "step": self._step_number,
            "order": self._order,
            "generators": tuple(generator.get_state() for generator in self._generators),
            "torch": own_state(),
        }

    def _take_up(self, saved: Mapping[str, Any]) -> None:
        check_fit(saved["means"], self._means, what="means", typed=True)
        check_fit(saved["log_stds"], self._log_stds, what="deviations", typed=True)
        self._means, self._log_stds = dict(saved["means"]), dict(saved["log_stds"])
        self._tie_optimiser()
        for name, leaf in self._leaves.items():
            require_slots(name, leaf, saved["optimiser"][name])
            self._optimiser.state[leaf] = dict(saved["optimiser"][name])
        self._buffers = dict(saved["buffers"])
        self._noise = None if saved["noise"] is None else Noise(**saved["noise"])
        self._losses, self._total = saved["losses"], saved["total"]
        self._epoch, self._step_number = saved["epoch"], saved["step"]
        self._order = None if saved["order"] is None else saved["order"].cpu()
        for generator, state in zip(self._generators, saved["generators"], strict=True):
            generator.set_state(state.cpu())
        set_own_state(saved["torch"].cpu())

    def train(self, progress: Progress | None) -> None:
        """Trains to the end, from the record if there is one."""
        recipe, size = self._method.recipe, self._problem.train.size
        epochs, batches = recipe.passes(size), recipe.batches(size)
        self._record.resume(self._take_up, device=next(iter(self._means.values())).device)
        before = self._epoch
        while self._epoch < epochs:
            self._train_epoch(epochs * batches)
            if progress is not None:
                progress(self._epoch / epochs, f"epoch {self._epoch} of {epochs}")
        if self._epoch > before:
            self._record.write(self._snapshot())
        for part in (self._means, self._log_stds):
            members = range(len(self._generators))
            require_finite_weights(part, members, self._step_number)

    def _train_epoch(self, steps: int) -> None:
        """An epoch, or what is left of it."""
        recipe, size = self._method.recipe, self._problem.train.size
        batches = recipe.batches(size)
        if self._order is None:
            orders = [torch.randperm(size, generator=own) for own in self._generators]
            self._order, self._total = torch.stack(orders), torch.zeros(())
        done = self._step_number - self._epoch * batches
        for index in self._order.tensor_split(batches, dim=1)[done:]:
            factor = recipe.schedule.factor(self._step_number / steps)
            rate = recipe.optimiser.learning_rate * factor
            losses = self._step(self._problem.train.rows(index), rate)
            self._require_finite(losses, rate)
            self._total = self._total + losses * index.shape[1]
            self._step_number += 1
            if self._record.due(self._step_number):
                self._record.write(self._snapshot())
        self._losses, self._order = self._total / size, None
        if self._noise is not None:
            self._noise = self._noise.updated(self._losses)
        self._epoch += 1

    def _require_finite(self, losses: Float[Tensor, " m"], rate: float) -> None:
        finite = losses.isfinite()
        if bool(finite.all()):
            return
        mode = int((~finite).nonzero()[0])
        which = f", in mode {mode}" if len(losses) > 1 else ""
        raise CosetError(
            f"got a loss of {float(losses[mode])} in epoch {self._epoch + 1} with a rate of "
            f"{rate:g}{which}",
            "needed finite losses",
            "lower the learning rate or the initial standard deviation",
        )

    def _step(self, batch: Batch, rate: float) -> Float[Tensor, " m"]:
        inputs, targets = batch
        losses = self._objective.losses(self._outputs(inputs), targets)
        if self._learnt and self._noise is None:
            self._noise = Noise.first(losses.detach(), residuals_per_example(self._problem))
        scale = 1.0 if self._noise is None else 1 / self._noise.variance
        penalty = self._method.temperature * self.divergence() / self._problem.train.size
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad()
        # members share no tensor, so the gradient of the sum holds the gradient of each
        (losses * scale + penalty).sum().backward()
        self._optimiser.step()
        return losses.detach()

    def _outputs(self, inputs: Inputs) -> Float[Tensor, "m b *c"]:
        """Outputs of random weights; also keeps the buffers after the pass."""
        outputs, buffers = self._evaluated(self._buffers, inputs, self._generators, self._together)
        after = {name: tensor.detach() for name, tensor in buffers.items()}
        self._buffers = self._buffers | after  # not in place: who measures puts them back
        return outputs

    def _evaluated(
        self,
        buffers: Weights,
        inputs: Inputs,
        generators: Sequence[torch.Generator],
        together: bool,
    ) -> tuple[Tensor, Weights]:
        stds = {name: log_std.exp() for name, log_std in self._log_stds.items()}
        shared = {name: mean for name, mean in self._means.items() if name not in self._noisy}
        like = {name: mean.detach()[0] for name, mean in shared.items()}
        noise = stack([noise_like(like, generator=own) for own in generators])
        drawn = self._means | {
            name: torch.addcmul(mean, stds[name], noise[name]) for name, mean in shared.items()
        }
        own = {name: stds[name] for name in self._noisy}
        if together:
            every = partial(self._pass, generators)
            return vmap(every, randomness="different")(drawn, own, buffers, inputs)
        parts = []
        for k, one in enumerate(generators):
            means, its, after = (_member(stacked, k) for stacked in (drawn, own, buffers))
            parts.append(self._pass([one], means, its, after, take_rows(inputs, k)))
        return torch.stack([outputs for outputs, _ in parts]), stack([after for _, after in parts])

    def _pass(
        self,
        generators: Sequence[torch.Generator],
        drawn: Weights,
        stds: Weights,
        buffers: Weights,
        inputs: Inputs,
    ) -> tuple[Tensor, Weights]:
        """One member, or inside ``vmap`` all of them."""
        own = Deviations({id(drawn[name]): std for name, std in stds.items()}, generators)
        draw = flipped_draw if self._method.estimator == "flipout" else local_draw
        with dropout_off(), NoisyLayers(own, draw):
            return self._problem.network.apply_training({**drawn, **buffers}, inputs)

    def _is_vectorised(self) -> bool:
        """Whether ``vmap`` can follow the network; decided without a clock."""
        members = len(self._generators)
        if members == 1:
            return False
        few = torch.arange(min(2, self._problem.train.size)).expand(members, -1)
        trial = [torch.Generator().manual_seed(k) for k in range(members)]
        try:
            with torch.no_grad():
                inputs = self._problem.train.rows(few)[0]
                self._evaluated(self._buffers, inputs, trial, together=True)
        except Exception:  # whatever vmap cannot do: the plain way decides whether it is an error
            return False
        return True

    def divergence(self) -> Float[Tensor, " m"]:
        """``KL(q ‖ p)`` of each member."""
        parts = []
        for name, mean in self._means.items():
            precision, log_std = self._precisions[name], self._log_stds[name]
            scaled = precision * (mean.square() + (2 * log_std).exp())
            each = scaled - 1 - 2 * log_std - precision.log()
            parts.append(each.reshape(len(mean), -1).sum(1) / 2)
        return torch.stack(parts).sum(0)

    @torch.no_grad()
    def _expected_losses(self) -> Float[Tensor, " m"]:
        """The mean over passes of the mean loss under ``q``; one pass would be mostly noise."""
        passes = min(max(self._epoch // 10, _PASSES[0]), _PASSES[1])
        members, kept = len(self._generators), self._buffers
        total = torch.zeros(())
        for _ in range(passes):
            for inputs, targets in in_equal_parts(self._problem.train):
                outputs = self._outputs(for_members(inputs, members))
                shared = targets.expand(members, *targets.shape)
                total = total + self._objective.losses(outputs, shared) * len(targets)
        self._buffers = kept
        return total / (passes * self._problem.train.size)

    def posteriors(self) -> tuple[LowRankGaussian, ...]:
        """What was found for each member, with its bound on the evidence."""
        losses, divergence = self._expected_losses(), self.divergence().detach()
        if self._noise is not None:
            losses = self._noise.losses(losses)
        bounds = -losses * self._problem.train.size - divergence
        found = []
        for k in range(len(self._generators)):
            likelihood = None
            if self._noise is not None:
                std = float(self._noise.variance[k].sqrt())
                likelihood = with_noise(self._problem.likelihood, std)
            numbers = {
                "loss": float(losses[k]),
                "divergence": float(divergence[k]),
                "evidence_bound": float(bounds[k]),
            }
            means, stds = _member(self._means, k), _member(self._log_stds, k)
            found.append(
                LowRankGaussian(
                    {name: mean.detach() for name, mean in means.items()},
                    {name: log_std.detach().exp() for name, log_std in stds.items()},
                    fixed=_member(self._buffers, k),
                    report=FitReport(likelihood=likelihood, diagnostics=numbers),
                )
            )
        return tuple(found)


def _member(stack: Weights, k: int) -> Weights:
    return {name: tensor[k] for name, tensor in stack.items()}
