"""Metrics: pure functions on tensors, one file a theme."""

from coset.metrics.agreement import agreement, total_variation
from coset.metrics.bootstrap import bootstrap_standard_error
from coset.metrics.calibration import (
    ReliabilityBins,
    adaptive_calibration_error,
    adaptive_reliability,
    classwise_calibration_error,
    expected_calibration_error,
    reliability,
)
from coset.metrics.catalogue import CATALOGUE, Metric
from coset.metrics.conformal import conformal_quantile, set_coverage
from coset.metrics.correlation import DiversityCorrelation, diversity_correlation
from coset.metrics.dense import (
    DepthErrors,
    boundary_band,
    class_intersection_over_union,
    confusion,
    depth_errors,
    mean_intersection_over_union,
    peak_signal_to_noise,
    pixel_calibration_error,
    structural_similarity,
)
from coset.metrics.detection import aupr, auroc, fpr_at_95
from coset.metrics.discrepancy import (
    Discrepancies,
    DiscrepancyTest,
    discrepancies,
    discrepancy_test,
    layer_discrepancies,
    maximum_mean_discrepancy,
    stack_discrepancies,
)
from coset.metrics.diversity import disagreement, entropy, mutual_information
from coset.metrics.evaluation import evaluate
from coset.metrics.exchangeability import (
    Exchangeability,
    UnitLaws,
    compare_unit_laws,
    exchangeability,
)
from coset.metrics.kernels import Kernel, gaussian, inverse_multiquadric, laplace, matern
from coset.metrics.outliers import energy_score, maximum_logit_score, maximum_probability_score
from coset.metrics.pairwise import (
    PairSample,
    pairwise_mutual_information,
    sample_pairwise_mutual_information,
)
from coset.metrics.regression import (
    QuantileCalibration,
    continuous_ranked_probability_score,
    gaussian_negative_log_likelihood,
    interval_coverage,
    interval_coverages,
    quantile_calibration,
    quantile_calibration_error,
    root_mean_squared_error,
)
from coset.metrics.running import Running
from coset.metrics.scores import accuracy, brier, negative_log_likelihood
from coset.metrics.selective import RiskCoverage, area_under_risk_coverage, risk_coverage
from coset.metrics.sparsification import (
    Sparsification,
    area_under_sparsification,
    sparsification,
)
from coset.metrics.temperature import (
    fit_temperature,
    fit_variance_factor,
    fit_vector_scaling,
    scale_temperature,
)

__all__ = [
    "CATALOGUE",
    "DepthErrors",
    "Discrepancies",
    "DiscrepancyTest",
    "DiversityCorrelation",
    "Exchangeability",
    "Kernel",
    "Metric",
    "PairSample",
    "QuantileCalibration",
    "ReliabilityBins",
    "RiskCoverage",
    "Running",
    "Sparsification",
    "UnitLaws",
    "accuracy",
    "adaptive_calibration_error",
    "adaptive_reliability",
    "agreement",
    "area_under_risk_coverage",
    "area_under_sparsification",
    "aupr",
    "auroc",
    "bootstrap_standard_error",
    "boundary_band",
    "brier",
    "class_intersection_over_union",
    "classwise_calibration_error",
    "compare_unit_laws",
    "conformal_quantile",
    "confusion",
    "continuous_ranked_probability_score",
    "depth_errors",
    "disagreement",
    "discrepancies",
    "discrepancy_test",
    "diversity_correlation",
    "energy_score",
    "entropy",
    "evaluate",
    "exchangeability",
    "expected_calibration_error",
    "fit_temperature",
    "fit_variance_factor",
    "fit_vector_scaling",
    "fpr_at_95",
    "gaussian",
    "gaussian_negative_log_likelihood",
    "interval_coverage",
    "interval_coverages",
    "inverse_multiquadric",
    "laplace",
    "layer_discrepancies",
    "matern",
    "maximum_logit_score",
    "maximum_mean_discrepancy",
    "maximum_probability_score",
    "mean_intersection_over_union",
    "mutual_information",
    "negative_log_likelihood",
    "pairwise_mutual_information",
    "peak_signal_to_noise",
    "pixel_calibration_error",
    "quantile_calibration",
    "quantile_calibration_error",
    "reliability",
    "risk_coverage",
    "root_mean_squared_error",
    "sample_pairwise_mutual_information",
    "scale_temperature",
    "set_coverage",
    "sparsification",
    "stack_discrepancies",
    "structural_similarity",
    "total_variation",
]
