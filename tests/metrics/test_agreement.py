import torch
from metric_cases import predictions

from coset.metrics import agreement, total_variation


def test_agreement_and_total_variation_by_hand(generator):
    p, _ = predictions(generator=generator)
    q, _ = predictions(generator=generator)
    same = [int(a.argmax() == b.argmax()) for a, b in zip(p, q, strict=True)]
    torch.testing.assert_close(agreement(p, q), torch.tensor(same).double().mean())
    # The largest difference of probability over events, found class by class.
    largest = (p - q).clamp_min(0).sum(1)
    torch.testing.assert_close(total_variation(p, q), largest.mean())


def test_a_reference_agrees_with_itself(generator):
    p, _ = predictions(generator=generator)
    assert agreement(p, p) == 1
    assert total_variation(p, p) == 0
