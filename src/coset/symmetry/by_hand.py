"""Symmetry factors written by hand, for modules that cannot be traced.

They are checked like the ones that are found: alone and together, in double precision, at weights
in general position.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.check import alone, difference
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.points import (
    further_points,
    general_position,
    random_inputs,
    require_finite,
    silent,
    vanishes,
)
from coset.symmetry.runner import Run, module_runner
from coset.symmetry.written import FactorByHand, read_factors
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import parts_of
from coset.weights.network import weights_of

TOLERANCE = 1e-9

# Two units of a ReLU are both dead at one point in four, at all of these with probability 1.5e-5.
_POINTS = 8


def group_by_hand(
    module: nn.Module, example: Inputs, factors: Sequence[FactorByHand]
) -> SymmetryGroup:
    """The group of factors written by hand, after checking each on the module itself.

    Args:
        module: Any module that can be called; it is not traced and not changed.
        example: Its input, a tensor or a tuple of tensors.
        factors: Permutations and scalings, those that others live under first.

    Raises:
        CosetError: If a name or a shape does not fit, if a factor changes the outputs (it is named,
            with the error), or if the factors do not compose.

    >>> from coset import PermutationByHand
    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> hidden = PermutationByHand("hidden", 5, [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)])
    >>> round(group_by_hand(net, torch.zeros(1, 3), [hidden]).log_order(), 3)  # log 120
    4.787
    """
    inputs = parts_of(example)
    weights = {name: tensor.cpu() for name, tensor in weights_of(module).items()}
    require_finite(module)
    group = read_factors(module, weights, factors)
    run = module_runner(module)
    _check_function(run, group, weights, inputs)
    _check_composition(group, weights)
    return group


def _check_function(
    run: Run, group: SymmetryGroup, weights: Weights, inputs: Sequence[Tensor]
) -> None:
    """At several points: where all units of a layer are dead, nothing is seen of them."""
    generator = torch.Generator().manual_seed(2)
    positive = {name for name in weights if name.endswith("running_var")}
    positive |= {site.tensor for f in group.scalings for site in f.sites if site.shift}
    near = (general_position(weights, positive, generator=generator) for _ in range(_POINTS))
    points = chain(
        ((point, random_inputs(inputs, generator=generator)) for point in near),
        further_points(weights, positive, inputs, generator=generator),
    )
    spoken = 0
    for point, probe in points:
        spoken += _holds_at(run, group, point, probe, generator)
        if spoken == _POINTS:
            return
    if not spoken:
        raise silent()


def _holds_at(
    run: Run,
    group: SymmetryGroup,
    point: Weights,
    probe: Sequence[Tensor],
    generator: torch.Generator,
) -> bool:
    """Whether the network answers at a point, where the factors must then change nothing.

    All factors together; if they change the outputs, each alone, to name one that does.
    """
    reference = run(point, probe)
    if vanishes(reference):
        return False
    if difference(reference, run(point, probe)) > 0:
        raise CosetError(
            "got a module that gives two answers to the same input",
            "needed a forward without randomness in evaluation mode",
        )
    element = group.sample(generator=generator)
    together = difference(reference, run(group.act(element, point), probe))
    if together < TOLERANCE:
        return True
    for name in _names(group):
        error = difference(reference, run(group.act(alone(group, name, element), point), probe))
        if not error < TOLERANCE:
            raise CosetError(
                f"got factor {name!r}, which changes the outputs by {error:.1e}",
                f"needed a symmetry: less than {TOLERANCE:.0e}",
                "look for a tensor that the units index and that is not among its sites",
            )
    raise CosetError(
        f"got factors that hold alone, but change the outputs by {together:.1e} together",
        "needed factors that do not act on the same units",
    )


def _names(group: SymmetryGroup) -> list[str]:
    return [*(f.name for f in group.permutations), *(f.name for f in group.scalings)]


def _check_composition(group: SymmetryGroup, weights: Weights) -> None:
    """Composing elements must be the same as acting twice."""
    generator = torch.Generator().manual_seed(3)
    point = general_position(weights, (), generator=generator)
    then = group.sample(generator=generator)
    for name in _names(group):
        first = alone(group, name, group.sample(generator=generator))
        twice = group.act(then, group.act(first, point))
        once = group.act(group.compose(first, then), point)
        if difference(list(twice.values()), list(once.values())) > TOLERANCE:
            raise CosetError(
                f"got factor {name!r}, which does not compose with the others",
                "needed each set of units in one permutation factor, and scales along the same "
                "units as the permutations that move them",
                "write scales of nested units with the same size and within",
            )
