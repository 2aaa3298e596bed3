"""How prior precisions and noise are found: the settings of the search."""

from dataclasses import dataclass, replace
from typing import Literal

from coset.bayes.batches import Data
from coset.bayes.defaults import is_concave
from coset.bayes.likelihood import LinkName
from coset.bayes.problem import Problem
from coset.curvature.tangent import HessianAt, Mean
from coset.errors import require_counts, require_kinds
from coset.inference.laplace.groups import Grouping
from coset.vocabulary import Weights


@dataclass(frozen=True)
class ByEvidence:
    """Finds prior precisions and noise by maximising the evidence, without validation data.

    Attributes:
        mean: Where the evidence is taken.  ``"tangent"``: at the mode ``θ*`` of the tangent model,
            for which it is the evidence; ``"network"``: at the trained weights, as is common, and
            usually far too small a precision; ``"newton"``: one Newton step from them, which also
            stands for the mode with :class:`coset.HeteroscedasticGaussian` noise, but for
            :class:`coset.MatrixFree`: there the search may shrink the noise of single data to zero.
        form: ``"full"``: ``f + J (θ - θ̃)``; ``"simple"``: ``J θ``; ``"auto"``: full for regression,
            simple for classes.
        hessian: Output curvature at the ``"tangent"`` mode or at the ``"network"``; ``"auto"``: the
            mode for classes, where a network sure of its training data has almost none.  With
            Gaussian noise it is the same everywhere, and always taken at the network.
        groups: Which weights share a precision; ``"normalised"`` gives one to each scale that a
            norm divides out and one to all other weights.
        noise: Whether noise without a value (:class:`coset.GaussianNoise`,
            :class:`coset.MultivariateNoise`) is tuned as well; otherwise it is that of the
            network's own residuals.  It is never smaller than these, around which predictions lie,
            even where a network that is not trained to its end has a tangent model that fits
            better.
        validation: Held-out data that may shrink the covariance by one factor in [0, 1]; 0 is the
            network by itself.
        steps: How often mode and precisions are found in turn.  ``None``: to convergence for
            regression, five times for classes.
    """

    mean: Mean = "tangent"
    form: Literal["auto", "full", "simple"] = "auto"
    hessian: HessianAt = "auto"
    groups: Grouping = "normalised"
    noise: bool = True
    validation: "Data | None" = None
    steps: int | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        if self.steps is not None:
            require_counts(0, steps=self.steps)

    def settled(self, link: LinkName) -> "ByEvidence":
        """Without ``"auto"``, for a likelihood with this link."""
        regression = link == "linear"
        at_network = regression or self.mean != "tangent"
        form = ("full" if at_network else "simple") if self.form == "auto" else self.form
        hessian = self.hessian
        if regression or hessian == "auto":
            hessian = "network" if at_network else "tangent"
        return replace(self, form=form, hessian=hessian)

    def with_safe_mean(
        self, problem: Problem, weights: Weights
    ) -> tuple["ByEvidence", tuple[str, ...]]:
        """With one Newton step where a tangent model may have no mode, and a note that says so.

        The log-likelihood of a mean and its log-variance is not concave: where the tangent model
        meets a target, its log-variance falls until only a small prior holds it.
        """
        if self.mean != "tangent":
            return self, ()
        if is_concave(problem.likelihood, *problem.first_outputs(weights)):
            return self, ()
        note = (
            "evidence after one Newton step: the log-likelihood is not concave in the outputs "
            "(as with noise by input), so the mode is not safe to seek"
        )
        return replace(self, mean="newton"), (note,)
