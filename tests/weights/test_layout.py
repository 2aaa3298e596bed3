import pytest
import torch

from coset import CosetError, Layout

WEIGHTS = {"a.w": torch.arange(6.0).reshape(2, 3), "a.b": torch.tensor([6.0, 7.0])}


def test_flatten_puts_tensors_one_after_the_other():
    layout = Layout.of(WEIGHTS)
    assert layout.flatten(WEIGHTS).tolist() == list(range(8))
    assert layout.slices == {"a.w": slice(0, 6), "a.b": slice(6, 8)}
    assert layout.size == 8


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_unflatten_is_the_inverse_with_any_leading_axes(lead, generator):
    layout = Layout.of(WEIGHTS)
    flat = torch.randn(*lead, 8, generator=generator)
    weights = layout.unflatten(flat)
    assert weights["a.w"].shape == (*lead, 2, 3)
    assert torch.equal(layout.flatten(weights), flat)


def test_order_is_that_of_the_names_given():
    layout = Layout.of(WEIGHTS, ["a.b", "a.w"])
    assert layout.flatten(WEIGHTS).tolist() == [6, 7, 0, 1, 2, 3, 4, 5]


def test_select_keeps_what_fits_a_pattern():
    assert Layout.of(WEIGHTS).select("*.b", "a.?").names == ("a.w", "a.b")
    assert list(Layout.of(WEIGHTS).select("a.*").restrict(WEIGHTS)) == ["a.w", "a.b"]


@pytest.mark.parametrize("others", [(), ("*.b",)])
def test_select_refuses_every_pattern_that_fits_nothing(others):
    with pytest.raises(CosetError, match=r"'head\.\*', which fits no parameter.*a\.w, a\.b"):
        Layout.of(WEIGHTS).select(*others, "head.*")


def test_select_names_what_is_close():
    layout = Layout.of({f"{layer}.weight": torch.ones(1) for layer in ("body", "neck", "head")})
    with pytest.raises(CosetError, match=r"'haed\.\*'.*for example, head\.weight$"):
        layout.select("haed.*")


def test_select_refuses_what_are_no_patterns():
    with pytest.raises(CosetError, match="pattern 3"):
        Layout.of(WEIGHTS).select(3)
    with pytest.raises(CosetError, match="no patterns"):
        Layout.of(WEIGHTS).select()


def test_wrong_shapes_are_refused_by_name():
    layout = Layout.of(WEIGHTS)
    with pytest.raises(CosetError, match=r"without 'a\.b'"):
        layout.flatten({"a.w": WEIGHTS["a.w"]})
    with pytest.raises(CosetError, match=r"'a.w' of shape \(3, 2\)"):
        layout.flatten({**WEIGHTS, "a.w": WEIGHTS["a.w"].T})
    with pytest.raises(CosetError, match="length 7"):
        layout.unflatten(torch.zeros(7))


def test_scalars_have_a_place():
    layout = Layout.of({"s": torch.tensor(3.0), "v": torch.zeros(2)})
    assert layout.flatten({"s": torch.tensor(3.0), "v": torch.zeros(2)}).tolist() == [3, 0, 0]
    assert layout.unflatten(torch.arange(3.0))["s"].shape == ()


def test_tensors_of_several_types_make_no_vector():
    weights = {"a": torch.zeros(2, dtype=torch.float32), "b": torch.zeros(1, dtype=torch.float64)}
    with pytest.raises(
        CosetError, match=r"'b' of type torch.float64 and 'a' of type torch.float32"
    ):
        Layout.of(weights).flatten(weights)
