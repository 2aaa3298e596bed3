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


@pytest.mark.parametrize("many", [list, stack])
def test_half_precision_is_averaged_in_a_wider_type(many):
    """Four numbers near the largest of half precision: their sum is none."""
    members = [{"w": torch.tensor([60_000.0]).half()} for _ in range(4)]
    found = average(many(members))["w"]
    assert found.dtype == torch.float16
    assert float(found) == float(members[0]["w"])


STRANGE = {
    "got Linear to average": lambda w: average(torch.nn.Linear(1, 1)),
    "member 1 of type int": lambda w: average([w, 3]),
    "got generator to average": lambda w: average(member for member in [w, w]),
    "got Tensor to average": lambda w: average(torch.ones(3)),
    "first weights of type Linear": lambda w: interpolate(torch.nn.Linear(1, 1), w, 0.5),
    "second weights of type NoneType": lambda w: interpolate(w, None, 0.5),
    "got t='half'": lambda w: interpolate(w, w, "half"),
    "got t=tensor": lambda w: interpolate(w, w, torch.linspace(0, 1, 3)),
    "got t=nan": lambda w: interpolate(w, w, float("nan")),
}


@pytest.mark.parametrize("words", STRANGE)
def test_what_is_no_weights_is_named(words):
    with pytest.raises(CosetError, match=words):
        STRANGE[words]({"w": torch.ones(2)})
