"""Likelihoods: how outputs of a network and targets meet.

Outputs have shape ``(n, c)``, or ``(n, c, *pixels)`` for dense tasks; there a log-probability is
the sum over an example's pixels, and Hessians have shape ``(n, *pixels, c, c)``.
"""

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from coset.errors import CosetError, told

LinkName = Literal["softmax", "sigmoid", "linear", "other"]
UnknownNoise = Literal["size", "covariance"]
Missing = Literal["refuse", "nan"]
"""What targets that are NaN mean: a mistake, or that nothing was measured there."""


class Likelihood(Protocol):
    """What a likelihood ``p(target | output)`` has at least.

    All else that inference and prediction need of it is a member of :class:`FullLikelihood`, or is
    found by autograd (:mod:`coset.bayes.defaults`): right for densities that are twice
    differentiable and log-concave in the outputs.  Others are refused by methods that need
    curvature.
    """

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Log-probability of each example, with all constants; zero for a masked target."""
        ...

    def mean(self, outputs: Tensor) -> Float[Tensor, "n k *pixels"]:
        """Mean of the target: class probabilities, or the regression mean."""
        ...

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuses outputs and targets that do not belong together."""
        ...


class FullLikelihood(Likelihood, Protocol):
    """All that a likelihood may say of itself; each member may be left out by itself."""

    @property
    def link(self) -> LinkName:
        """How the mean follows from the outputs; ``"linear"`` stands for regression."""
        ...

    @property
    def is_concave(self) -> bool:
        """Whether the log-probability is concave in the outputs, for every target."""
        ...

    @property
    def has_constant_curvature(self) -> bool:
        """Whether it is a parabola in the outputs: Gaussian noise of one covariance."""
        ...

    @property
    def unknown_noise(self) -> UnknownNoise | None:
        """What of the noise is to be learnt: its ``"size"`` (:class:`ScaledNoise`), or nothing."""
        ...

    def weight(self, targets: Tensor) -> Tensor | None:
        """How much each target counts, in the shape of the targets; ``None``: all alike."""
        ...

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """Expected Hessian of the negative log-probability in the outputs (never negative)."""
        ...

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c r"]:
        """A root ``R`` of the Hessian, ``R Rᵀ = H``."""
        ...

    def noise_variance(self, outputs: Tensor) -> Float[Tensor, "n k *pixels"] | None:
        """Variance of the target given the outputs, for regression; else nothing."""
        ...


