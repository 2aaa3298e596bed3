import pytest
import torch

from coset.weights.randomness import drawn_by, own_randomness


def test_torchs_own_generator_is_put_back_after_an_error():
    state = torch.get_rng_state()

    def fail_after_a_draw():
        with own_randomness(3):
            torch.rand(3)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail_after_a_draw()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_draws_nothing_by_itself_runs_once():
    generator, runs = torch.Generator().manual_seed(3), []

    def run():
        runs.append(1)
        return torch.rand(2, generator=generator)

    found = drawn_by(generator, run)
    assert len(runs) == 1
    assert torch.equal(found, torch.rand(2, generator=torch.Generator().manual_seed(3)))


def test_what_draws_by_itself_is_drawn_by_the_generator():
    def found(seed):
        generator = torch.Generator().manual_seed(seed)
        return [
            drawn_by(generator, lambda: torch.rand(2) + torch.rand(2, generator=generator))
            for _ in range(2)
        ]

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = found(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert all(map(torch.equal, found(3), first))
    assert not torch.equal(*first)
    assert not torch.equal(found(4)[0], first[0])
