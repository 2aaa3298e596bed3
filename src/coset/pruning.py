"""Pruning by a posterior: which weights can be set to zero."""

from dataclasses import replace
from typing import Literal, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from coset.alignment.gaussians import Distribution, Marginals, as_matched
from coset.alignment.match import match
from coset.errors import CosetError, require_kind
from coset.posterior.families import PointMass
from coset.posterior.predict import MonteCarlo
from coset.predictor import Predictor
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.layout import Layout
from coset.weights.stacking import check_fit

Score = Literal["sigma", "signal"]


def prune(
    predictor: Predictor,
    keep: float,
    *,
    score: Score = "sigma",
    weights: Weights | None = None,
    group: SymmetryGroup | None = None,
) -> Predictor:
    """One network with a fraction of its weights, the others zero; nothing is trained again.

    All weights and biases are ranked together.  ``"sigma"`` keeps those of the smallest posterior
    standard deviation (Xiao, Liu and Bamler 2023), ``"signal"`` those of the largest
    ``|mean| / std`` (Graves 2011, Blundell et al. 2015).

    Args:
        predictor: Its posterior gives means and standard deviations of all weights.
        keep: The fraction of the weights kept, more than 0 and at most 1.
        score: What ranks them.
        weights: Another network to prune by this ranking; ``None``: the posterior's mean.
        group: The symmetries, by which the other network is first matched to the mean: the ranking
            is of units in the mean's order.

    Returns:
        A predictor of that one network.

    Raises:
        CosetError: If the posterior has no spread, or the fraction is none.

    >>> from torch import nn
    >>> from coset import Categorical, LowRankGaussian, functionalise
    >>> mean, std = torch.tensor([[3.0], [1.0]]), torch.tensor([[3.0], [0.5]])
    >>> posterior = LowRankGaussian({"weight": mean}, {"weight": std})
    >>> net = functionalise(nn.Linear(1, 2, bias=False))
    >>> whole = Predictor(net, posterior, Categorical())
    >>> prune(whole, 0.5).posterior.weights["weight"].flatten().tolist()
    [0.0, 1.0]
    """
    require_kind(Predictor, predictor=predictor)
    require_kind(Score, score=score)
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise CosetError(f"got keep={keep!r}", "needed a fraction of the weights, in (0, 1]")
    marginals = as_matched(cast(Distribution, predictor.posterior), "posterior")  # or refused
    if isinstance(marginals, dict):
        marginals = _of_members(marginals, predictor)
    layout = predictor.network.layout
    mean = {**predictor.network.weights, **marginals.mean}
    kept = layout.unflatten(_kept(marginals, layout, keep, score).float())
    moved = mean if weights is None else _moved(predictor, weights, group, mean)
    pruned = {
        name: tensor * kept[name].to(tensor) if name in kept else tensor
        for name, tensor in moved.items()
    }
    return replace(predictor, posterior=PointMass(pruned), rule=MonteCarlo())


def _of_members(members: Weights, predictor: Predictor) -> Marginals:
    """Means and standard deviations of a finite posterior, divisor ``m − 1``."""
    counts = {
        len(tensor)
        for name, tensor in members.items()
        if tensor.dim() > predictor.network.weights[name].dim()
    }
    if not counts or counts == {1}:
        raise CosetError(
            "got a posterior of one network",
            "needed standard deviations to rank the weights by",
            "give a Gaussian, or several samples: fit(method=RebasedGaussian(...))",
        )
    return Marginals(
        {name: tensor.mean(0) for name, tensor in members.items()},
        {name: tensor.std(0) for name, tensor in members.items()},
    )


def _kept(marginals: Marginals, layout: Layout, keep: float, score: Score) -> Bool[Tensor, " p"]:
    """Which entries of the flat vector stay; of equal scores the first."""
    std = layout.flatten(marginals.std)
    if score == "sigma":
        order = std.argsort(stable=True)
    else:
        size = layout.flatten(marginals.mean).abs()
        # no spread and no mean: nothing is known of it
        order = (size / std).nan_to_num(nan=0.0).argsort(descending=True, stable=True)
    kept = torch.zeros(layout.size, dtype=torch.bool)
    kept[order[: max(1, round(keep * layout.size))]] = True
    return kept


def _moved(
    predictor: Predictor, weights: Weights, group: SymmetryGroup | None, mean: Weights
) -> Weights:
    """Other weights in the order of the posterior's mean."""
    if group is None:
        raise CosetError(
            "got weights without the group of their network",
            "needed the symmetries, to bring them into the order of the posterior",
            "give group=discover(module, example)",
        )
    check_fit(weights, predictor.network.weights, what="weights")
    return match(group, weights, to=mean).weights
