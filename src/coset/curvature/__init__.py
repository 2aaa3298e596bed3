"""Curvature of the likelihood: Jacobians, Gauss-Newton matrices and their stand-ins."""

from coset.curvature.kfac import KFAC as KFAC
from coset.curvature.low_rank import LowRank as LowRank
from coset.curvature.measure import Curvature as Curvature
from coset.curvature.measure import Measured as Measured
from coset.curvature.structures import DiagonalOnly as DiagonalOnly
from coset.curvature.structures import Full as Full
