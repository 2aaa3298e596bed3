"""The statistical problem: likelihood, prior, data."""

from coset.bayes.batches import Batches as Batches
from coset.bayes.batches import as_batches as as_batches
from coset.bayes.likelihood import Bernoulli as Bernoulli
from coset.bayes.likelihood import Categorical as Categorical
from coset.bayes.likelihood import GaussianNoise as GaussianNoise
from coset.bayes.likelihood import HeteroscedasticGaussian as HeteroscedasticGaussian
from coset.bayes.likelihood import Likelihood as Likelihood
from coset.bayes.prior import GaussianPrior as GaussianPrior
from coset.bayes.problem import Problem as Problem
