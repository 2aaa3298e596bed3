"""What is said of aligned samples; on whole runs, see the tests of the compact representation."""

import torch

from coset import FitReport, Mixture, PointMass, Samples
from coset.inference.alignment_report import chains_of, convergence, without_evidence


def chains(count):
    stack = {"w": torch.zeros(12, 2)}
    return Samples(stack, report=FitReport(diagnostics={"chains": float(count)}))


def test_chains_of_samples_and_of_mixtures_are_counted():
    assert chains_of(chains(3), 12) == 3
    assert chains_of(chains(5), 12) == 0  # as many draws of each, or they are none
    assert chains_of(Mixture((chains(1), chains(2))), 24) == 3
    assert chains_of(Mixture((chains(1), Samples({"w": torch.zeros(12, 2)}))), 24) == 0
    assert chains_of(PointMass({"w": torch.zeros(2)}), 1) == 0


def test_three_draws_say_nothing_of_convergence(generator):
    assert convergence(torch.randn(3, 2, 5, generator=generator)) == {"chains": 2.0}
    assert len(convergence(torch.randn(4, 2, 5, generator=generator))) == 3


def test_the_evidence_of_the_inner_posterior_is_left_out():
    report = FitReport(log_evidence=-3.0, diagnostics={"evidence_bound": -4.0, "loss": 1.0})
    assert without_evidence(report) == FitReport(diagnostics={"loss": 1.0})
