"""Laws that every architecture obeys, over one table of small instances."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, stack_module_state, vjp, vmap

from coset import models
from coset.errors import CosetError
from coset.models import MODELS
from coset.models.fixup import bottleneck_branch
from coset.models.residual import Bottleneck

SMALL = {"depths": (1, 2), "widths": (4, 8), "in_channels": 2, "classes": 3}
POINTS = {"width": 8, "depth": 2, "heads": 2, "classes": 3}


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


CASES = {
    "mlp": Case(lambda: models.mlp(12, (5, 4), 3, activation="tanh"), (6, 3, 4), (6, 3)),
    "linear": Case(lambda: models.mlp(4, (), 3), (6, 4), (6, 3)),
    "convnet": Case(
        lambda: models.convnet(in_channels=2, widths=(4, 5, 6), classes=3), (6, 2, 9, 9), (6, 3)
    ),
    "convnet with norm": Case(
        lambda: models.convnet(in_channels=2, widths=(4, 8), normalisation="batch"),
        (6, 2, 9, 9),
        (6, 10),
    ),
    "optunet": Case(models.optunet, (6, 1, 28, 28), (6, 10)),
    "resnet": Case(lambda: models.resnet(**SMALL), (6, 2, 8, 8), (6, 3)),
    "resnet, filter response, SiLU": Case(
        lambda: models.resnet(**SMALL, normalisation="filter_response", activation="silu"),
        (6, 2, 8, 8),
        (6, 3),
    ),
    "resnet, thresholded": Case(
        lambda: models.resnet(
            **SMALL, normalisation="thresholded_filter_response", activation=nn.Identity
        ),
        (6, 2, 8, 8),
        (6, 3),
    ),
    "resnet, padding": Case(
        lambda: models.resnet(**SMALL, shortcut=models.padding_shortcut), (6, 2, 8, 8), (6, 3)
    ),
    "bottleneck, imagenet": Case(
        lambda: models.resnet(**SMALL, block=Bottleneck, stem="imagenet"), (6, 2, 24, 24), (6, 3)
    ),
    "preactivation": Case(lambda: models.preactivation_resnet(**SMALL), (6, 2, 8, 8), (6, 3)),
    "fixup": Case(lambda: models.fixup_resnet(**SMALL), (6, 2, 8, 8), (6, 3)),
    "fixup bottleneck": Case(
        lambda: models.fixup_resnet(**SMALL, branch=bottleneck_branch), (6, 2, 8, 8), (6, 3)
    ),
    "vision transformer": Case(
        lambda: models.vision_transformer(**POINTS, in_channels=2, image_size=8),
        (6, 2, 8, 8),
        (6, 3),
    ),
    "point transformer": Case(lambda: models.point_transformer(**POINTS), (6, 7, 3), (6, 3)),
    "unet": Case(lambda: models.unet(widths=(4, 8), classes=2), (6, 1, 8, 8), (6, 2, 8, 8)),
    "dilated": Case(
        lambda: models.dilated(width=4, dilations=(1, 2), classes=2), (6, 1, 8, 8), (6, 2, 8, 8)
    ),
    "unet with a depth head": Case(
        lambda: nn.Sequential(models.unet(widths=(4, 8), classes=2), models.depth_head(1.0, 0.5)),
        (6, 1, 8, 8),
        (6, 2, 8, 8),
    ),
    "unet, batch, interpolated": Case(
        lambda: models.unet(widths=(4, 6, 8), normalisation="batch", upsampling="interpolated"),
        (6, 1, 9, 11),
        (6, 1, 9, 11),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield CASES[request.param]


def perturbed(case: Case) -> nn.Module:
    """A float64 instance away from special starts: FixUp's zeros stop every gradient."""
    module = case.build().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def example(case: Case) -> Tensor:
    return torch.randn(case.inputs, dtype=torch.float64)


