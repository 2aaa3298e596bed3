"""Scores for out-of-distribution inputs: one number an input, larger for outliers.

The entropy of the mean prediction (``coset.metrics.entropy``) and the mutual information of the
members (``coset.metrics.mutual_information``) are such scores too.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from coset.errors import CosetError
from coset.metrics.checks import check_finite, check_floating, check_probabilities, check_shape


def maximum_probability_score(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """Minus the largest probability (Hendrycks and Gimpel 2017).

    >>> maximum_probability_score(torch.tensor([[0.25, 0.75]])).tolist()
    [-0.75]
    """
    check_probabilities("probabilities", probabilities)
    return -probabilities.amax(-1)


def maximum_logit_score(logits: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """Minus the largest logit (Hendrycks et al. 2022).

    >>> maximum_logit_score(torch.tensor([[1.0, 3.0]])).tolist()
    [-3.0]
    """
    _check_logits(logits)
    return -logits.amax(-1)


def energy_score(logits: Float[Tensor, "n c"], *, temperature: float = 1.0) -> Float[Tensor, " n"]:
    """The free energy −t log Σ_k exp(z_k / t) (Liu et al. 2020).

    >>> energy_score(torch.tensor([[0.0, 0.0]])).tolist()  # −log 2
    [-0.693...]
    """
    _check_logits(logits)
    if not temperature > 0:
        raise CosetError(f"temperature is {temperature}", "needed a positive number", "change it")
    return -temperature * torch.logsumexp(logits / temperature, -1)


def _check_logits(logits: Tensor) -> None:
    check_floating("logits", logits)
    check_shape("logits", logits, ("n", "c"))
    check_finite("logits", logits)
