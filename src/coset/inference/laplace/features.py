"""The last layer by itself: what it reads is computed once, and the rest of a network runs once.

Everything before a layer that is applied last is the same in every pass of a fit that leaves it as
it is.  So its inputs ``φ(x)`` become the data of a network of that layer alone, ``W φ + b``, whose
curvature, tangent model and evidence are those of the whole network.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from coset.bayes.batches import Batches, InMemory
from coset.bayes.problem import Problem
from coset.curvature.capture import record
from coset.inference.laplace.budget import stretches_of
from coset.inference.passes import stretches
from coset.inference.run_record import Steps
from coset.vocabulary import Inputs, Weights
from coset.weights.calls import Arguments, Listening, Named, TorchFunction
from coset.weights.inputs import parts_of, take_rows
from coset.weights.layout import Layout
from coset.weights.network import Network


def problem_of_layer(
    problem: Problem, weights: Weights, layout: Layout, memory: float, steps: Steps
) -> Problem | None:
    """The problem of a linear layer over what it reads; ``None`` where there is no such layer.

    Args:
        problem: Network, likelihood, prior and data.
        weights: Of the whole network.
        layout: The tensors that are uncertain.
        memory: Bytes that what it reads may take.
        steps: Where it is written down, a stretch of rows at a time.
    """
    inputs, _ = next(iter(problem.train))
    one = take_rows(inputs, slice(1))
    recorded = record(problem.network, weights, layout, one)
    own = recorded.own
    if own is None or set(own) != set(layout.names) or len(recorded.maps) > 1:
        return None
    names = (own[0], own[1] if len(own) > 1 else None)
    first = _read(problem.network, weights, own[0], one)
    if first is None:
        return None
    read, outputs = first
    each = read.numel() * read.element_size()
    if each * problem.train.size > memory or not torch.equal(_layer(weights, names, read), outputs):
        return None

    def features_of(train: Batches) -> tuple[Tensor, Tensor] | None:
        batches = []
        for inputs, targets in train:
            seen = _read(problem.network, weights, own[0], inputs)
            if seen is None or seen[0].shape[1:] != read.shape[1:]:
                return None
            batches.append((seen[0], targets))
        features, targets = (torch.cat(side) for side in zip(*batches, strict=True))
        return features, targets

    found = []
    for part in stretches(problem.train, stretches_of(problem, 1.0)):
        some = steps.kept(partial(features_of, part))
        if some is None:
            return None
        found.append(some)
    features, targets = (torch.cat(side) for side in zip(*found, strict=True))
    plain = {name: tensor.detach() for name, tensor in layout.restrict(weights).items()}

    def apply(given: Weights, inputs: Inputs) -> Tensor:
        (rows,) = parts_of(inputs)
        return _layer({**plain, **given}, names, rows)

    network = Network(
        apply=apply,
        apply_training=lambda given, inputs: (apply(given, inputs), {}),
        weights=plain,
        layout=layout,
        initialise=lambda generator: layout.restrict(problem.network.initialise(generator)),
    )
    train = InMemory(features, targets, problem.train.batch_size)
    return replace(problem, network=network, train=train)


def _layer(weights: Weights, names: tuple[str, str | None], rows: Tensor) -> Tensor:
    weight, bias = names
    return functional.linear(rows, weights[weight], None if bias is None else weights[bias])


def _read(
    network: Network, weights: Weights, name: str, inputs: Inputs
) -> tuple[Tensor, Tensor] | None:
    """What the layer of a weight reads, and the outputs; ``None`` if not exactly one layer does."""
    seen: list[Tensor] = []

    def hear(function: TorchFunction, args: Arguments, given: Named, _: object) -> None:
        if function is functional.linear:
            read, weight = (*args, given.get("input"), given.get("weight"))[:2]
            if weight is weights[name]:
                seen.append(read)

    with torch.no_grad(), Listening(hear):
        outputs = network.apply(weights, inputs)
    return (seen[0], outputs) if len(seen) == 1 else None
