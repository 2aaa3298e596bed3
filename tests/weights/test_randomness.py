"""Draws of users' code come from a generator of their thread, and never from torch's own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional

from coset.weights.randomness import (
    DRAWING,
    drawn_by,
    draws_so_far,
    own_draws,
    own_randomness,
    own_state,
    set_own_state,
)

ROWS = torch.ones(2, 1, 6, 6)
DRAWS = {
    "rand": lambda: torch.rand(3),
    "rand of a type": lambda: torch.rand((3,), dtype=torch.float64, device="cpu"),
    "randn": lambda: torch.randn(2, 3),
    "randint": lambda: torch.randint(9, (4,)),
    "randint from": lambda: torch.randint(2, 9, (4,)),
    "randperm": lambda: torch.randperm(9),
    "like": lambda: torch.randn_like(ROWS) + torch.rand_like(ROWS) + torch.randint_like(ROWS, 9),
    "methods": lambda: ROWS.clone().normal_() + ROWS.clone().uniform_() + ROWS.clone().random_(),
    "aten": lambda: torch.ops.aten.randn_like.default(ROWS),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 3),
    "distributions": lambda: torch.distributions.Gamma(2.0, 1.0).sample((3,)),
    "initialisation": lambda: nn.init.kaiming_uniform_(torch.zeros(4, 3)),
    "orthogonal": lambda: nn.init.orthogonal_(torch.zeros(4, 4)),
    "dropout": lambda: functional.dropout(ROWS, 0.5),
    "dropout of channels": lambda: functional.dropout2d(ROWS, 0.5),
    "alpha dropout": lambda: functional.alpha_dropout(ROWS, 0.5, training=True),
    "leaks": lambda: functional.rrelu(-ROWS, training=True),
    "gumbel": lambda: functional.gumbel_softmax(ROWS),
    "pooling": lambda: functional.fractional_max_pool2d(torch.arange(36.0).view(1, 6, 6), 2, 4),
    "attention": lambda: functional.scaled_dot_product_attention(ROWS, ROWS, ROWS, dropout_p=0.5),
    "low rank": lambda: torch.svd_lowrank(torch.arange(64.0).view(8, 8), q=2, niter=0)[0],
}


def layers():
    torch.manual_seed(5)
    lstm, attention = nn.LSTM(3, 3, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5)
    return {
        "recurrent": lambda: lstm(torch.ones(2, 2, 3))[0],
        "many heads": lambda: attention(*[torch.ones(2, 2, 4)] * 3)[0],
    }


@pytest.mark.parametrize("name", [*DRAWS, "recurrent", "many heads"])
def test_draws_are_those_of_torchs_own_generator_with_that_seed(name):
    draw = {**DRAWS, **layers()}[name]
    torch.manual_seed(3)
    expected = [draw(), draw()]
    torch.manual_seed(4)
    state = torch.get_rng_state()
    with own_randomness(3) as own, own_draws():
        found = [draw(), draw()]
    assert all(map(torch.equal, found, expected))
    assert own.draws >= 2
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_under_vmap_are_given_the_generator_too():
    def draw(row):
        with own_draws():
            return row + torch.randn_like(row) + functional.dropout(row, 0.5)

    state = torch.get_rng_state()
    rows = torch.zeros(4, 3)
    found = []
    for seed in (3, 3, 4):
        with own_randomness(seed):
            found.append(torch.func.vmap(draw, randomness="different")(rows))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_every_operation_that_torch_says_draws_is_known():
    """All of them but kernels, which no module calls by themselves."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space != "aten":
            continue
        operation = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default", None)
        tags = getattr(operation, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags or any(
            argument.name == "generator" for argument in schema.arguments
        ):
            found.add(name)
    assert {name for name in found - DRAWING if not name.startswith("_")} <= {"miopen_rnn"}


def test_a_generator_that_was_given_is_used():
    generator = torch.Generator().manual_seed(3)
    with own_randomness(0) as own, own_draws():
        found = torch.rand(2, generator=generator)
    assert torch.equal(found, torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert own.draws == 0


def test_without_randomness_of_its_own_a_thread_draws_from_torchs():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with own_draws():
        assert torch.equal(torch.rand(2), expected)
    assert draws_so_far() is None


def test_threads_do_not_see_each_others_generators():
    def draws(seed):
        with own_randomness(seed), own_draws():
            return torch.stack([torch.randn(3) for _ in range(50)])

    alone = [draws(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(draws, range(4)), alone))


def test_states_can_be_put_back():
    with own_randomness(3), own_draws():
        state = own_state()
        first = torch.rand(2)
        set_own_state(state)
        assert torch.equal(torch.rand(2), first)


def test_an_error_inside_leaves_the_randomness_that_was_there_before():
    def fail_after_a_draw():
        with own_randomness(3), own_draws():
            torch.rand(3)
            raise ValueError("stop")

    with own_randomness(0) as own:
        with pytest.raises(ValueError, match="stop"):
            fail_after_a_draw()
        with own_draws():
            torch.rand(3)
    assert own.draws == 1


def test_what_draws_nothing_by_itself_leaves_its_generator_alone():
    generator = torch.Generator().manual_seed(3)
    found = drawn_by(generator, lambda: torch.rand(2, generator=generator))
    assert torch.equal(found, torch.rand(2, generator=torch.Generator().manual_seed(3)))


def test_what_draws_by_itself_is_drawn_by_the_generator():
    def run(generator):
        with own_draws():
            return torch.rand(2) + torch.rand(2, generator=generator)

    def found(seed):
        generator = torch.Generator().manual_seed(seed)
        return [drawn_by(generator, lambda: run(generator)) for _ in range(2)]

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = found(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert all(map(torch.equal, found(3), first))
    assert not torch.equal(*first)
    assert not torch.equal(found(4)[0], first[0])
