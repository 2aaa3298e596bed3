import pytest
import torch

from coset import CosetError, stack, unstack
from coset.weights import check_fit, members_of


def member(value):
    return {"w": torch.full((2, 3), value), "s": torch.tensor(value)}


def test_unstack_is_the_inverse_of_stack():
    members = [member(float(i)) for i in range(3)]
    stacked = stack(members)
    assert stacked["w"].shape == (3, 2, 3)
    assert stacked["s"].shape == (3,)
    assert members_of(stacked) == 3
    for before, after in zip(members, unstack(stacked), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_stack_copies():
    members = [member(1.0)]
    stack(members)["w"].zero_()
    assert members[0]["w"].sum() == 6


def test_members_of_another_architecture_are_refused():
    with pytest.raises(CosetError, match=r"member 1 with 'w' of shape \(3,\)"):
        stack([member(0.0), {**member(0.0), "w": torch.zeros(3)}])
    with pytest.raises(CosetError, match="member 1 with no 'w'"):
        stack([member(0.0), {"s": torch.tensor(0.0)}])
    with pytest.raises(CosetError, match="no weights"):
        stack([])


@pytest.mark.parametrize(
    "bad", [{}, {"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)}, {"a": torch.tensor(1.0)}]
)
def test_a_stack_has_one_member_axis(bad):
    with pytest.raises(CosetError):
        members_of(bad)


def test_check_fit_may_allow_missing_names():
    check_fit({"w": torch.zeros(2, 3)}, member(0.0), partial=True)
    with pytest.raises(CosetError, match="unknown 'x'"):
        check_fit({"x": torch.zeros(1)}, member(0.0), partial=True)
