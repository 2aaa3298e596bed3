"""Tomography: images from projections, with error bars."""

from coset.tomography.noise import Poisson as Poisson
from coset.tomography.phantoms import Simulated as Simulated
from coset.tomography.phantoms import simulate as simulate
from coset.tomography.scans import FanBeam as FanBeam
from coset.tomography.scans import ParallelBeam as ParallelBeam
from coset.tomography.scans import Scan as Scan
