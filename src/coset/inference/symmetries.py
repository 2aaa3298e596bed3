"""The symmetries by which samples of a problem's posterior may differ."""

from dataclasses import replace

import torch

from coset.bayes.problem import Problem
from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.elements import PermutationFactor, ScalingFactor
from coset.symmetry.group import SymmetryGroup


def symmetries(problem: Problem) -> SymmetryGroup:
    """The symmetries of a problem's network, traced on its first example.

    Without those that move frozen parameters, which all samples share as they are.
    """
    module = problem.network.module
    if module is None:
        raise CosetError(
            "got a network without its module, whose symmetries cannot be found",
            "needed one made by functionalise",
            "make the problem with functionalise(module), or use align=None",
        )
    group = discover(module, problem.train.rows(torch.arange(1))[0])
    return _leaving(group, set(problem.network.frozen)) if problem.network.frozen else group


def _leaving(group: SymmetryGroup, frozen: set[str]) -> SymmetryGroup:
    """The factors that leave some tensors, and the factors they live under, as they are."""

    def stays(factor: PermutationFactor | ScalingFactor) -> bool:
        return frozen.isdisjoint(site.tensor for site in factor.sites)

    kept = tuple(factor for factor in group.permutations if stays(factor))
    names = {factor.name for factor in kept}
    kept = tuple(factor for factor in kept if names.issuperset(factor.within))
    names = {factor.name for factor in kept}
    scalings = tuple(
        factor for factor in group.scalings if stays(factor) and names.issuperset(factor.within)
    )
    return replace(group, permutations=kept, scalings=scalings)
