import copy

import pytest
import torch
from torch import nn
from torch.func import vmap

from coset import (
    CosetError,
    assign,
    canonicalise,
    discover,
    functionalise,
    stack,
    weights_of,
)


class Tied(nn.Module):
    """Two layers that share one matrix."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh())


def normed():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


def snapshot(module):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flags = [child.training for child in module.modules()]
    grads = [parameter.requires_grad for parameter in module.parameters()]
    return state, flags, grads


def same(first, second):
    return first[1:] == second[1:] and all(torch.equal(first[0][k], second[0][k]) for k in first[0])


def test_weights_are_parameters_and_floating_buffers():
    weights = weights_of(normed())
    assert list(weights) == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                             "1.running_var"]  # fmt: skip
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_weights_are_copies():
    module = nn.Linear(2, 1)
    weights_of(module)["weight"].zero_()
    assert module.weight.abs().sum() > 0


@pytest.mark.parametrize("way", ["apply", "apply_training"])
def test_unknown_names_are_refused_and_missing_ones_are_the_networks_own(way):
    network, inputs = functionalise(normed()), torch.randn(2, 1, 5, 5)
    run, some = getattr(network, way), {"0.weight": torch.zeros(4, 1, 3, 3)}
    run(some, inputs)
    with pytest.raises(CosetError, match=r"unknown '0\.wieght'.*such as 0\.weight"):
        run({**some, "0.wieght": some["0.weight"]}, inputs)


def test_second_names_of_ties_and_tables_are_known():
    network, weight = functionalise(Tied()), torch.zeros(3, 3)
    first, second = (
        network.apply({f"{name}.weight": weight}, torch.randn(2, 3)) for name in ("first", "second")
    )
    torch.testing.assert_close(first, second)
    module = normed().eval()
    inputs = torch.randn(2, 1, 5, 5)
    found = functionalise(module).apply(module.state_dict(), inputs)  # with a counter of batches
    torch.testing.assert_close(found, module(inputs).detach())


def test_tied_tensors_appear_once_and_move_together():
    module = Tied()
    weights = weights_of(module)
    assert list(weights) == ["first.weight", "first.bias", "second.bias"]
    network = functionalise(module)
    other = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
    inputs = torch.randn(5, 3)
    expected = assign(copy.deepcopy(module), other)(inputs)
    torch.testing.assert_close(network.apply(other, inputs), expected.detach())


def test_tied_tensors_with_different_numbers_are_refused():
    """The weights of an untied copy are those of another function."""
    module = Tied()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assign(module, before)
    wrong = {**before, "second.weight": before["second.weight"] + 1}
    group = discover(module, torch.zeros(1, 3))
    for refused in (
        lambda: assign(module, wrong),
        lambda: group.act(group.identity(), wrong),
        lambda: canonicalise(group, wrong),
    ):
        with pytest.raises(CosetError, match=r"'second\.weight' other than 'first\.weight'"):
            refused()
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in before)


def test_assign_then_read_gives_the_same():
    module, other = normed(), normed()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    assert assign(module, weights_of(other)) is module
    for name, tensor in weights_of(other).items():
        assert torch.equal(weights_of(module)[name], tensor)


def test_a_refused_assign_changes_nothing():
    module = normed()
    before = snapshot(module)
    bad = {**weights_of(normed()), "1.bias": torch.zeros(7)}
    with pytest.raises(CosetError, match=r"'1.bias' of shape \(7,\)"):
        assign(module, bad)
    with pytest.raises(CosetError, match=r"no '0\.weight'"):
        assign(module, {"0.bias": torch.ones(4)})
    assert same(before, snapshot(module))


def test_functionalise_leaves_the_module_as_it_was():
    module = normed().train()
    module[1].eval()
    module[0].weight.requires_grad_(False)
    before = snapshot(module)
    network = functionalise(module)
    inputs = torch.randn(6, 1, 5, 5)
    network.apply(network.weights, inputs)
    network.apply_training(network.weights, inputs)
    network.initialise(torch.Generator().manual_seed(0))
    assert same(before, snapshot(module))


def test_apply_is_the_module_in_evaluation_mode():
    module = nn.Sequential(normed(), nn.Dropout(0.5))
    module(torch.randn(8, 1, 5, 5))  # statistics other than at the start
    network = functionalise(module)
    inputs = torch.randn(4, 1, 5, 5)
    expected = copy.deepcopy(module).eval()(inputs)
    torch.testing.assert_close(network.apply(network.weights, inputs), expected)
    torch.testing.assert_close(network.apply({}, inputs), expected)


def test_partial_weights_override_the_rest():
    network = functionalise(nn.Linear(2, 2))
    shifted = network.apply({"bias": network.weights["bias"] + 1}, torch.ones(1, 2))
    torch.testing.assert_close(shifted, network.apply({}, torch.ones(1, 2)) + 1)


def test_training_returns_new_statistics_and_keeps_the_old():
    module = normed()
    network = functionalise(module)
    before = {name: tensor.clone() for name, tensor in network.weights.items()}
    inputs = torch.randn(6, 1, 5, 5) + 2
    outputs, buffers = network.apply_training(network.weights, inputs)
    assert list(buffers) == list(network.buffers) == ["1.running_mean", "1.running_var"]
    assert all(torch.equal(before[name], network.weights[name]) for name in before)
    trained = copy.deepcopy(module).train()
    torch.testing.assert_close(outputs, trained(inputs))
    torch.testing.assert_close(buffers["1.running_mean"], trained[1].running_mean)
    torch.testing.assert_close(buffers["1.running_var"], trained[1].running_var)


def test_a_batch_of_one_is_named_where_batch_norm_refuses_it():
    network = functionalise(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    with pytest.raises(CosetError, match=r"a batch of one example .* another batch_size"):
        network.apply_training(network.weights, torch.zeros(1, 2))


def test_training_under_vmap_is_training_one_by_one(generator):
    network = functionalise(normed())
    members = [network.initialise(generator) for _ in range(3)]
    inputs = torch.randn(3, 6, 1, 5, 5)
    outputs, buffers = vmap(network.apply_training)(stack(members), inputs)
    for index, member in enumerate(members):
        alone, after = network.apply_training(member, inputs[index])
        torch.testing.assert_close(outputs[index], alone)
        for name, tensor in after.items():
            torch.testing.assert_close(buffers[name][index], tensor)


def test_gradients_flow_to_given_weights_only():
    network = functionalise(nn.Linear(2, 1))
    weights = {name: w.clone().requires_grad_() for name, w in network.weights.items()}
    network.apply(weights, torch.ones(3, 2)).sum().backward()
    assert weights["bias"].grad.tolist() == [3.0]
    assert network.weights["bias"].grad is None


def test_initialise_repeats_under_its_seed_and_leaves_global_randomness():
    network = functionalise(normed())
    state = torch.random.get_rng_state()
    first, second, other = (
        network.initialise(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    assert first["1.running_var"].tolist() == [1.0] * 4


def test_frozen_parameters_are_no_part_of_the_layout_and_are_not_drawn_anew(generator):
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    module[0].weight.requires_grad_(False)
    module[1].requires_grad_(False)
    module[1].running_mean.fill_(5.0)
    network = functionalise(module)
    assert network.layout.names == ("0.bias", "2.weight", "2.bias")
    assert network.frozen == ("0.weight", "1.weight", "1.bias")
    assert network.statistics == ("1.running_mean", "1.running_var")
    assert set(network.buffers) == {*network.frozen, *network.statistics}
    fresh = network.initialise(generator)
    for name in network.buffers:  # the statistics of a frozen norm stay too
        assert torch.equal(fresh[name], network.weights[name])
    for name in network.layout.names:
        assert not torch.equal(fresh[name], network.weights[name])


def test_a_module_that_is_frozen_as_a_whole_is_taken_as_a_whole():
    network = functionalise(nn.Linear(2, 3).requires_grad_(False))
    assert network.layout.names == ("weight", "bias")
    assert network.frozen == ()


def test_initialise_has_the_spread_of_torch(generator):
    network = functionalise(nn.Linear(100, 400))
    drawn = network.initialise(generator)["weight"]
    # uniform on ±1/√100: standard deviation 0.1/√3 over 40 000 draws, six standard errors
    assert float(drawn.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert float(drawn.abs().max()) <= 0.1


def test_initialise_refuses_what_cannot_be_drawn_anew():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            return inputs * self.scale

    network = functionalise(Bare())
    with pytest.raises(CosetError, match="no reset_parameters"):
        network.initialise(torch.Generator())


def test_cumulative_batch_norm_is_refused():
    with pytest.raises(CosetError, match="momentum=None"):
        functionalise(nn.BatchNorm1d(3, momentum=None))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(
    "make", [lambda: nn.utils.weight_norm(nn.Linear(2, 1)), lambda: nn.LazyLinear(2)]
)
def test_modules_that_cannot_be_copied_are_named(make):
    with pytest.raises(CosetError, match="cannot be copied"):
        functionalise(make())


def test_several_inputs_go_in_as_a_tuple():
    network = functionalise(nn.Bilinear(2, 3, 1))
    inputs = torch.randn(4, 2), torch.randn(4, 3)
    assert network.apply({}, inputs).shape == (4, 1)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_wrapped_modules_are_what_is_inside(wrap):
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    wrapped, inputs = wrap(module), torch.randn(4, 3)
    network = functionalise(wrapped)
    assert network.layout.names == functionalise(module).layout.names
    torch.testing.assert_close(network.apply(network.weights, inputs), module(inputs))
    assign(wrapped, {name: torch.zeros_like(w) for name, w in weights_of(wrapped).items()})
    assert not module[0].weight.any()


def test_what_is_no_module_or_holds_no_numbers_is_named():
    with pytest.raises(CosetError, match="got a NoneType as the module"):
        functionalise(None)
    with pytest.raises(CosetError, match="got the class Linear as the module"):
        weights_of(nn.Linear)
    with pytest.raises(CosetError, match="got a module with 'weight' on the meta device"):
        functionalise(nn.Linear(2, 1, device="meta"))


def test_parameters_without_entries_come_along():
    module = nn.Linear(2, 3)
    module.register_parameter("none", nn.Parameter(torch.zeros(0, 2)))
    network = functionalise(module)
    assert network.layout.names == ("weight", "bias")
    assert network.frozen == ("none",)