class ScaledNoise(Likelihood, Protocol):
    """A likelihood whose noise can be learnt: its ``unknown_noise`` is ``"size"``."""

    def with_noise(self, std: float) -> Likelihood:
        """The same with noise of a known size."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Classes by a softmax of the outputs: ``log p(y | f) = f_y - log Σ exp f``.

    Attributes:
        ignore: A label that has no say, such as that of void pixels.

    >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    >>> Categorical(ignore=255).log_prob(torch.zeros(1, 4, 2), torch.tensor([[2, 255]])).exp()
    tensor([0.2500])
    """

    link: ClassVar[LinkName] = "softmax"
    is_concave: ClassVar[bool] = True
    has_constant_curvature: ClassVar[bool] = False
    unknown_noise: ClassVar[UnknownNoise | None] = None
    ignore: int | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.ignore, Integral) and not isinstance(self.ignore, bool)
        if self.ignore is not None and not whole:
            raise CosetError(
                f"got ignore={self.ignore!r}", "needed a label, a whole number", "or leave it out"
            )

    def weight(self, targets: Tensor) -> Tensor | None:
        """One for each label that counts, zero for those to ignore."""
        return None if self.ignore is None else targets != self.ignore

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Log-probability of the class of each example, summed over pixels that count."""
        labels, counts = targets.long(), self.weight(targets)
        if counts is None:
            return -_sum_pixels(functional.cross_entropy(outputs, labels, reduction="none"))
        known = torch.where(counts, labels, 0)
        losses = functional.cross_entropy(outputs, known, reduction="none")
        return -_sum_pixels(torch.where(counts, losses, 0.0))

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``diag(π) - π πᵀ`` with ``π`` the softmax."""
        probabilities = _classes_last(outputs).softmax(-1)
        outer = probabilities.unsqueeze(-1) * probabilities.unsqueeze(-2)
        return torch.diag_embed(probabilities) - outer

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``diag(√π) - π √πᵀ``: exact, one column a class."""
        probabilities = _classes_last(outputs).softmax(-1)
        roots = probabilities.sqrt()
        return torch.diag_embed(roots) - probabilities.unsqueeze(-1) * roots.unsqueeze(-2)

    def sum_of_hessians(
        self, outputs: Float[Tensor, "n c"], weight: Float[Tensor, "n 1"]
    ) -> Float[Tensor, "c c"]:
        """``diag(Σ w π) - Σ w π πᵀ``."""
        chances = outputs.softmax(1)
        weighted = weight * chances
        return torch.diag(weighted.sum(0)) - chances.mT @ weighted

    def hessian_along(
        self, outputs: Float[Tensor, "n c"], basis: Float[Tensor, "c k"]
    ) -> Float[Tensor, "n k"]:
        """``bᵀ B b``: the variance of ``b`` over the classes."""
        chances = outputs.softmax(1)
        return (chances @ basis.square() - (chances @ basis).square()).clamp_min(0)

    def mean(self, outputs: Tensor) -> Tensor:
        """The softmax."""
        return outputs.softmax(1)

    def noise_variance(self, outputs: Tensor) -> None:
        """Classes have no noise variance."""
        return

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Labels are whole numbers below the number of outputs."""
        _check_outputs(outputs)
        expected = (outputs.shape[0], *outputs.shape[2:])
        if tuple(targets.shape) != expected:
            raise CosetError(
                f"got targets of shape {tuple(targets.shape)} for outputs of shape "
                f"{tuple(outputs.shape)}",
                f"needed class labels of shape {expected}",
                _shape_advice(outputs, targets),
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            between = targets.is_floating_point() and bool((targets != targets.round()).any())
            raise CosetError(
                f"got targets of type {targets.dtype}" + (", not all whole" if between else ""),
                "needed whole numbers, the class labels",
                "resize labels by their nearest neighbours, not by interpolation; or use another "
                "likelihood"
                if between
                else "use targets.long(), or another likelihood",
            )
        counts = self.weight(targets)
        labels = targets if counts is None else targets[counts]
        if not labels.numel():
            return
        low, high = int(labels.min()), int(labels.max())
        if not 0 <= low <= high < outputs.shape[1]:
            raise CosetError(
                f"got labels from {low} to {high}",
                f"needed labels from 0 to {outputs.shape[1] - 1}, one a class",
                self._advice(low, high, outputs),
            )

    @staticmethod
    def _advice(low: int, high: int, outputs: Tensor) -> str:
        if outputs.shape[1] == 1:
            return "pass likelihood=Bernoulli() for yes or no"
        if outputs.dim() == 2:
            return "check the labels or the number of outputs"
        void = high if low >= 0 else low
        return (
            f"pass likelihood=Categorical(ignore={void}) if {void} marks pixels without a label, "
            "or check the number of outputs"
        )


@dataclass(frozen=True)
class Bernoulli:
    """Independent yes-or-no targets, one an output: ``p(1 | f) = 1 / (1 + exp(-f))``.

    Attributes:
        missing: ``"nan"``: targets that are NaN have no say.

    >>> Bernoulli().log_prob(torch.zeros(1, 2), torch.ones(1, 2)).exp()
    tensor([0.2500])
    """

    link: ClassVar[LinkName] = "sigmoid"
    is_concave: ClassVar[bool] = True
    has_constant_curvature: ClassVar[bool] = False
    unknown_noise: ClassVar[UnknownNoise | None] = None
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        _check_missing(self.missing)

    def weight(self, targets: Tensor) -> Tensor | None:
        """One for each target that is there, zero for those that are missing."""
        return _there(targets, self.missing)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Sum over outputs (and pixels) of the log-probabilities."""
        targets, there = _known_targets(outputs, targets, self.missing)
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return -_sum_pixels(losses if there is None else torch.where(there, losses, 0.0))

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``diag(π (1 - π))``."""
        return self.hessian_root(outputs).square()

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``diag(√(π (1 - π)))``."""
        logits = _classes_last(outputs)
        # from both log-sigmoids, so that saturated outputs keep their tiny curvature
        log_variance = functional.logsigmoid(logits) + functional.logsigmoid(-logits)
        return torch.diag_embed((log_variance / 2).exp())

    def mean(self, outputs: Tensor) -> Tensor:
        """The probability of one."""
        return outputs.sigmoid()

    def noise_variance(self, outputs: Tensor) -> None:
        """Yes-or-no targets have no noise variance."""
        return

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets are zeros and ones in the shape of the outputs."""
        _check_outputs(outputs)
        values, there = _known_targets(outputs, targets, self.missing)
        if there is None:
            _check_none_missing(values, self)
        if not ((values == 0) | (values == 1)).all():
            raise CosetError("got targets other than 0 and 1", "needed yes-or-no targets")


@dataclass(frozen=True)
class GaussianNoise:
    """Targets are outputs plus Gaussian noise: ``log p(y | f) = log N(y; f, std²)``.

    Attributes:
        std: Standard deviation, one or one per output.  ``None``: learnt by the method that fits.
        missing: ``"nan"``: targets that are NaN have no say.

    >>> likelihood = GaussianNoise(std=2.0)
    >>> likelihood.log_prob(torch.zeros(1, 1), torch.zeros(1, 1)).exp() * 2 * math.sqrt(2 * math.pi)
    tensor([1.])
    """

    link: ClassVar[LinkName] = "linear"
    is_concave: ClassVar[bool] = True
    has_constant_curvature: ClassVar[bool] = True
    std: float | Tensor | None = None
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        _check_missing(self.missing)
        if self.std is not None and not _are_positive(self.std):
            raise CosetError(
                f"got a noise of {told(self.std)}", "needed a positive standard deviation, finite"
            )

    @property
    def unknown_noise(self) -> UnknownNoise | None:
        """The size, where none is given."""
        return "size" if self.std is None else None

    def with_noise(self, std: float) -> "GaussianNoise":
        """The same with noise of a known size."""
        return replace(self, std=std)

    def weight(self, targets: Tensor) -> Tensor | None:
        """One for each target that is there, zero for those that are missing."""
        return _there(targets, self.missing)

    def known_std(self, outputs: Tensor) -> Tensor:
        """The standard deviation, one an output, ready to broadcast over ``(n, c, *pixels)``."""
        if self.std is None:
            raise CosetError(
                "got Gaussian noise of unknown size",
                "needed a standard deviation here",
                "give GaussianNoise(std=…), or let coset.fit learn it",
            )
        std = torch.as_tensor(self.std, dtype=outputs.dtype, device=outputs.device)
        if std.dim() > 1 or (std.dim() == 1 and std.shape[0] not in (1, outputs.shape[1])):
            raise CosetError(
                f"got noise of shape {tuple(std.shape)} for {outputs.shape[1]} outputs",
                "needed one standard deviation, or one an output",
            )
        return std.expand(outputs.shape[1]).reshape(-1, *([1] * (outputs.dim() - 2)))

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Sum over outputs (and pixels) of the Gaussian log-densities."""
        std = self.known_std(outputs)
        targets, there = _known_targets(outputs, targets, self.missing)
        scores = (targets - outputs) / std
        densities = -0.5 * scores.square() - std.log() - 0.5 * math.log(2 * math.pi)
        return _sum_pixels(densities if there is None else torch.where(there, densities, 0.0))

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``I / std²``, constant."""
        return self.hessian_root(outputs).square()

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """``I / std``."""
        return torch.diag_embed(_classes_last((1 / self.known_std(outputs)).expand_as(outputs)))

    def mean(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs

    def noise_variance(self, outputs: Tensor) -> Tensor:
        """``std²``."""
        return self.known_std(outputs).square().expand_as(outputs)

    def estimate(self, outputs: Tensor, targets: Tensor) -> "GaussianNoise":
        """Noise of the size of the residuals (maximum likelihood), one for all outputs."""
        targets, there = _known_targets(outputs, targets, self.missing)
        squares = (targets - outputs).square()
        mean = squares.mean() if there is None else squares[there].mean()
        return replace(self, std=float(mean.sqrt().clamp_min(1e-12)))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Targets are finite numbers in the shape of the outputs."""
        _check_outputs(outputs)
        _check_numbers(outputs, targets, self)


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """The network gives the mean and the log-variance of each target.

    Outputs have ``2 k`` channels, first the means ``μ``, then ``s = log σ²``.

    Attributes:
        missing: ``"nan"``: targets that are NaN have no say.

    >>> outputs = torch.tensor([[1.0, 0.0]])
    >>> HeteroscedasticGaussian().mean(outputs).tolist()
    [[1.0]]
    """

    link: ClassVar[LinkName] = "linear"
    is_concave: ClassVar[bool] = False
    has_constant_curvature: ClassVar[bool] = False
    unknown_noise: ClassVar[UnknownNoise | None] = None
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        _check_missing(self.missing)

    def weight(self, targets: Tensor) -> Tensor | None:
        """One for each target that is there, zero for those that are missing."""
        return _there(targets, self.missing)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Sum over targets (and pixels) of the Gaussian log-densities."""
        mean, log_variance = outputs.chunk(2, dim=1)
        targets, there = _known_targets(mean, targets, self.missing)
        squared = (targets - mean).square() * (-log_variance).exp()
        densities = -0.5 * (squared + log_variance + math.log(2 * math.pi))
        return _sum_pixels(densities if there is None else torch.where(there, densities, 0.0))

    def hessian(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """Fisher information: ``1 / σ²`` for a mean, ``1 / 2`` for a log-variance."""
        return self.hessian_root(outputs).square()

    def hessian_root(self, outputs: Tensor) -> Float[Tensor, "n *pixels c c"]:
        """Square roots of the Fisher information."""
        _, log_variance = outputs.chunk(2, dim=1)
        half = torch.full_like(log_variance, math.sqrt(0.5))
        return torch.diag_embed(_classes_last(torch.cat([(-log_variance / 2).exp(), half], dim=1)))

    def mean(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return outputs.chunk(2, dim=1)[0]

    def noise_variance(self, outputs: Tensor) -> Tensor:
        """``exp s``."""
        return outputs.chunk(2, dim=1)[1].exp()

    def predictive_variance(
        self, mean: Float[Tensor, "n c"], covariance: Float[Tensor, "n c c"]
    ) -> Float[Tensor, "n k"]:
        """Of a target where the outputs are Gaussian: ``E exp s = exp(s + ½ var s)`` adds noise."""
        means, logs = covariance.diagonal(dim1=1, dim2=2).chunk(2, dim=1)
        return means + self.noise_variance(mean) * (logs / 2).exp()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """There are two outputs a target."""
        _check_outputs(outputs)
        if outputs.shape[1] % 2:
            raise CosetError(
                f"got {outputs.shape[1]} outputs", "needed two a target: mean and log-variance"
            )
        _check_numbers(self.mean(outputs), targets, self)


def _shape_advice(outputs: Tensor, targets: Tensor) -> str:
    """What to do about labels of another shape."""
    count, pixels = outputs.shape[0], outputs.shape[2:]
    if pixels and targets.shape == outputs.shape:
        return "use targets.argmax(1) for labels as zeros and a one, or another likelihood"
    if pixels and tuple(targets.shape) == (count, 1, *pixels):
        return "use targets[:, 0]"
    if pixels and tuple(targets.shape) in {(count, *pixels, 3), (count, 3, *pixels)}:
        return "turn the palette of colours into one label a pixel first"
    if pixels and targets.dim() == 1 + len(pixels):
        return "resize labels by their nearest neighbours, or give the pictures they belong to"
    return "pass likelihood=GaussianNoise() for regression, Bernoulli() for yes or no"


def _sum_pixels(losses: Tensor) -> Float[Tensor, " n"]:
    return losses.flatten(1).sum(1) if losses.dim() > 1 else losses


def _are_positive(values: float | Tensor) -> bool:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):  # no numbers
        return False
    return bool((tensor > 0).all()) and bool(tensor.isfinite().all())


def _classes_last(outputs: Tensor) -> Tensor:
    return outputs.movedim(1, -1)


def _like_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape and type of the outputs; one output may come without its axis."""
    targets = targets.to(outputs.dtype)
    if targets.shape == outputs.shape:
        return targets
    if outputs.shape[1] == 1 and targets.shape == (outputs.shape[0], *outputs.shape[2:]):
        return targets.unsqueeze(1)
    raise CosetError(
        f"got targets of shape {tuple(targets.shape)}",
        f"needed {tuple(outputs.shape)}, as the outputs",
    )


def _check_outputs(outputs: Tensor) -> None:
    if outputs.dim() < 2:
        raise CosetError(
            f"got outputs of shape {tuple(outputs.shape)}",
            "needed (n, c), or (n, c, *pixels)",
            "let the network keep its output axis",
        )


def _check_missing(missing: object) -> None:
    if missing not in ("refuse", "nan"):
        raise CosetError(
            f"got missing={missing!r}", "needed 'refuse' or 'nan'", "choose one of the two"
        )


def _there(targets: Tensor, missing: Missing) -> Bool[Tensor, "n ..."] | None:
    """Which targets are there; ``None``: all have to be."""
    return None if missing == "refuse" else ~targets.isnan()


def _known_targets(
    outputs: Tensor, targets: Tensor, missing: Missing
) -> tuple[Tensor, Bool[Tensor, "n ..."] | None]:
    """Targets in the shape of the outputs, zero where they are missing, and where they are not."""
    targets = _like_outputs(outputs, targets)
    there = _there(targets, missing)
    return (targets, None) if there is None else (torch.where(there, targets, 0.0), there)


def _check_numbers(
    outputs: Tensor,
    targets: Tensor,
    likelihood: "GaussianNoise | HeteroscedasticGaussian",
) -> None:
    values, there = _known_targets(outputs, targets, likelihood.missing)
    if there is None:
        _check_none_missing(values, likelihood)
    if not values.isfinite().all():
        raise CosetError("got targets that are not finite", "needed finite numbers")


def _check_none_missing(
    values: Tensor, likelihood: "Bernoulli | GaussianNoise | HeteroscedasticGaussian"
) -> None:
    if values.isnan().any():
        raise CosetError(
            "got targets that are not finite: NaN",
            "needed finite numbers",
            f"pass likelihood={type(likelihood).__name__}(missing='nan') if NaN marks what was not "
            "measured",
        )


_IMPLEMENTATIONS: tuple[FullLikelihood, ...] = (
    Categorical(),
    Bernoulli(),
    GaussianNoise(),
    HeteroscedasticGaussian(),
)