def without_counters(module: nn.Module) -> nn.Module:
    """A copy whose batch norms do not count batches, as the training of stacks has it."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.num_batches_tracked = None
    return module


def test_outputs_have_the_shape_and_dtype_of_the_case(case):
    inputs = example(case)
    kept = inputs.clone()
    state = torch.get_rng_state()
    for dtype in (torch.float32, torch.float64):
        module = case.build().to(dtype)
        state = torch.get_rng_state()
        for mode in (True, False):
            outputs = module.train(mode)(inputs.to(dtype))
            assert outputs.shape == case.outputs
            assert outputs.dtype == dtype
            assert outputs.isfinite().all()
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_a_stack_equals_its_members_one_by_one(case, mode):
    members = [without_counters(perturbed(case)).train(mode) for _ in range(2)]
    inputs = torch.stack([example(case), example(case)])
    parameters, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0])

    def apply(parameters, buffers, inputs):
        return functional_call(base, {**parameters, **buffers}, inputs)

    stacked = vmap(apply)(parameters, buffers, inputs)
    for index, member in enumerate(members):
        torch.testing.assert_close(stacked[index], member(inputs[index]), rtol=1e-9, atol=1e-9)
        for name, value in member.named_buffers():
            torch.testing.assert_close(buffers[name][index], value, rtol=1e-10, atol=1e-10)


def test_the_gradient_of_a_stack_equals_the_members(case):
    members = [without_counters(perturbed(case)) for _ in range(2)]
    inputs = example(case)
    parameters, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0])

    def loss(parameters, buffers):
        return functional_call(base, {**parameters, **buffers}, inputs).square().sum()

    gradients = vmap(torch.func.grad(loss))(parameters, buffers)
    for index, member in enumerate(members):
        member(inputs).square().sum().backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad, rtol=1e-7, atol=1e-7)


def test_gradients_reach_every_parameter(case):
    reached = set()
    for _ in range(4):  # OptuNet's three last hidden units may all be dead in one draw
        module = perturbed(case)
        outputs = module(example(case))
        (outputs * torch.randn_like(outputs)).sum().backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        reached |= {name for name, value in gradients.items() if value.abs().max() > 1e-12}
    assert reached == gradients.keys()


# torch loads its own forward-mode rules with torch.jit.script at the first use.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_and_reverse_derivatives_are_adjoint(case):
    module = perturbed(case).eval()
    weights = {name: value.detach() for name, value in module.named_parameters()}
    direction = {name: torch.randn_like(value) for name, value in weights.items()}
    inputs = example(case)

    def apply(weights):
        return functional_call(module, weights, inputs)

    outputs, pushed = jvp(apply, (weights,), (direction,))
    cotangent = torch.randn_like(outputs)
    (pulled,) = vjp(apply, weights)[1](cotangent)
    inner = sum((pulled[name] * direction[name]).sum() for name in weights)
    torch.testing.assert_close((pushed * cotangent).sum(), inner, rtol=1e-8, atol=1e-8)


def test_export_gives_the_same_function(case):
    module, inputs = perturbed(case).eval(), example(case)
    program = torch.export.export(module, (inputs,), strict=False)
    torch.testing.assert_close(program.module()(inputs), module(inputs))


def test_resetting_every_module_gives_a_new_start(case):
    def reset(module, seed):
        torch.manual_seed(seed)
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        return module.state_dict()

    module = perturbed(case).float()
    for part in module.modules():
        assert not list(part.parameters(recurse=False)) or hasattr(part, "reset_parameters")
    first = reset(module, 1)
    first = {name: value.clone() for name, value in first.items()}
    second = reset(perturbed(case).float(), 1)
    other = reset(perturbed(case).float(), 2)
    fresh = case.build().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    for name, value in fresh.items():  # constants return, random tensors keep their scale
        if value.numel() > 1 and value.min() == value.max():
            assert torch.equal(first[name], value)
        elif value.numel() > 60:
            assert 0.6 < first[name].std() / value.std() < 1.6


def test_equal_seeds_build_equal_modules(case):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(case.build().state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_every_name_of_the_table_builds_without_arguments():
    with torch.device("meta"):
        for name, factory in MODELS.items():
            assert factory.__name__ == name
            assert isinstance(factory(), nn.Module)


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda rate: models.mlp(4, (3,), dropout=rate), nn.Dropout),
        (lambda rate: models.convnet(dropout=rate), nn.Dropout2d),
        (lambda rate: models.resnet(**SMALL, dropout=rate), nn.Dropout2d),
        (lambda rate: models.preactivation_resnet(**SMALL, dropout=rate), nn.Dropout2d),
        (lambda rate: models.fixup_resnet(**SMALL, dropout=rate), nn.Dropout),
        (lambda rate: models.vision_transformer(**POINTS, dropout=rate), nn.Dropout),
        (lambda rate: models.point_transformer(**POINTS, dropout=rate), nn.Dropout),
    ],
)
def test_dropout_is_an_option_that_renames_nothing(build, kind):
    assert any(isinstance(part, kind) and part.p == 0.5 for part in build(0.5).modules())
    assert build(0.5).state_dict().keys() == build(0.0).state_dict().keys()
    for rate in (1.0, -0.1):
        with pytest.raises(CosetError, match="dropout"):
            build(rate)


def test_no_default_has_dropout(case):
    assert not any(isinstance(part, (nn.Dropout, nn.Dropout2d)) for part in case.build().modules())
