"""Evaluation of whole posteriors: weights and predictions together."""

from coset.evaluation.quality import COLUMNS as COLUMNS
from coset.evaluation.quality import posterior_quality_table as posterior_quality_table
