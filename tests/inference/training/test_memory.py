"""Recordings that keep their memory give the numbers of the program they were made of."""

import pytest
import torch
from torch.nn import functional

from coset.inference.training.memory import keep_memory
from coset.inference.training.recording import record, shorten
from coset.inference.training.writing import write_down

FUNCTIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "elu": functional.elu,
    "leaky": functional.leaky_relu,
    "sine": torch.sin,
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def network(function):
    """Loss and gradient of two layers with a residual, all chains at once."""

    def program(weights, inputs, targets):
        with torch.enable_grad():
            leaf = weights.detach().requires_grad_()
            first = torch.bmm(leaf, inputs)
            hidden = function(first)
            outputs = torch.baddbmm(first, leaf.mT, hidden) + hidden
            losses = functional.cross_entropy(outputs, targets, reduction="none").sum(1)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    return program


def cases(seed):
    targets = torch.randint(4, (3, 6), generator=seeded(seed))
    return numbers(3, 4, 4, seed=seed), numbers(3, 4, 6, seed=seed + 1), targets


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_replays_are_the_program(function, lasting):
    program = network(function)
    replay = record(program, cases(0), lasting=lasting)
    assert replay is not program
    for seed in (2, 4, 2):  # what one replay leaves in memory does not reach the next
        for found, wanted in zip(replay(*cases(seed)), program(*cases(seed)), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize(
    "cut",
    [
        *(lambda w: w[..., -2:], lambda w: w[:, 1:3], lambda w: w[:, ::2], lambda w: w[..., 1::2]),
        *(lambda w: w[2:], lambda w: w[..., :0], lambda w: w[:, -9:9]),
    ],
)
def test_gradients_of_slices_are_zero_elsewhere(cut, lasting):
    def program(weights, factor):
        with torch.enable_grad():
            leaf, other = weights.detach().requires_grad_(), factor.detach().requires_grad_()
            loss = (cut(leaf).square() * other).sum() + (other * other).sum()
            found = torch.autograd.grad(loss, [leaf, other])
        return (torch.cat([piece.flatten() for piece in found]),)

    replay = record(program, (numbers(3, 4, 5), numbers(1)), lasting=lasting)
    assert replay is not program
    for seed in (2, 4, 2):
        given = numbers(3, 4, 5, seed=seed), numbers(1, seed=seed + 1)
        torch.testing.assert_close(replay(*given), program(*given), rtol=1e-12, atol=1e-12)


def test_results_last_unless_they_need_not():
    given, later = numbers(4, 4, seed=2), numbers(4, 4, seed=3)
    for lasting in (True, False):
        replay = record(lambda x: (torch.mm(x, x),), [numbers(4, 4)], lasting=lasting)
        (first,) = replay(given)
        replay(later)
        assert torch.equal(first, given @ given) is lasting


def test_arguments_are_never_written_into():
    replay = record(lambda x: ((torch.relu(x) * x).neg().exp(),), [numbers(5)])
    given = numbers(5, seed=1)
    before = given.clone()
    replay(given)
    assert torch.equal(given, before)


def test_a_value_read_across_is_not_overwritten_while_it_is_read():
    def program(x):  # the sum ends both the product and its transpose
        square = torch.mm(x, x)
        return (torch.mm(square.T + square, x),)

    given = numbers(5, 5, seed=1)
    (found,) = record(program, [numbers(5, 5)])(given)
    torch.testing.assert_close(found, program(given)[0])


def test_places_are_used_again():
    def program(x):
        for _ in range(6):
            x = torch.tanh(torch.mm(x, x))
        return (x,)

    graph = write_down(program, [numbers(4, 4)])
    keep_memory(graph, lasting=True)
    places = {
        getattr(graph, node.target).data_ptr()
        for node in graph.graph.nodes
        if node.op == "get_attr"
    }
    assert len(places) == 2  # a product cannot be written over its factors, its tanh can
    given = numbers(4, 4, seed=3)
    torch.testing.assert_close(graph(given)[0], program(given)[0])


def test_views_are_taken_once_of_what_comes_again():
    def program(x):
        return (torch.mm(x.view(2, 8).T, x.view(2, 8)).view(64),)

    replay = record(program, [numbers(16)], again=True)
    assert replay is not program
    given = numbers(16, seed=1)
    for change in (0.0, 1.0, 2.0):  # other numbers in the same tensor
        given.add_(change)
        torch.testing.assert_close(replay(given)[0], program(given)[0])
    for seed in (2, 3):  # and other tensors
        torch.testing.assert_close(
            replay(numbers(16, seed=seed))[0], program(numbers(16, seed=seed))[0]
        )
    torch.testing.assert_close(replay(given)[0], program(given)[0])


def test_a_result_may_be_a_view_of_an_argument():
    replay = record(lambda x: (x.view(2, 2), x, x.exp().T), [numbers(4, 1)], again=True)
    given = numbers(4, 1, seed=1)
    wanted = given.view(2, 2), given, given.exp().T
    for found, value in zip(replay(given), wanted, strict=True):
        torch.testing.assert_close(found, value)


def test_losses_that_nobody_asks_for_are_not_computed():
    def gradient(x, targets):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            loss = functional.cross_entropy(leaf, targets, reduction="none").sum()
            return torch.autograd.grad(loss, leaf)

    examples = numbers(5, 3), torch.arange(5) % 3
    graph = write_down(gradient, examples)
    before = [str(node.target) for node in graph.graph.nodes]
    shorten(graph)
    after = [str(node.target) for node in graph.graph.nodes]
    assert "aten.nll_loss_forward.default" in before
    assert "aten.nll_loss_forward.default" not in after
    graph.recompile()
    torch.testing.assert_close(graph(*examples)[0], gradient(*examples)[0])


def _join(x, *, change=None):
    """A product and its sums side by side, of which one may be changed afterwards."""
    square = torch.mm(x, x)
    sums = square.sum(0, keepdim=True)
    joined = torch.cat([square.view(1, -1), sums], dim=1)
    if change is not None:
        {"join": joined, "part": square}[change].add_(1.0)
    return joined, square.clone(), torch.mm(square, x)


def _twice(x):
    square = torch.mm(x, x).flatten()
    return torch.cat([square, x.exp().flatten()]), torch.cat([x.sin().flatten(), square])


JOINS = {
    "in a row": (_join, 0),
    "changed": (lambda x: _join(x, change="join"), 1),
    "part changed": (lambda x: _join(x, change="part"), 1),
    "in two rows": (lambda x: (torch.cat([torch.mm(x, x), x.exp()], dim=1),), 1),
    "along the last": (lambda x: (torch.cat([torch.mm(x, x).flatten(), x.exp()[0]], dim=-1),), 1),
    "one below the other": (lambda x: (torch.cat([torch.mm(x, x), x.exp()]),), 0),
    "the same twice": (lambda x: (torch.cat([torch.mm(x, x)] * 2),), 1),
    "turned": (lambda x: (torch.cat([torch.mm(x, x).T, x.exp()]),), 1),
    "an argument": (lambda x: (torch.cat([torch.mm(x, x), x]),), 1),
    "in two joins": (_twice, 1),
}


@pytest.mark.parametrize("name", JOINS)
def test_what_is_joined_is_made_in_its_place_where_that_changes_nothing(name):
    program, left = JOINS[name]
    graph = write_down(program, [numbers(4, 4)])
    keep_memory(graph, lasting=False)
    assert sum(node.target is torch.cat for node in graph.graph.nodes) == left
    replay = record(program, [numbers(4, 4)], lasting=False)
    assert replay is not program
    for seed in (2, 3, 2):
        for found, wanted in zip(
            replay(numbers(4, 4, seed=seed)), program(numbers(4, 4, seed=seed)), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_what_follows_from_steady_arguments_is_computed_once():
    def program(x, steady):
        return (torch.mm(x, steady.exp() + 1),)

    replay = record(program, [numbers(3, 3), numbers(3, 3)], again=True, steady=1)
    x, steady = numbers(3, 3, seed=1), numbers(3, 3, seed=2)
    (wanted,) = program(x, steady)
    torch.testing.assert_close(replay(x, steady)[0], wanted)
    x.mul_(2)
    torch.testing.assert_close(replay(x, steady)[0], 2 * wanted)
    steady.add_(1)  # against the promise, and so not seen
    torch.testing.assert_close(replay(x, steady)[0], 2 * wanted)
    other = steady.clone()
    torch.testing.assert_close(replay(x, other)[0], program(x, other)[0])


def test_a_steady_value_that_is_written_into_is_computed_again():
    def program(x, steady):
        return (steady.exp().add_(x),)

    replay = record(program, [numbers(3), numbers(3)], again=True, steady=1)
    assert replay is not program
    x, steady = numbers(3, seed=1), numbers(3, seed=2)
    for _ in range(3):
        torch.testing.assert_close(replay(x, steady)[0], program(x, steady)[0])
