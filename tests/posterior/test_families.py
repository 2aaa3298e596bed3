import pytest
import torch

from coset import CosetError, Mixture, PointMass, Posterior, Samples
from coset.posterior import Finite

STACK = {"w": torch.arange(4.0).reshape(4, 1), "s": torch.arange(4.0)}


def point(value):
    return PointMass({"w": torch.full((1,), value)})


def test_families_keep_their_promises():
    for family in (point(1.0), Samples(STACK), Mixture((point(1.0),))):
        assert isinstance(family, Posterior)
    assert isinstance(point(1.0), Finite)
    assert isinstance(Samples(STACK), Finite)


def test_a_point_repeats_itself(generator):
    drawn = point(2.0).sample(3, generator=generator)
    assert drawn["w"].tolist() == [[2], [2], [2]]
    assert point(2.0).layout.shapes == ((1,),)


def test_as_many_draws_as_members_give_each_once(generator):
    for draws, most in ((4, 1), (3, 1), (9, 3)):
        drawn = Samples(STACK).sample(draws, generator=generator)
        assert drawn["w"].shape == (draws, 1)
        assert torch.equal(drawn["w"][:, 0], drawn["s"])
        assert torch.bincount(drawn["s"].long()).max() == most


def test_weighted_members_are_drawn_by_weight(generator):
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = Samples(STACK, shares.log()).sample(20_000, generator=generator)
    found = torch.bincount(drawn["s"].long(), minlength=4) / 20_000
    # six standard errors of a share
    assert ((found - shares).abs() < 6 * (shares * (1 - shares) / 20_000).sqrt()).all()


def test_a_mixture_shares_draws_out_by_weight(generator):
    mixture = Mixture((point(0.0), point(1.0), point(2.0)), torch.tensor([0.5, 0.25, 0.25]).log())
    drawn = mixture.sample(8, generator=generator)["w"].flatten()
    assert torch.bincount(drawn.long()).tolist() == [4, 2, 2]
    for draws in range(1, 20):
        assert mixture.sample(draws, generator=generator)["w"].shape == (draws, 1)


def test_at_least_one_draw(generator):
    for family in (point(1.0), Samples(STACK), Mixture((point(1.0),))):
        with pytest.raises(CosetError, match="draws=0"):
            family.sample(0, generator=generator)


def test_equal_seeds_give_equal_draws():
    first, second = (
        Samples(STACK).sample(6, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert torch.equal(first["w"], second["w"])
