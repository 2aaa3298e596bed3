import pytest
import torch
from torch.func import vmap
from torch.nn import functional

from coset.inference.training.dropout import MemberDropout

DROPOUTS = {
    "units": (functional.dropout, (50, 20)),
    "channels of lines": (functional.dropout1d, (40, 30, 4)),
    "channels of pictures": (functional.dropout2d, (40, 30, 3, 3)),
    "channels of volumes": (functional.dropout3d, (40, 30, 2, 2, 2)),
}


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_masks_of_a_member_are_the_same_in_a_stack_and_alone(kind):
    dropout, shape = DROPOUTS[kind]
    inputs = torch.ones(3, *shape)
    with MemberDropout(generators(1, 2, 3)):
        stacked = vmap(lambda x: dropout(dropout(x, 0.3), 0.2), randomness="different")(inputs)
    for row, seed in enumerate((1, 2, 3)):
        with MemberDropout(generators(seed)):
            alone = dropout(dropout(inputs[row], 0.3), 0.2)
        assert torch.equal(stacked[row], alone)
    assert not torch.equal(stacked[0], stacked[1])


@pytest.mark.parametrize("kind", DROPOUTS)
def test_the_share_of_zeros_and_the_scale_are_right(kind):
    """1000 or more masks: the mean is within five standard errors, false alarms below 1e-6."""
    dropout, shape = DROPOUTS[kind]
    with MemberDropout(generators(0)):
        dropped = dropout(torch.ones(shape), 0.25)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    masks = shape[0] * shape[1]
    tolerance = 5 * (0.25 * 0.75 / masks) ** 0.5
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=tolerance)


def test_channels_fall_out_whole():
    with MemberDropout(generators(0)):
        dropped = functional.dropout2d(torch.ones(4, 8, 3, 3), 0.5)
    assert torch.equal(dropped, dropped[:, :, :1, :1].expand_as(dropped))


def test_gradients_pass_where_values_pass():
    inputs = torch.randn(6, 4, requires_grad=True)
    with MemberDropout(generators(0)):
        dropped = functional.dropout(inputs, 0.5)
    (gradient,) = torch.autograd.grad(dropped.sum(), inputs)
    assert torch.equal(gradient == 0, dropped == 0)


def test_nothing_is_dropped_at_rest_or_everything_at_one():
    inputs = torch.ones(5, 5)
    with MemberDropout(generators(0)):
        assert torch.equal(functional.dropout(inputs, 0.5, training=False), inputs)
        assert torch.equal(functional.dropout(inputs, 0.0), inputs)
        assert torch.equal(functional.dropout(inputs, 1.0), torch.zeros(5, 5))


def test_masks_are_the_same_in_both_precisions():
    masks = []
    for dtype in (torch.float32, torch.float64):
        with MemberDropout(generators(7)):
            masks.append(functional.dropout(torch.ones(100, dtype=dtype), 0.5) == 0)
    assert torch.equal(*masks)
