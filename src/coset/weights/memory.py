"""What a pass through a network keeps in memory, counted before anything large is made."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coset.vocabulary import Inputs, Weights
from coset.weights.network import Network
from coset.weights.randomness import own_randomness


def kept_for_gradients(network: Network, inputs: Inputs) -> int:
    """Bytes that a training pass keeps for its gradient, without the weights themselves.

    >>> from coset.weights import functionalise
    >>> network = functionalise(torch.nn.Linear(4, 3))
    >>> kept_for_gradients(network, torch.zeros(2, 4))  # the inputs: eight numbers of four bytes
    32
    """
    leaves = {
        name: network.weights[name].detach().requires_grad_() for name in network.layout.names
    }
    own = {tensor.untyped_storage().data_ptr() for tensor in leaves.values()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with own_randomness(0), hooks:  # dropout must not move torch's own generator
        network.apply_training({**network.weights, **leaves}, inputs)
    return sum(kept.values())


@dataclass(frozen=True)
class Activations:
    """Bytes of the tensors that the operations of a pass return, without views.

    Attributes:
        largest: Of the largest of them.
        total: Of all together.
    """

    largest: int
    total: int


def activations(network: Network, weights: Weights, inputs: Inputs) -> Activations:
    """Runs a network without gradients, and adds up what its operations return.

    >>> from coset.weights import functionalise
    >>> network = functionalise(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()))
    >>> activations(network, network.weights, torch.zeros(2, 4))  # six numbers, twice
    Activations(largest=24, total=48)
    """
    with torch.no_grad():
        network.apply(weights, inputs)  # what is set up at a first call is no activation
        with _Returned() as seen:
            network.apply(weights, inputs)
    return Activations(max(seen.sizes, default=0), sum(seen.sizes))


class _Returned(TorchDispatchMode):
    """Bytes of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not func.is_view:  # a transposed weight matrix is no activation
            several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            self.sizes += [part.nbytes for part in several if isinstance(part, Tensor)]
        return outputs
