"""The mode sought in a span, against Newton's method with the whole matrix."""

from dataclasses import replace

import pytest
import torch
from curvature_networks import build

from coset import GaussianNoise, linearise
from coset.curvature.subspace import Span, approach
from coset.linalg import Dense, Diagonal

pytestmark = pytest.mark.usefixtures("double")


def problem(likelihood=None, rows=12):
    module, inputs = build("convolutions", rows)
    outputs = module(inputs).detach()
    targets = outputs.argmax(1) if likelihood is None else outputs + torch.randn_like(outputs)
    return linearise(module, (inputs, targets), likelihood)


@pytest.mark.parametrize("form", ["full", "simple"])
@pytest.mark.parametrize("likelihood", [None, GaussianNoise(0.3)])
def test_many_directions_reach_the_mode(form, likelihood):
    tangent = problem(likelihood)
    precision = torch.full((tangent.layout.size,), 2.0)
    expected = tangent.find_mode(precision, form)
    near = Diagonal(torch.full((tangent.layout.size,), 0.1))
    span = Span.at(tangent.start(form))
    found = approach(tangent, precision, span, near, tolerance=0, directions=30)
    best = float(tangent.log_joint(expected, precision))
    assert abs(float(tangent.log_joint(found.point, precision)) - best) < 1e-4 * abs(best)


def test_the_exact_inverse_needs_one_direction():
    """Least squares: one Newton step is the mode, whatever else lies in the span."""
    tangent = problem(GaussianNoise(0.5))
    precision = torch.rand(tangent.layout.size) + 1
    curvature = tangent.exact_curvature().matmat(torch.eye(tangent.layout.size))
    near = Dense(torch.linalg.inv(curvature + torch.diag(precision)))
    span = Span.at(tangent.start("full"))
    span = approach(tangent, precision, span, near, directions=1)
    torch.testing.assert_close(span.point.flat, tangent.find_mode(precision).flat)
    other = 3 * precision
    near = Dense(torch.linalg.inv(curvature + torch.diag(other)))
    span = approach(tangent, other, span, near, directions=1)
    torch.testing.assert_close(span.point.flat, tangent.find_mode(other).flat)


def test_outputs_follow_the_weights_and_the_objective_falls():
    tangent = problem()
    near = Diagonal(torch.full((tangent.layout.size,), 0.05))
    span, last = Span.at(tangent.start("simple")), float("-inf")
    for scale in (0.5, 0.5, 0.5):
        precision = torch.full((tangent.layout.size,), scale)
        span = approach(tangent, precision, span, near, tolerance=0, directions=2)
        point = span.point
        expected = (tangent.jacobian @ point.flat).reshape(point.outputs.shape)
        torch.testing.assert_close(point.outputs, expected)
        value = float(tangent.log_joint(point, precision))
        assert value > last
        last = value


def test_few_directions_are_kept_and_the_search_goes_on(monkeypatch):
    monkeypatch.setattr("coset.curvature.subspace._MOST", 4)
    tangent = problem()
    precision = torch.full((tangent.layout.size,), 2.0)
    near = Diagonal(torch.full((tangent.layout.size,), 0.1))
    span = Span.at(tangent.start("full"))
    span = approach(tangent, precision, span, near, tolerance=0, directions=40)
    assert len(span.place) <= 4
    best = float(tangent.log_joint(tangent.find_mode(precision), precision))
    assert abs(float(tangent.log_joint(span.point, precision)) - best) < 1e-3 * abs(best)


def test_units_of_the_weights_do_not_matter():
    """Weights in other units with an inverse that follows: the same outputs."""
    tangent = problem()
    units = torch.rand(tangent.layout.size) + 0.5
    precision = torch.full((tangent.layout.size,), 2.0)
    jacobian = replace(tangent.jacobian, matrix=tangent.jacobian.matrix / units)
    other = replace(tangent, jacobian=jacobian)
    near = torch.full((tangent.layout.size,), 0.1)
    first = approach(tangent, precision, Span.at(tangent.start("simple")), Diagonal(near))
    second = approach(
        other, precision / units**2, Span.at(other.start("simple")), Diagonal(near * units**2)
    )
    torch.testing.assert_close(first.point.outputs, second.point.outputs)
