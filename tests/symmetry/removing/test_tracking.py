"""Orders along training."""

import pytest
import torch
from tests.symmetry.discovered import discovered, repeated, seeded
from torch import nn

from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.removing.canonical import canonicalise
from coset.symmetry.removing.tracking import track_order
from coset.weights.network import weights_of


def test_orders_made_by_hand() -> None:
    """Rows 4 3 2 1, then the first two swapped, then a cycle of three, which stays."""
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    group = discover(net, torch.zeros(1, 1))
    orders = [[4.0, 3, 2, 1], [3.0, 4, 2, 1], [3.0, 2, 4, 1], [3.0, 2, 4, 1]]
    along = [{**weights_of(net), "0.weight": torch.tensor(o).unsqueeze(1)} for o in orders]
    track = track_order(group, along, steps=[0, 10, 20, 30])["0"]
    assert track.ranks.tolist() == [[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 0, 3], [1, 2, 0, 3]]
    assert track.changed.tolist() == [0.5, 0.5, 0.0]
    assert track.transpositions.tolist() == [0, 1, 2, 2]
    assert int(track.final) == 20


@pytest.mark.parametrize("name", ["relu_mlp", "attention_grouped_queries", "shufflenet"])
def test_ranks_say_where_units_go(name: str) -> None:
    """A canonical point has the identity; after an element, ranks are its tables."""
    found = discovered(name)
    group = found.group
    canonical = canonicalise(group, found.double)
    element = group.sample(generator=seeded(0))
    moved = group.act(element, canonical)
    for factor in group.permutations:
        track = track_order(group, [canonical, moved, canonical])[factor.name]
        assert torch.equal(track.ranks[0], torch.arange(factor.size).expand(track.ranks[0].shape))
        assert torch.equal(track.ranks[1], element.permutations[factor.name])
        assert int(track.transpositions[0]) == int(track.transpositions[2]) == 0


def test_stacks_are_followed_member_by_member() -> None:
    found = discovered("family_optunet")
    group = found.group
    first = repeated(found.double, 3)
    later = group.act(group.sample(generator=seeded(1), members=3), first)
    tracks = track_order(group, [first, later, later])
    for factor in group.permutations:
        track = tracks[factor.name]
        assert track.changed.shape == (2, 3)
        assert track.transpositions.shape == (3, 3)
        assert (track.changed[1] == 0).all()
        assert (track.final <= 1).all()


def test_bad_input_is_refused() -> None:
    found = discovered("relu_mlp")
    with pytest.raises(CosetError, match="no checkpoints"):
        track_order(found.group, [])
    with pytest.raises(CosetError, match="steps"):
        track_order(found.group, [found.weights], steps=[1, 2])
