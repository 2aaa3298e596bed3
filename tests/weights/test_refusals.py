"""What is no weights is refused by name wherever weights are taken."""

import pytest
import torch
from torch import nn

from coset import CosetError, assign, stack, unstack, weights_of

MODULE = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: assign(MODULE, None), "NoneType"),
        (lambda: assign(MODULE, MODULE), r"take coset\.weights_of\(module\)"),
        (lambda: stack([weights_of(MODULE), MODULE]), "member 1 of type Linear"),
        (lambda: stack(weights_of(MODULE)), "member 0 of type str"),
        (lambda: unstack([weights_of(MODULE)]), "a stack of type list"),
        (lambda: unstack({"w": [1.0]}), "a stack with 'w' of type list"),
        (lambda: weights_of(nn.LazyLinear(2)), "'weight' without a shape.*run it once"),
    ],
)
def test_other_things_are_named(call, words):
    with pytest.raises(CosetError, match=words):
        call()


def test_members_may_come_one_by_one():
    members = [weights_of(nn.Linear(2, 1)) for _ in range(3)]
    assert torch.equal(stack(iter(members))["weight"], stack(members)["weight"])
