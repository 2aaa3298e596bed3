import pytest
import torch

from coset import discover, match, weights_of
from coset.errors import CosetError
from coset.models import dilated


def test_an_output_sees_as_far_as_the_sum_of_the_dilations():
    """A missing number (NaN) spreads to all that looks at it: no weight can hide it."""
    model = dilated(dilations=(1, 2, 4), normalisation="none", activation="silu")
    picture = torch.zeros(1, 1, 21, 21)
    picture[0, 0, 10, 10] = torch.nan
    seen = model(picture)[0, 0].isnan()
    rows = torch.arange(21) - 10
    # taps reach -1, 0, 1 times each dilation: sums of ±1 ±2 ±4 and zeros are all of -7 … 7
    assert torch.equal(seen, (rows.abs() <= 7)[:, None] & (rows.abs() <= 7))


def test_dropout_and_sizes():
    model = dilated(in_channels=3, classes=5, width=8, dilations=(1, 2), dropout=0.25)
    assert sum(isinstance(m, torch.nn.Dropout2d) for m in model) == 2
    assert model(torch.rand(2, 3, 5, 9)).shape == (2, 5, 5, 9)
    with pytest.raises(CosetError, match="dilations"):
        dilated(dilations=())


def test_permuted_copies_are_found_again(generator):
    model = dilated(in_channels=3, classes=2, width=6, dilations=(1, 2, 1), normalisation="none")
    example = torch.rand(1, 3, 8, 8, generator=generator)
    group = discover(model, example)
    assert {s.size for s in group.permutations} == {6}
    assert len(group.permutations) == 3
    weights = weights_of(model)
    moved = group.act(group.sample(generator=generator), weights)
    found = match(group, moved, to=weights)
    for name, tensor in found.weights.items():
        assert torch.allclose(tensor, weights[name], atol=1e-4), name
