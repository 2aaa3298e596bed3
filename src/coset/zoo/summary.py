"""What there is to say of a zoo in a few lines."""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.removing.mass import minimise_mass
from coset.vocabulary import Weights
from coset.zoo.making import load_examples
from coset.zoo.reading import Zoo


def summarise(zoo: Zoo) -> list[tuple[str, str]]:
    """Names and values, for a table."""
    ends = [member for member in zoo.members if member.step is None]
    lines = [("networks", f"{len(zoo)} of {zoo.layout.size:,} parameters")]
    for name, told in (("accuracy", "accuracy"), ("negative_log_likelihood", "test loss")):
        values = torch.tensor([member.metrics[name] for member in ends])
        lines.append((told, _spread(values, 3)))
    try:
        lines.append(("excess of mass, %", _spread(excess_of_mass(zoo), 1)))
    except CosetError as error:
        lines.append(("excess of mass", f"none: {str(error).partition(';')[0]}"))
    lines.append(("folder", str(zoo.folder)))
    return lines


def excess_of_mass(zoo: Zoo, *, step: int | None = None) -> Float[Tensor, " m"]:
    """By how many percent each member's mass exceeds the least that its scales allow.

    Args:
        zoo: The networks.
        step: The epoch of a snapshot; ``None``: the end; 0: the beginning.
    """

    def weights(part: slice) -> Weights:
        return zoo.beginnings(part) if step == 0 else zoo.weights(part, step=step)

    (inputs, _), _ = load_examples(zoo.recipe.data)
    group = discover(zoo.module(), inputs[:2])
    return torch.cat([minimise_mass(group, weights(part)).excess for part in zoo.parts()])


def _spread(values: Float[Tensor, " m"], digits: int) -> str:
    mean, least, most = (float(v) for v in (values.mean(), values.min(), values.max()))
    return f"{mean:.{digits}f} on average, {least:.{digits}f} to {most:.{digits}f}"
