"""What a pass through a network keeps in memory, counted before anything large is made."""

import torch
from torch import Tensor

from coset.vocabulary import Inputs
from coset.weights.network import Network


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
    with torch.random.fork_rng(devices=[]), hooks:  # dropout must not move torch's own generator
        network.apply_training({**network.weights, **leaves}, inputs)
    return sum(kept.values())
