import math

import pytest
import torch

from coset.errors import CosetError
from coset.inference import Constant, Cosine, OneCycle, Steps

STEPS = 40


def torch_factors(build):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = build(optimiser)
    factors = []
    for _ in range(STEPS):
        factors.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    return factors


def ours(schedule, last=STEPS):
    return [schedule.factor(step / last) for step in range(STEPS)]


def test_cosine_is_that_of_torch():
    reference = torch_factors(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.1)
    )
    assert ours(Cosine(final=0.1)) == pytest.approx(reference)


def test_steps_are_those_of_torch():
    reference = torch_factors(
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [STEPS // 2, 3 * STEPS // 4], 0.2)
    )
    assert ours(Steps(drop=0.2)) == pytest.approx(reference)


def test_one_cycle_is_that_of_torch():
    """Torch reaches the peak one step early and the end at the last step."""
    reference = torch_factors(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 1.0, STEPS, pct_start=0.4, cycle_momentum=False
        )
    )
    peak = (0.4 * STEPS - 1) / (STEPS - 1)
    assert ours(OneCycle(peak=peak), STEPS - 1) == pytest.approx(reference, abs=1e-6)


def test_warm_up_rises_in_a_line_to_the_full_rate():
    schedule = Cosine(warmup=0.25)
    assert [schedule.factor(done) for done in (0, 0.125, 0.25)] == [0, 0.5, 1]
    assert schedule.factor(0.625) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", [Constant(), Cosine(warmup=0.1), Steps(), OneCycle()])
def test_factors_are_between_zero_and_one(schedule):
    for done in torch.linspace(0, 1, 101).tolist():
        assert 0 <= schedule.factor(done) <= 1 + 1e-12
        assert math.isfinite(schedule.factor(done))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Cosine(warmup=-0.1),
        lambda: Cosine(final=2.0),
        lambda: Steps(at=(0.5, 1.5)),
        lambda: OneCycle(peak=1.5),
    ],
)
def test_fractions_outside_the_training_are_refused(build):
    with pytest.raises(CosetError, match="from 0 to 1"):
        build()
