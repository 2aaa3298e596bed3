import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from coset.inference.training.stacked import StackedLayers, StackedLinear

pytestmark = pytest.mark.usefixtures("double")

MEMBERS, ROWS = 3, 5

LAYERS = {
    "linear": (lambda: nn.Linear(4, 2), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 2, bias=False), (4,)),
    "linear on sequences": (lambda: nn.Linear(4, 2), (6, 4)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3, padding=1), (2, 6, 5)),
    "strided": (lambda: nn.Conv2d(2, 4, 3, stride=2, bias=False), (2, 7, 6)),
    "uneven": (lambda: nn.Conv2d(2, 4, (3, 1), (1, 2), (2, 0), (2, 1)), (2, 7, 6)),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), (4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (4, 5, 5)),
    "one by one": (lambda: nn.Conv2d(3, 4, 1), (3, 5, 5)),
    "same": (lambda: nn.Conv2d(2, 4, 3, padding="same"), (2, 6, 6)),
    "reflecting": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), (2, 6, 6)),
    "along a line": (lambda: nn.Conv1d(2, 4, 3), (2, 6)),
    "batch norm of units": (lambda: nn.BatchNorm1d(4), (4,)),
    "batch norm of pictures": (lambda: nn.BatchNorm2d(3), (3, 4, 4)),
    "batch norm without scale": (lambda: nn.BatchNorm2d(3, affine=False), (3, 4, 4)),
    "batch norm without statistics": (
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        (3, 4, 4),
    ),
    "batch norm at rest": (lambda: nn.BatchNorm2d(3).eval(), (3, 4, 4)),
    "several": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 2)),
        (2, 6, 6),
    ),
}


def evaluate(run, leaves, inputs):
    outputs, buffers = run()
    weighted = (outputs * torch.arange(outputs.numel()).view(outputs.shape).cos()).sum()
    gradients = torch.autograd.grad(weighted, [inputs, *leaves.values()])
    return [outputs, *gradients, *buffers.values()]


@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_gradients_and_statistics_are_those_of_each_member(layer):
    build, shape = LAYERS[layer]
    module = build()
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._NormBase):
            child.num_batches_tracked = None
    inputs = torch.randn(MEMBERS, ROWS, *shape, requires_grad=True)
    leaves = {
        name: torch.randn(MEMBERS, *tensor.shape, requires_grad=True)
        for name, tensor in module.named_parameters()
    }
    first = {n: torch.rand(MEMBERS, *b.shape) for n, b in module.named_buffers()}

    def call(leaves, first, inputs):
        buffers = {name: tensor.clone() for name, tensor in first.items()}
        return functional_call(module, {**leaves, **buffers}, (inputs,)), buffers

    def stacked():
        with StackedLayers():
            return vmap(call)(leaves, first, inputs)

    def one_by_one():
        parts = [
            call(
                {n: w[i] for n, w in leaves.items()},
                {n: b[i] for n, b in first.items()},
                inputs[i],
            )
            for i in range(MEMBERS)
        ]
        buffers = {name: torch.stack([part[1][name] for part in parts]) for name in first}
        return torch.stack([part[0] for part in parts]), buffers

    pairs = zip(
        evaluate(stacked, leaves, inputs), evaluate(one_by_one, leaves, inputs), strict=True
    )
    for ours, reference in pairs:
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-10)


def test_tensors_that_members_share_need_no_member_axis():
    inputs, weight = torch.randn(ROWS, 4), torch.randn(MEMBERS, 2, 4)
    with StackedLayers():
        outputs = vmap(lambda w: functional.linear(inputs, w))(weight)
    torch.testing.assert_close(outputs, torch.einsum("nh,mch->mnc", inputs, weight))


def test_the_stacked_linear_layer_passes_gradcheck():
    shapes = ((2, 5, 4), (2, 3, 4), (2, 3))
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(StackedLinear.apply, tuple(tensors))


def test_weight_gradients_have_the_layout_of_the_weights():
    inputs = torch.randn(2, 5, 4)
    weight = torch.randn(2, 3, 4, requires_grad=True)
    StackedLinear.apply(inputs, weight, None).sum().backward()
    assert weight.grad.is_contiguous()
