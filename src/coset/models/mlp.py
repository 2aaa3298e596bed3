"""Multilayer perceptrons."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from coset.errors import require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, dropout_of, require_lists


def mlp(
    in_features: int = 784,
    hidden: Sequence[int] = (128, 128),
    classes: int = 10,
    *,
    activation: str | Activation = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return a perceptron with these hidden layers; inputs of any shape are flattened first.

    Layer i from a to b units has ``(a + 1) · b`` parameters, and is called ``linear{i}``.

    Args:
        in_features: Numbers in one input.
        hidden: Units of each hidden layer; none makes a linear model.
        classes: Outputs.
        activation: A name from the table of activations, or a factory as ``nn.Tanh``.
        dropout: Rate of dropout after each activation.

    >>> model = mlp(2, (3,), 4)
    >>> sum(p.numel() for p in model.parameters()) == (2 + 1) * 3 + (3 + 1) * 4
    True
    """
    require_lists(hidden=hidden)
    require_counts(in_features=in_features, classes=classes)
    build = choose("activation", activation, ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for depth, (before, after) in enumerate(pairwise((in_features, *hidden)), start=1):
        layers[f"linear{depth}"] = nn.Linear(before, after)
        layers[f"activation{depth}"] = build()
        layers[f"dropout{depth}"] = dropout_of(dropout)
    layers[f"linear{len(hidden) + 1}"] = nn.Linear((in_features, *hidden)[-1], classes)
    return nn.Sequential(layers)
