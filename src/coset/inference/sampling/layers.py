"""Networks of linear layers and element-wise functions, with all chains in one product.

Chains share their inputs, so the first layers of all of them are one product of matrices:
``(W of chain 1; W of chain 2; …) Xᵀ``.  Inputs and activations are kept with the examples last;
there an example is to a likelihood what a pixel is to it in dense tasks, and sums over classes run
along whole rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from coset.bayes.problem import Problem
from coset.vocabulary import Weights
from coset.weights.network import Network

Elementwise = Callable[[Tensor], Tensor]

_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Hardtanh, nn.Hardswish),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.LogSigmoid),
)
_SKIPPED = (nn.Dropout, nn.Identity)
_FUNCTIONS = (
    *(torch.relu, torch.tanh, torch.sigmoid, torch.sin, torch.square, torch.exp),
    *(functional.relu, functional.tanh, functional.sigmoid, functional.leaky_relu),
    *(functional.elu, functional.selu, functional.gelu, functional.silu, functional.softplus),
)
_METHODS = ("relu", "tanh", "sigmoid", "sin", "square", "exp")


@dataclass(frozen=True)
class Linear:
    """Names of the weight and the bias of a linear layer."""

    weight: str
    bias: str | None


@dataclass(frozen=True)
class Layers:
    """What a network does to the rows of a matrix, one thing after the other.

    Attributes:
        steps: Linear layers and element-wise functions; the first is a linear layer.
    """

    steps: tuple[Linear | Elementwise, ...]

    def __call__(self, stack: Weights, inputs: Float[Tensor, "r n"]) -> Float[Tensor, "m c n"]:
        """Outputs of all chains; inputs and outputs have their examples last.

        Inputs may have fewer entries than the first layer takes: the first ones are then zeros.

        >>> layers = Layers((Linear("weight", None), torch.relu))
        >>> weights = torch.tensor([[[1.0, 2.0]], [[-3.0, 0.0]]])  # two chains
        >>> layers({"weight": weights}, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([[[3., 2.]],
        <BLANKLINE>
                [[0., 0.]]])
        """
        values: Tensor | None = None
        for step in self.steps:
            if not isinstance(step, Linear):
                assert values is not None
                values = step(values)
                continue
            weight = stack[step.weight]
            bias = None if step.bias is None else stack[step.bias]
            if values is None:
                met = weight if len(inputs) == weight.shape[2] else weight[..., -len(inputs) :]
                values = _shared(met, bias, inputs)
            elif len(weight) == 1:  # a product of matrices is faster than a batch of one
                values = _shared(weight, bias, values.squeeze(0))
            else:
                values = _own(weight, bias, values)
        assert values is not None
        return values


def _shared(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """One product for all chains, which have the same inputs."""
    rows = weight.flatten(0, 1)
    values = rows @ inputs if bias is None else torch.addmm(bias.reshape(-1, 1), rows, inputs)
    return values.view(*weight.shape[:2], inputs.shape[1])


def _own(weight: Tensor, bias: Tensor | None, values: Tensor) -> Tensor:
    """A product for each chain, with inputs of its own."""
    if bias is None:
        return torch.bmm(weight, values)
    return torch.baddbmm(bias.unsqueeze(2), weight, values)


def layers_of(problem: Problem) -> Layers | None:
    """The layers of a problem's network, if it is nothing else and its numbers come out the same.

    >>> from coset.bayes import Categorical, GaussianPrior, as_batches
    >>> from coset.weights import functionalise
    >>> data = as_batches((torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long)))
    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Dropout(), nn.Tanh())
    >>> problem = Problem(functionalise(module), Categorical(), GaussianPrior(), data)
    >>> len(layers_of(problem).steps)
    2
    """
    network = problem.network
    if network.module is None or network.buffers:
        return None
    inputs, targets = problem.train.rows(torch.arange(min(3, problem.train.size)))
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return None
    try:
        layers = Layers(tuple(_steps(network.module, network)))
        return layers if _faithful(layers, problem, inputs, targets) else None
    except Exception:  # whatever tracing cannot do: such a network is called as it is
        return None


def columns(targets: Tensor) -> Tensor:
    """Targets of shape ``(n, …)`` with the examples last, as outputs are.

    >>> columns(torch.tensor([[1.0, 2.0]])).shape, columns(torch.tensor([3, 4])).shape
    (torch.Size([2, 1]), torch.Size([2]))
    """
    return targets.movedim(0, -1).contiguous() if targets.dim() > 1 else targets


def _faithful(layers: Layers, problem: Problem, inputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs and log-probabilities are those of the network itself."""
    if not isinstance(layers.steps[0], Linear):
        return False
    weights = problem.network.weights
    outputs = layers({name: w.unsqueeze(0) for name, w in weights.items()}, inputs.flatten(1).T)
    wanted = problem.network.apply(weights, inputs)
    if not torch.allclose(outputs[0].T, wanted, rtol=1e-3, atol=1e-5):
        return False
    each = problem.likelihood.log_prob(outputs, columns(targets).unsqueeze(0))
    whole = problem.likelihood.log_prob(wanted, targets).sum()
    return each.shape == (1,) and torch.allclose(each[0], whole, rtol=1e-3, atol=1e-5)


def _steps(module: nn.Module, network: Network) -> Iterator[Linear | Elementwise]:
    """Walks through a module whose every operation feeds only the next."""
    from torch.fx import Node, symbolic_trace

    if isinstance(module, nn.Linear):
        yield _linear(module, "", network)
        return
    traced = symbolic_trace(module)
    parts = dict(traced.named_modules())
    before: Node | None = None
    for node in traced.graph.nodes:
        if node.op == "output":
            return
        if node.all_input_nodes != ([] if before is None else [before]):
            raise ValueError("not a chain of operations")
        if before is not None:
            yield from _step(node, parts.get(str(node.target)), network)
        before = node


def _step(node: Any, part: nn.Module | None, network: Network) -> Iterator[Linear | Elementwise]:
    rest, target = node.args[1:], node.target
    if isinstance(part, nn.Linear):
        yield _linear(part, f"{target}.", network)
    elif isinstance(part, _MODULES):
        yield part
    elif node.op == "call_function" and target in _FUNCTIONS:
        yield lambda values: target(values, *rest, **node.kwargs)
    elif node.op == "call_method" and target in _METHODS and not rest:
        yield getattr(torch, target)
    elif not isinstance(part, _SKIPPED) and not _flattens(node, part):
        raise ValueError(f"{target} is none of the steps known here")


def _flattens(node: Any, part: nn.Module | None) -> bool:
    """Whether an operation only makes rows of examples."""
    if isinstance(part, nn.Flatten):
        return (part.start_dim, part.end_dim) == (1, -1)
    called = node.target is torch.flatten or node.target == "flatten"
    return called and node.args[1:] == (1,) and not node.kwargs


def _linear(part: nn.Linear, prefix: str, network: Network) -> Linear:
    weight, bias = f"{prefix}weight", None if part.bias is None else f"{prefix}bias"
    if not {weight, bias or weight} <= set(network.layout.names):
        raise ValueError("layers that share their weights")
    return Linear(weight, bias)
