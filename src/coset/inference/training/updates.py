"""Turning stacked gradients into changed weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.inference.training.optimisers import Optimiser
from coset.vocabulary import Weights

_FUSED_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Updates:
    """An optimiser tied to the parameters of a stack, with the prior as its weight decay.

    A loss of ``-log p(y | w) / b + penalty(w) / n`` has the prior gradient ``precision · w / n``:
    for one precision a tensor that is the optimiser's own weight decay, other shapes are added
    to the gradient.

    Attributes:
        optimiser: The torch optimiser; its state is the state of the training.
        parameters: The stacked tensors, changed in place.
        pulls: ``precision / n`` of the tensors whose precision is not one number.
    """

    optimiser: torch.optim.Optimizer
    parameters: Weights
    pulls: Mapping[str, Tensor]

    @staticmethod
    def of(optimiser: Optimiser, problem: Problem, parameters: Weights) -> "Updates":
        """Ties ``optimiser`` to the stacked ``parameters``."""
        pulls, decays = {}, {}
        for name in parameters:
            one = problem.network.weights[name]
            precision = problem.prior.of(name, one) / problem.train.size
            if precision.numel() == 1:
                decays[name] = float(precision)
            else:
                pulls[name] = precision.clone()
        groups = [
            {
                "params": [w for name, w in parameters.items() if decays.get(name, 0.0) == decay],
                "weight_decay": decay,
            }
            for decay in sorted({decays.get(name, 0.0) for name in parameters})
        ]
        fused = all(
            w.device.type in _FUSED_DEVICES and w.is_floating_point() for w in parameters.values()
        )
        return Updates(optimiser.build(groups, fused=fused), parameters, pulls)

    def apply(self, gradients: Weights, rate: float) -> None:
        """One step of all members."""
        for name, parameter in self.parameters.items():
            gradient = gradients[name]
            if name in self.pulls:
                gradient = torch.addcmul(gradient, parameter, self.pulls[name])
            parameter.grad = gradient.contiguous()  # fused kernels read memory in order
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        for parameter in self.parameters.values():  # zero_grad would do the same, more slowly
            parameter.grad = None

    def state(self) -> dict[str, dict[str, Any]]:
        """What the optimiser remembers of each parameter."""
        return {name: dict(self.optimiser.state[w]) for name, w in self.parameters.items()}

    def take_up(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives the optimiser what one like it remembered."""
        for name, parameter in self.parameters.items():
            if state[name]:
                require_slots(name, parameter, state[name])
                self.optimiser.state[parameter] = dict(state[name])

    def select(self, optimiser: Optimiser, problem: Problem, index: Tensor) -> "Updates":
        """The updates of some members, with their state."""
        chosen = {name: tensor[index] for name, tensor in self.parameters.items()}
        fewer = Updates.of(optimiser, problem, chosen)
        for name, parameter in self.parameters.items():
            fewer.optimiser.state[chosen[name]] = {
                key: _rows(value, index) for key, value in self.optimiser.state[parameter].items()
            }
        return fewer


def require_slots(name: str, parameter: Tensor, slots: Mapping[str, Any]) -> None:
    """Refuses what an optimiser cannot have remembered: fused kernels do not look at shapes.

    >>> require_slots("w", torch.zeros(2, 3), {"step": torch.tensor(1.0), "m": torch.zeros(2)})
    Traceback (most recent call last):
    coset.errors.CosetError: got 'm' of the optimiser for 'w' of shape (2,); needed (2, 3)
    """
    for key, value in slots.items():
        if not isinstance(value, Tensor) or (value.dim() == 0 and value.numel() == 1):
            continue
        if value.shape != parameter.shape or value.dtype != parameter.dtype:
            shape = f"of shape {tuple(value.shape)}"
            if value.shape == parameter.shape:
                shape = f"of type {value.dtype}"
            raise CosetError(
                f"got {key!r} of the optimiser for {name!r} {shape}",
                f"needed {tuple(parameter.shape)}",
            )


def _rows(value: Any, index: Tensor) -> Any:
    """Rows of a tensor with a member axis; a copy of a count that all members share."""
    if not isinstance(value, Tensor):
        return value
    return value[index] if value.dim() else value.clone()


def clip(gradients: Weights, limit: float) -> Weights:
    """Shrinks each member's gradient to a norm of ``limit`` at most.

    >>> clip({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    norms = member_norms(gradients)
    factors = (limit / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
    return {
        name: tensor * factors.view(-1, *[1] * (tensor.dim() - 1))
        for name, tensor in gradients.items()
    }


def member_norms(stack: Weights) -> Float[Tensor, " m"]:
    """The Euclidean norm of each member over all its tensors.

    >>> member_norms({"a": torch.tensor([[3.0]]), "b": torch.tensor([[4.0]])})
    tensor([5.])
    """
    parts = [torch.linalg.vector_norm(tensor.flatten(1), dim=1) for tensor in stack.values()]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return norms
