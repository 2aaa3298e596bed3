"""The tangent model of a module, as a user asks for it."""

from torch import nn

from coset.bayes.batches import Data
from coset.bayes.likelihood import Categorical, Likelihood
from coset.bayes.problem import Problem
from coset.curvature.tangent import Tangent, tangent_of


def linearise(
    module: nn.Module,
    train: Data,
    likelihood: Likelihood | None = None,
    *,
    subset: str | tuple[str, ...] = (),
) -> Tangent:
    """The tangent linear model of a trained module.

    Args:
        module: The network; evaluation mode is used, and it is not changed.
        train: A pair ``(inputs, targets)``, a ``Dataset`` or a ``DataLoader``.
        likelihood: Classes unless told otherwise.
        subset: A shell pattern of the parameters to include, or several; all without.

    >>> import torch
    >>> from coset import GaussianNoise
    >>> net = nn.Linear(1, 1, bias=False)
    >>> data = torch.ones(1, 1), torch.ones(1, 1)
    >>> tangent = linearise(net, data, GaussianNoise(1.0))
    >>> tangent.mode(1.0)["weight"]  # least squares with weight 1 on 1 and weight 1 on 0
    tensor([[0.5000]])
    """
    problem = Problem.of(module, train, likelihood=likelihood or Categorical())
    network = problem.network
    patterns = (subset,) if isinstance(subset, str) else subset
    layout = network.layout.select(*patterns) if patterns else network.layout
    return tangent_of(problem, network.weights, layout)
