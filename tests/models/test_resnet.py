import importlib

import pytest
import torch
from torch import nn

from coset.errors import CosetError
from coset.models.residual import padding_shortcut
from coset.models.resnet import (
    Stem,
    preactivation_resnet,
    preactivation_resnet18,
    resnet,
    resnet18,
    resnet20,
    resnet50,
)


def count(build, **arguments):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(**arguments).parameters())


@pytest.mark.parametrize(
    ("build", "arguments", "parameters"),
    [
        # He et al. 2015, table 6: 0.27 M; option B is ours and the published checkpoints'.
        (resnet20, {}, 272_474),
        (resnet20, {"shortcut": padding_shortcut}, 269_722),
        (resnet20, {"normalisation": "filter_response", "activation": "silu"}, 272_474),
        (resnet18, {}, 11_173_962),
        (resnet18, {"classes": 100}, 11_220_132),
        (resnet18, {"classes": 1000, "stem": "imagenet"}, 11_689_512),
        (resnet50, {}, 23_520_842),
        (resnet50, {"classes": 1000, "stem": "imagenet"}, 25_557_032),
        # ResNet-18 with 9,600 numbers in its norms replaced by 7,808.
        (preactivation_resnet18, {}, 11_173_962 - 9_600 + 7_808),
    ],
)
def test_the_published_sizes(build, arguments, parameters):
    assert count(build, **arguments) == parameters


def test_a_threshold_costs_one_number_a_channel():
    """The stem, six norms in each stage, and two projections: 16 + 6·(16+32+64) + 32 + 64."""
    thresholds = 16 + 6 * (16 + 32 + 64) + 32 + 64
    assert count(resnet20, normalisation="thresholded_filter_response") == 272_474 + thresholds


def test_twice_the_width_has_four_times_the_convolutions():
    convolutions = 272_474 - 650 - 2 * (16 + 6 * (16 + 32 + 64) + 32 + 64)
    stem = 27 * 16
    norms = 4 * (16 + 6 * (16 + 32 + 64) + 32 + 64)
    expected = 4 * (convolutions - stem) + 2 * stem + norms + 129 * 10
    assert count(resnet20, width=2) == expected


def test_the_names_are_those_of_the_published_checkpoints():
    with torch.device("meta"):
        names = set(resnet18().state_dict())
    assert {
        "conv1.weight",
        "bn1.running_var",
        "layer1.0.conv1.weight",
        "layer1.0.bn2.bias",
        "layer2.0.shortcut.0.weight",
        "layer2.0.shortcut.1.running_mean",
        "layer4.1.conv2.weight",
        "linear.weight",
        "linear.bias",
    } <= names


@pytest.mark.parametrize("build", [resnet20, resnet18, preactivation_resnet18, resnet50])
def test_the_factories_run_on_pictures(build):
    model = build(in_channels=1, classes=7).eval()
    assert model(torch.randn(1, 1, 16, 16)).shape == (1, 7)


def test_the_imagenet_stem_divides_the_side_by_four():
    model = resnet(depths=(1,), widths=(4,), stem="imagenet")
    shapes = []
    model.layer1.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    model(torch.randn(2, 3, 32, 32))
    assert shapes == [(2, 4, 8, 8)]


def test_a_stem_may_be_a_value():
    model = resnet(depths=(1,), widths=(4,), stem=Stem(kernel=5, stride=2, pool_stride=1))
    assert model.conv1.kernel_size == (5, 5)
    assert not any(isinstance(part, nn.MaxPool2d) for part in model.modules())


def test_evaluation_uses_running_statistics_and_training_updates_them():
    model = resnet(depths=(1,), widths=(4,)).double()
    inputs = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    before = model.bn1.running_mean.clone()
    model(inputs)
    expected = 0.9 * before + 0.1 * model.conv1(inputs).mean((0, 2, 3))
    torch.testing.assert_close(model.bn1.running_mean, expected)
    model.eval()
    torch.testing.assert_close(model(inputs)[:2], model(inputs[:2]))


def test_filter_response_norm_does_not_mix_the_batch():
    model = resnet20(normalisation="filter_response", activation="silu").double().train()
    inputs = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]))


def test_the_dropout_before_the_last_layer_is_plain():
    model = resnet18(dropout=0.2)
    assert isinstance(model.dropout, nn.Dropout)
    assert sum(isinstance(part, nn.Dropout2d) for part in model.modules()) == 8


def test_a_factory_is_found_by_its_address():
    address = "coset.models.resnet:resnet20"
    module, _, name = address.partition(":")
    assert getattr(importlib.import_module(module), name) is resnet20


@pytest.mark.parametrize("build", [resnet, preactivation_resnet])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"normalisation": "layer"}, "got normalisation 'layer'; needed one of batch"),
        ({"activation": "swish"}, "'swish'"),
        ({"stem": "mnist"}, "needed one of cifar, imagenet"),
        ({"classes": 0}, "classes=0"),
        ({"in_channels": -1}, "in_channels=-1"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"depths": 3, "widths": 16}, "got depths=3"),
        ({"shortcut": "padding"}, "got shortcut='padding'; needed a function"),
        ({"activation": nn.ReLU()}, "write ReLU without brackets"),
        ({"widths": (4, 8)}, "1 depths and 2 widths"),
        ({"widths": (), "depths": ()}, "at least one stage"),
    ],
)
def test_bad_arguments_are_refused(build, arguments, message):
    with pytest.raises(CosetError, match=message):
        build(**{"depths": (1,), "widths": (4,)} | arguments)


def test_a_block_is_no_name():
    with pytest.raises(CosetError, match="got block='basic'; needed a function"):
        resnet(depths=(1,), widths=(4,), block="basic")
