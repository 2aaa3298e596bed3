"""Random programs: every factor holds alone and all hold together; one canonical point an orbit."""

import warnings

import pytest
import torch
from tests.symmetry.discovered import distance, repeated, seeded
from tests.symmetry.fuzz import random_program
from torch import Tensor, nn
from torch.func import functional_call

from coset.symmetry.check import general_position
from coset.symmetry.discover import discover
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.canonical import canonicalise
from coset.vocabulary import Weights
from coset.weights.network import weights_of

QUICK, MANY, CHUNK = 150, 5000, 100
SOUND = 1e-9


def check_program(seed: int) -> None:
    module, example = random_program(seed)
    group = discover(module, example)
    # an invariance may be claimed too boldly and dropped; what acts on weights may not
    failed = [pin for pin in group.pinned if "numerical check" in pin.reason]
    assert all(pin.operation.startswith("scale of each") for pin in failed), seed
    module, inputs = module.double(), example.double()
    positive = {name for name in weights_of(module) if name.endswith("running_var")}
    weights = general_position(weights_of(module), positive, generator=seeded(seed))
    elements = [*alone(group, seed), group.sample(generator=seeded(seed + 1))]
    worst = max(error_of(module, group, weights, inputs, element) for element in elements)
    assert worst < SOUND, f"program {seed} has an error of {worst}"
    orbit = group.act(group.sample(generator=seeded(seed), members=2), repeated(weights, 2))
    gap = distance(canonicalise(group, orbit), canonicalise(group, weights))
    assert gap < 1e-7, f"program {seed}: canonical points differ by {gap}"


def alone(group: SymmetryGroup, seed: int) -> list[Element]:
    """A random element for every factor, the identity elsewhere."""
    drawn, identity = group.sample(generator=seeded(seed)), group.identity()
    moves = [
        Element({**identity.permutations, f.name: drawn.permutations[f.name]}, identity.scales)
        for f in group.permutations
    ]
    scales = [
        Element(identity.permutations, {**identity.scales, f.name: drawn.scales[f.name]})
        for f in group.scalings
    ]
    return moves + scales


def error_of(
    module: nn.Module, group: SymmetryGroup, weights: Weights, inputs: Tensor, element: Element
) -> float:
    with torch.no_grad():
        before = functional_call(module, weights, inputs)
        after = functional_call(module, group.act(element, weights), inputs)
    return float(((after - before).abs() / (1 + before.abs())).max())


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.filterwarnings("ignore", ".*were assigned during export")


@pytest.mark.parametrize("start", range(0, QUICK, 25))
def test_random_programs_are_sound(start: int) -> None:
    for seed in range(start, start + 25):
        check_program(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, MANY, CHUNK))
def test_five_thousand_random_programs_are_sound(start: int) -> None:
    for seed in range(start, min(start + CHUNK, MANY)):
        check_program(seed)
