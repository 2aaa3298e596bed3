from itertools import permutations

import numpy as np
import pytest
import torch
from metric_cases import predictions

from coset.metrics import accuracy, area_under_risk_coverage, risk_coverage


def test_risk_by_hand(generator):
    p, y = predictions(50, 3, generator=generator)
    order = np.argsort(-p.max(1).values.numpy())
    wrong = (p.argmax(1) != y).numpy()[order]
    risks = [wrong[:k].mean() for k in range(1, 51)]
    curve = risk_coverage(p, y)
    np.testing.assert_allclose(curve.risk.numpy(), risks, atol=1e-14)
    assert float(curve.coverage[-1]) == 1
    assert float(area_under_risk_coverage(p, y)) == pytest.approx(np.mean(risks), abs=1e-14)
    assert float(curve.risk[-1]) == pytest.approx(1 - float(accuracy(p, y)))


def test_ties_count_with_the_mean_over_their_orders():
    p = torch.tensor([[0.8, 0.2]] * 3 + [[0.9, 0.1]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0])
    wrong = [0, 1, 1]
    areas = [
        np.mean([np.mean([0, *order][:k]) for k in range(1, 5)]) for order in permutations(wrong)
    ]
    assert float(area_under_risk_coverage(p, y)) == pytest.approx(np.mean(areas), abs=1e-14)
