"""Symmetries of a network's weights: found, acted with, checked, removed."""

from coset.symmetry.check import symmetry_error as symmetry_error
from coset.symmetry.discover import discover as discover
from coset.symmetry.elements import Element as Element
from coset.symmetry.elements import PermutationFactor as PermutationFactor
from coset.symmetry.elements import Pinned as Pinned
from coset.symmetry.elements import ScaleInvariance as ScaleInvariance
from coset.symmetry.elements import ScalingFactor as ScalingFactor
from coset.symmetry.elements import Site as Site
from coset.symmetry.group import SymmetryGroup as SymmetryGroup
