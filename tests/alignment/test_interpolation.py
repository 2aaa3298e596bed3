import pytest
import torch

from coset import CosetError, stack
from coset.alignment.interpolation import average, interpolate


def test_ends_are_exact(generator):
    a = {"w": torch.randn(5, generator=generator), "steps": torch.tensor(3)}
    b = {"w": torch.randn(5, generator=generator), "steps": torch.tensor(9)}
    assert torch.equal(interpolate(a, b, 0.0)["w"], a["w"])
    assert torch.equal(interpolate(a, b, 1.0)["w"], b["w"])
    assert int(interpolate(a, b, 0.5)["steps"]) == 3


def test_other_tensors_are_refused():
    with pytest.raises(CosetError, match="second"):
        interpolate({"w": torch.zeros(2)}, {"v": torch.zeros(2)}, 0.5)


def test_average_of_a_list_and_of_a_stack(generator):
    members = [{"w": torch.randn(3, generator=generator).double()} for _ in range(4)]
    expected = torch.stack([m["w"] for m in members]).mean(0)
    torch.testing.assert_close(average(members)["w"], expected)
    torch.testing.assert_close(average(stack(members))["w"], expected)


def test_nothing_to_average():
    with pytest.raises(CosetError, match="no weights"):
        average([])
