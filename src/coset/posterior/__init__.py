"""Posterior families and what one does with them."""

from coset.posterior.families import Finite as Finite
from coset.posterior.families import FitReport as FitReport
from coset.posterior.families import Mixture as Mixture
from coset.posterior.families import PointMass as PointMass
from coset.posterior.families import Posterior as Posterior
from coset.posterior.families import Samples as Samples
from coset.posterior.predict import MonteCarlo as MonteCarlo
from coset.posterior.predict import PredictionRule as PredictionRule
from coset.posterior.predict import Predictions as Predictions
