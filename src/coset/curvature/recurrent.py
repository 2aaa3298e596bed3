"""Recurrent layers of torch step by step, as the linear maps that they are made of."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coset.curvature.layers import read_linear
from coset.curvature.watch import Watch

Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor | None]
"""A linear layer of inputs, weight and bias; ``None`` where it cannot be followed."""

States = tuple[Float[Tensor, "n h"], ...]
"""What a step hands to the next: hidden values, and for an LSTM its cells."""

Step = Callable[[Float[Tensor, "n g"], Float[Tensor, "n g"], States], States]
"""From what the inputs say, what the last hidden values say, and the states, to new states."""


def _lstm(inputs: Tensor, hidden: Tensor, states: States) -> States:
    enter, forget, fresh, leave = (inputs + hidden).chunk(4, dim=-1)
    cells = forget.sigmoid() * states[1] + enter.sigmoid() * fresh.tanh()
    return leave.sigmoid() * cells.tanh(), cells


def _gru(inputs: Tensor, hidden: Tensor, states: States) -> States:
    ours, theirs = inputs.chunk(3, dim=-1), hidden.chunk(3, dim=-1)
    reset, keep = (ours[0] + theirs[0]).sigmoid(), (ours[1] + theirs[1]).sigmoid()
    fresh = (ours[2] + reset * theirs[2]).tanh()
    return (fresh + keep * (states[0] - fresh),)


def _tanh(inputs: Tensor, hidden: Tensor, states: States) -> States:
    return ((inputs + hidden).tanh(),)


def _relu(inputs: Tensor, hidden: Tensor, states: States) -> States:
    return ((inputs + hidden).relu(),)


STEPS: dict[Any, Step] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: _tanh,
    torch.rnn_relu: _relu,
}
"""The functions that torch's recurrent modules call."""


def unroll(
    layer: Layer,
    step: Step,
    rows: Float[Tensor, "n t f"],
    states: Sequence[Float[Tensor, "k n h"]],
    weights: Sequence[Sequence[Tensor]],
    directions: int,
) -> tuple[Tensor, ...] | None:
    """All outputs ``(n, t, h)``, then the last states ``(k, n, h)``.

    Args:
        layer: How a linear map is taken.
        step: What happens between two points in time.
        rows: The inputs.
        states: Where it begins: one entry for each layer and direction.
        weights: Of each layer and direction: of the inputs, of the hidden values, and their biases.
        directions: One, or two where time is gone through backwards too.
    """
    ends: list[States] = []
    for depth in range(0, len(weights), directions):
        sides = []
        for backwards in range(directions):
            own = weights[depth + backwards]
            start = tuple(state[depth + backwards] for state in states)
            found = _in_time(layer, step, rows.flip(1) if backwards else rows, start, own)
            if found is None:
                return None
            sides.append(found[0].flip(1) if backwards else found[0])
            ends.append(found[1])
        rows = torch.cat(sides, dim=-1)
    return rows, *(torch.stack(end) for end in zip(*ends, strict=True))


def _in_time(
    layer: Layer, step: Step, rows: Tensor, states: States, weights: Sequence[Tensor]
) -> tuple[Tensor, States] | None:
    biases = (weights[2], weights[3]) if len(weights) > 2 else (None, None)
    read = layer(rows, weights[0], biases[0])
    if read is None:
        return None
    outputs = []
    for inputs in read.unbind(1):
        hidden = layer(states[0], weights[1], biases[1])
        if hidden is None:
            return None
        states = step(inputs, hidden, states)
        outputs.append(states[0])
    return torch.stack(outputs, dim=1), states


def read_recurrent(
    watch: Watch,
    function: Any,
    input: Tensor,
    states: Any,
    weights: Any,
    has_biases: Any = True,
    layers: Any = 1,
    dropout: Any = 0.0,
    training: Any = False,
    bidirectional: Any = False,
    batch_first: Any = False,
) -> tuple[Tensor, ...] | None:
    """Layers over time; sequences of several lengths, packed together, are foreign."""
    packed = isinstance(states, Tensor) and not states.is_floating_point()
    if packed or (training and dropout) or watch.axis(input) != 1 - batch_first:
        return None
    begin = states if isinstance(states, (tuple, list)) else (states,)
    if any(watch.axis(state) != 1 for state in begin):
        return None
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(weights) != layers * directions * each:
        return None  # with projections of the hidden values
    found = unroll(
        lambda rows, weight, bias: read_linear(watch, functional.linear, rows, weight, bias),
        STEPS[function],
        input if batch_first else input.transpose(0, 1),
        begin,
        [weights[k : k + each] for k in range(0, len(weights), each)],
        directions,
    )
    if found is None or batch_first:
        return found
    return found[0].transpose(0, 1), *found[1:]
