"""Metrics: pure functions on tensors, one file a theme."""

from coset.metrics.calibration import ReliabilityBins, expected_calibration_error, reliability
from coset.metrics.detection import auroc
from coset.metrics.diversity import entropy, mutual_information
from coset.metrics.scores import accuracy, brier, negative_log_likelihood

__all__ = [
    "ReliabilityBins",
    "accuracy",
    "auroc",
    "brier",
    "entropy",
    "expected_calibration_error",
    "mutual_information",
    "negative_log_likelihood",
    "reliability",
]
