import pytest
import torch

from coset import CosetError
from coset.weights.inputs import (
    as_inputs,
    check_finite_inputs,
    count_rows,
    for_members,
    parts_of,
    shape_rows,
    split_rows,
    take_rows,
)

ONE = torch.arange(7)
TWO = torch.arange(7), torch.arange(14.0).reshape(7, 2) * 10


@pytest.mark.parametrize("inputs", [ONE, TWO], ids=["one", "two"])
def test_parts_are_put_together_again(inputs):
    assert as_inputs(parts_of(inputs)) is inputs
    assert as_inputs((ONE,)) is ONE


def test_rows_are_split_in_order_in_every_part():
    chunks = list(split_rows(TWO, 3))
    assert [len(first) for first, _ in chunks] == [3, 3, 1]
    assert torch.equal(torch.cat([second for _, second in chunks]), TWO[1])
    assert count_rows(TWO) == 7
    assert [len(chunk) for chunk in split_rows(ONE, 3)] == [3, 3, 1]


@pytest.mark.parametrize("rows", [slice(2), 3, torch.tensor([6, 0])], ids=str)
def test_rows_are_taken_from_every_part(rows):
    assert torch.equal(take_rows(ONE, rows), ONE[rows])
    for found, part in zip(take_rows(TWO, rows), TWO, strict=True):
        assert torch.equal(found, part[rows])


def test_members_get_rows_of_their_own_or_the_same():
    shaped = shape_rows(take_rows(TWO, slice(6)), (2, 3))
    assert [part.shape for part in shaped] == [(2, 3), (2, 3, 2)]
    shared = for_members(TWO, 4)
    assert [part.shape for part in shared] == [(4, 7), (4, 7, 2)]
    assert torch.equal(shared[1][3], TWO[1])


BAD = {
    "other rows": ((torch.zeros(7), torch.zeros(6, 1)), "7 and 6 rows.*the same number of rows"),
    "no rows": (torch.zeros(0, 2), "at least one"),
    "nothing": ((), "got an empty tuple as inputs"),
    "a list": ([1.0], "got a list as inputs"),
    "no axes": ((torch.zeros(2), torch.tensor(1.0)), "a tensor, a tensor without axes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs_are_refused(name):
    inputs, message = BAD[name]
    with pytest.raises(CosetError, match=message):
        count_rows(inputs)


def test_numbers_that_are_not_finite_are_found():
    inputs = ONE, TWO[1].clone()
    check_finite_inputs(inputs)
    inputs[1][4, 1] = torch.inf
    with pytest.raises(CosetError, match="in example 104 of tensor 2 of 2"):
        check_finite_inputs(inputs, first=100)
    with pytest.raises(CosetError, match="in example 4;"):
        check_finite_inputs(inputs[1])
