import math
from itertools import combinations

import pytest
import torch
from metric_cases import ensemble
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from coset.errors import CosetError
from coset.metrics import disagreement, entropy, mutual_information


def test_entropy_is_that_of_scipy(generator):
    p = ensemble(1, generator=generator)[0]
    torch.testing.assert_close(entropy(p), torch.from_numpy(scipy_entropy(p.numpy(), axis=1)))


def test_mutual_information_of_two_is_the_jensen_shannon_divergence(generator):
    p, q = members = ensemble(2, generator=generator)
    expected = torch.from_numpy(jensenshannon(p.numpy(), q.numpy(), axis=1) ** 2)
    torch.testing.assert_close(mutual_information(members), expected, atol=1e-14, rtol=1e-9)


def test_mutual_information_is_the_mean_divergence_from_the_mean(generator):
    members = ensemble(7, generator=generator)
    mean = members.mean(0)
    expected = (members * (members / mean).log()).sum(-1).mean(0)
    torch.testing.assert_close(mutual_information(members), expected, atol=1e-13, rtol=0)


def test_blocks_give_the_same_as_one_piece(generator, monkeypatch):
    members = ensemble(3, 50, generator=generator)
    whole = mutual_information(members)
    monkeypatch.setattr("coset.metrics.diversity.BLOCK", 64)
    torch.testing.assert_close(mutual_information(members), whole)


def test_zeros_are_allowed():
    members = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])
    expected = scipy_entropy([0.75, 0.25, 0]) - scipy_entropy([0.5, 0.5]) / 2
    assert float(mutual_information(members)) == pytest.approx(expected, abs=1e-6)


def test_one_member_has_no_mutual_information(generator):
    assert mutual_information(ensemble(1, generator=generator)).abs().max() < 1e-12


def test_float32_is_close_to_float64(generator):
    members = ensemble(16, 500, 100, generator=generator)
    error = mutual_information(members.float()) - mutual_information(members)
    assert error.abs().max() < 5e-6


def test_disagreement_pair_by_pair(generator):
    members = ensemble(5, generator=generator)
    answers = members.argmax(-1)
    pairs = [(answers[i] != answers[j]).double().mean() for i, j in combinations(range(5), 2)]
    torch.testing.assert_close(disagreement(members), torch.stack(pairs).mean())


def test_gradients_flow_through_entropy_and_mutual_information(generator):
    logits = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: mutual_information(z.softmax(-1)), (logits,))
    assert torch.autograd.gradcheck(lambda z: entropy(z[0].softmax(-1)), (logits,))


def test_weights_of_members_count_as_copies(generator):
    members = ensemble(3, 20, 4, generator=generator)
    copies = torch.cat([members, members[:1]])
    log_weights = torch.tensor([0.5, 0.25, 0.25]).log()
    found = mutual_information(members, log_weights)
    torch.testing.assert_close(found, mutual_information(copies), atol=1e-6, rtol=1e-6)
    hard = torch.nn.functional.one_hot(members.argmax(-1), 4).double()  # with zeros
    expected = mutual_information(torch.cat([hard, hard[:1]]))
    torch.testing.assert_close(
        mutual_information(hard, log_weights), expected, atol=1e-6, rtol=1e-6
    )


def test_pairs_weigh_the_product_of_their_members(generator):
    members, weights = ensemble(4, 30, 3, generator=generator), torch.tensor([0.4, 0.3, 0.2, 0.1])
    answers = members.argmax(-1)
    pairs = list(combinations(range(4), 2))
    shares = torch.tensor([float(weights[i] * weights[j]) for i, j in pairs])
    apart = torch.tensor([float((answers[i] != answers[j]).double().mean()) for i, j in pairs])
    expected = float((shares * apart).sum() / shares.sum())
    assert float(disagreement(members, weights.log())) == pytest.approx(expected)
    equal = torch.zeros(4)
    assert disagreement(members, equal) == disagreement(members)
    alone = torch.tensor([0.0, *[-math.inf] * 3])  # nobody is left to disagree with
    assert float(disagreement(members, alone)) == 0
    assert float(mutual_information(members, alone).max()) < 1e-12


def test_weights_that_do_not_belong_to_the_members_are_named(generator):
    with pytest.raises(CosetError, match=r"log_weights has shape \(2,\) for 3 members"):
        mutual_information(ensemble(3, generator=generator), torch.zeros(2))
