"""Barriers against hand-computed losses."""

import re

import pytest
import torch
from torch import nn

from coset import CosetError, weights_of
from coset.alignment.barrier import barrier


def linear(value):
    return {"weight": torch.full((1, 1), value, dtype=torch.float64)}


def test_a_parabola():
    """f = w x at x = 1, y = 0: the loss w² from w = -1 to w = 3; chord 1 + 8t, value (4t - 1)².

    The chord is above the parabola everywhere: height 0 at the ends, -3 in the middle.
    """
    module = nn.Linear(1, 1, bias=False).double()
    data = (torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    path = barrier(module, linear(-1.0), linear(3.0), data, points=5)
    torch.testing.assert_close(path.loss, (4 * path.t - 1) ** 2)
    torch.testing.assert_close(path.error, (4 * path.t - 1).abs())
    assert path.height == 0.0
    assert path.interior_height == pytest.approx(-3.0)


def test_classes_count_errors(generator):
    module = nn.Linear(2, 2, bias=False)
    a, b = {"weight": torch.eye(2)}, {"weight": -torch.eye(2)}
    inputs = torch.eye(2)
    path = barrier(module, a, b, (inputs, torch.tensor([0, 1])), points=3)
    assert path.error.tolist() == [0.0, 0.5, 1.0]  # at the middle all outputs tie
    assert path.loss[1] == pytest.approx(torch.log(torch.tensor(2.0)))
    assert path.error_height == pytest.approx(0.0)


def test_an_own_loss_and_a_whole_module():
    module = nn.Linear(1, 1, bias=False).double()
    data = (torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    path = barrier(module, linear(0.0), linear(1.0), data, points=3, loss=lambda f, y: f.mean())
    assert path.loss.tolist() == [0.0, 0.5, 1.0]
    assert module.weight.requires_grad


def norm_net(generator):
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    return net, torch.randn(50, 4, generator=generator).double()


def test_norms_are_measured_again(generator):
    net, inputs = norm_net(generator)
    weights = weights_of(net)
    targets = torch.randint(3, (50,), generator=generator)
    from coset.alignment.norm_reset import reset_norm

    found = reset_norm(net, weights, (inputs, targets))
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    torch.testing.assert_close(found["1.running_mean"], hidden.mean(0))
    torch.testing.assert_close(found["1.running_var"], hidden.var(0))
    path = barrier(net, weights, weights, (inputs, targets), points=3, reset_norm=True)
    assert path.height == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(weights_of(net), weights)


def test_no_example_is_left_over_when_norms_are_measured(generator):
    """257 examples are not 256 and one, of which batch norm can take no variance."""
    from coset.alignment.norm_reset import reset_norm

    net, _ = norm_net(generator)
    inputs = torch.randn(257, 4, generator=generator).double()
    weights, targets = weights_of(net), torch.zeros(257, dtype=torch.long)
    found = reset_norm(net, weights, (inputs, targets))
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    halves = [half.mean(0) for half in hidden.split([129, 128])]
    torch.testing.assert_close(found["1.running_mean"], (halves[0] + halves[1]) / 2)


def test_moments_are_those_of_all_data_whatever_their_order(generator):
    """Two batches of 1,000 that differ, as classes in order do."""
    from coset.alignment.norm_reset import channel_moments

    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    inputs = torch.randn(2000, 4, generator=generator).double()
    inputs[1000:] += 5
    weights, targets = weights_of(net), torch.zeros(2000, dtype=torch.long)
    found = channel_moments(net, weights, ["0"], (inputs, targets))
    hidden = inputs @ weights["0.weight"].T + weights["0.bias"]
    torch.testing.assert_close(found.mean["0"], hidden.mean(0))
    torch.testing.assert_close(found.deviation["0"], hidden.std(0, correction=0))


def test_repair_gives_the_middle_the_moments_of_the_ends(generator):
    from coset.alignment.interpolation import interpolate
    from coset.alignment.norm_reset import channel_moments, repair

    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    net = net.double()
    a = weights_of(net)
    b = {name: torch.randn(w.shape, generator=generator).double() for name, w in a.items()}
    data = (torch.randn(40, 4, generator=generator).double(), torch.zeros(40, dtype=torch.long))
    middle = repair(net, interpolate(a, b, 0.5), (a, b), data)
    ends = [channel_moments(net, end, ["0", "2"], data) for end in (a, b)]
    found = channel_moments(net, middle, ["0", "2"], data)
    for name in ("0", "2"):
        torch.testing.assert_close(found.mean[name], (ends[0].mean[name] + ends[1].mean[name]) / 2)
        torch.testing.assert_close(
            found.deviation[name], (ends[0].deviation[name] + ends[1].deviation[name]) / 2
        )
    torch.testing.assert_close(middle["4.weight"], interpolate(a, b, 0.5)["4.weight"])
    path = barrier(net, a, b, data, points=3, repair=True)
    assert torch.isfinite(path.loss).all()


def test_bad_input_is_refused(generator):
    net, inputs = norm_net(generator)
    weights, data = weights_of(net), (inputs, torch.zeros(50, dtype=torch.long))
    with pytest.raises(CosetError, match="points=1"):
        barrier(net, weights, weights, data, points=1)
    with pytest.raises(CosetError, match="second weights"):
        barrier(net, weights, {"w": torch.zeros(1)}, data)
    with pytest.raises(CosetError, match=r"tensor of shape \(50,\); needed one number"):
        barrier(net, weights, weights, data, loss=lambda outputs, _: outputs[:, 0])
    plain = nn.Linear(4, 3).double()
    with pytest.raises(CosetError, match="without batch norm"):
        barrier(plain, weights_of(plain), weights_of(plain), data, reset_norm=True)


def strange(net, weights, inputs, labels):
    """What a barrier refuses: the words of the refusal, the weights, the data."""
    return {
        "inputs of shape (50, 5)": (weights, (torch.zeros(50, 5).double(), labels)),
        "the weights are torch.float64: give inputs": (
            weights,
            (inputs.float(), labels),
        ),
        "inputs that are not finite, in example 3": (
            weights,
            (inputs.where(inputs != inputs[3, 1], torch.inf), labels),
        ),
        "labels from 0 to 3": (weights, (inputs, labels.index_fill(0, torch.tensor([7]), 3))),
        "targets of shape (50, 1)": (weights, (inputs, labels[:, None])),
        "targets of shape (50, 2)": (weights, (inputs, torch.zeros(50, 2).double())),
        "the same number of rows": (weights, (inputs, labels[:9])),
        "'0.bias' that are": ({**weights, "0.bias": weights["0.bias"] * torch.nan}, None),
        "'0.bias' of type torch.int64": ({**weights, "0.bias": weights["0.bias"].long()}, None),
        "weights_of(module)": (net, None),
        "of type NoneType": (None, None),
    }


@pytest.mark.parametrize("reset", [False, True])
def test_strange_weights_inputs_and_targets_are_named(reset, generator):
    net, inputs = norm_net(generator)
    weights, labels = weights_of(net), torch.zeros(50, dtype=torch.long)
    for words, (given, data) in strange(net, weights, inputs, labels).items():
        data = data or (inputs, labels)
        with pytest.raises(CosetError, match=re.escape(words)):
            barrier(net, weights, given, data, points=3, reset_norm=reset)


def test_any_whole_numbers_are_labels_and_one_output_needs_no_axis(generator):
    net, inputs = norm_net(generator)
    weights, labels = weights_of(net), torch.randint(3, (50,), generator=generator)
    wide = barrier(net, weights, weights, (inputs, labels), points=2)
    small = barrier(net, weights, weights, (inputs, labels.to(torch.int32)), points=2)
    assert torch.equal(wide.loss, small.loss)
    single = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
    own = weights_of(single)
    path = barrier(single, own, own, (inputs, torch.zeros(50).double()), points=2)
    assert path.loss[0] == pytest.approx(single(inputs).square().mean().item())


def test_two_points_have_no_inner_height():
    module = nn.Linear(1, 1, bias=False).double()
    data = (torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    path = barrier(module, linear(0.0), linear(1.0), data, points=2)
    with pytest.raises(CosetError, match="inner points"):
        _ = path.interior_height
