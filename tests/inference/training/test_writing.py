"""Programs that are written down are run by what was written."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import vmap
from torch.nn import functional

from coset.inference.training.recording import record
from coset.inference.training.writing import write_down

CONSTANT, OTHER = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, 0.5, 2.0])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slope(x):
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad((leaf.tanh() * leaf).sum(), leaf)
    return (found,)


def two_constants(x):
    first, second = x.sin(), x.cos()
    both = first + CONSTANT + second
    del first, second
    return (both * OTHER,)


PROGRAMS = {
    "two constants": two_constants,
    "constant": lambda x: (x * CONSTANT + torch.ones(3),),
    "several results": lambda x: (*x.split(2, dim=-1), x),
    "in place": lambda x: (x.clone().mul_(2).add_(x),),
    "backward": slope,
    "vmap": lambda x: (vmap(lambda row: functional.softmax(row, 0).cumsum(0))(x),),
    "numbers": lambda x: (x.clamp(min=-0.5) * 2 - 1.5, x.mean(dim=0, keepdim=True)),
    "no result of some kind": lambda x: (
        torch.ops.aten.native_layer_norm_backward(
            x, x, [3], x[:, :1], x[:, :1], None, None, [True, False, False]
        )[0],
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_written_gives_the_same(program):
    graph = write_down(program, [numbers(4, 3)])
    given = numbers(4, 3, seed=1)
    for found, wanted in zip(graph(given), program(given), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_tensor_given_twice_is_two_arguments():
    one = numbers(3)
    graph = write_down(lambda a, b: (a - 2 * b,), [one, one])
    torch.testing.assert_close(graph(CONSTANT, one)[0], CONSTANT - 2 * one)


def test_threads_write_at_the_same_time():
    def written(seed):
        given = numbers(4, 3, seed=seed)
        return all(
            torch.equal(write_down(program, [numbers(4, 3)])(given)[0], program(given)[0])
            for program in PROGRAMS.values()
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(written, range(16)))


REFUSED = {
    "looks at a number": lambda x: (x * float(x.sum()),),
    "takes a branch": lambda x: (x if bool((x > 0).all()) else -x,),
    "shape from numbers": lambda x: (x[x > 0],),
    "random": lambda x: (x + torch.randn(3),),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_could_go_another_way_is_refused(program):
    with pytest.raises(ValueError, match="another result"):
        write_down(program, [numbers(3)])
    assert record(program, [numbers(3)]) is program
