"""Tomography: images from projections, with error bars."""

from coset.tomography.angles import ChosenAngles as ChosenAngles
from coset.tomography.angles import choose_angles as choose_angles
from coset.tomography.deep_image_prior import DeepImagePrior as DeepImagePrior
from coset.tomography.deep_image_prior import image_network as image_network
from coset.tomography.noise import Poisson as Poisson
from coset.tomography.phantoms import Simulated as Simulated
from coset.tomography.phantoms import simulate as simulate
from coset.tomography.priors import ByMarginalLikelihood as ByMarginalLikelihood
from coset.tomography.priors import NormalisedFeatures as NormalisedFeatures
from coset.tomography.priors import TotalVariationInformed as TotalVariationInformed
from coset.tomography.reconstruction import Reconstruction as Reconstruction
from coset.tomography.reconstruction import reconstruct as reconstruct
from coset.tomography.scans import FanBeam as FanBeam
from coset.tomography.scans import ParallelBeam as ParallelBeam
from coset.tomography.scans import Scan as Scan
