"""What inference asks of a likelihood beyond its density, mean and check, with defaults.

A likelihood may answer each question by a member of that name (:class:`coset.FullLikelihood`).
Where it has none, the answer is found by autograd from ``log_prob`` and ``mean``, which is right
for densities that are twice differentiable and log-concave in the outputs; what is not is refused
by name.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import Likelihood, LinkName, UnknownNoise
from coset.errors import CosetError

_PROBED = 32
"""Examples on which a question of yes or no is decided."""


def weight_of(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """How much each output counts, ready to broadcast against the outputs; ``None``: all do.

    A weight of zero masks a target out: it has no say in the log-probability, the Hessian, the
    noise, and the number of targets.
    """
    found: Callable[[Tensor], Tensor | None] | None = getattr(likelihood, "weight", None)
    weight = None if found is None else found(targets)
    if weight is None:
        return None
    weight = weight.to(outputs)
    if weight.shape == outputs.shape:
        return weight
    if weight.shape == (len(outputs), *outputs.shape[2:]):
        return weight.unsqueeze(1)
    repeats = outputs.shape[1] // weight.shape[1]  # several outputs a target
    return torch.cat([weight] * repeats, dim=1)


def count_targets(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> float:
    """How many outputs have a target that counts, each by its weight."""
    weight = weight_of(likelihood, outputs, targets)
    return float(outputs.numel() if weight is None else weight.expand_as(outputs).double().sum())


def residuals(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """``√w (y - f)``; zero where a target is masked out, whatever stands there."""
    weight = weight_of(likelihood, outputs, targets)
    found = targets.reshape(outputs.shape) - outputs
    return found if weight is None else torch.where(weight > 0, found * weight.sqrt(), 0)


def unknown_noise(likelihood: Likelihood) -> UnknownNoise | None:
    """Which part of the noise the method that fits has to find, if any."""
    found: UnknownNoise | None = getattr(likelihood, "unknown_noise", None)
    return found


def with_noise(likelihood: Likelihood, std: float) -> Likelihood:
    """The same likelihood with noise of a known size, where it has any to learn."""
    assert hasattr(likelihood, "with_noise"), "its unknown_noise is its size"
    known: Likelihood = likelihood.with_noise(std)
    return known


def link_of(likelihood: Likelihood, outputs: Tensor) -> LinkName:
    """How the mean of the target depends on the outputs.

    ``"linear"`` means a regression, ``"softmax"`` classes, ``"sigmoid"`` yes or no; everything else
    is ``"other"``.  A likelihood that does not say is tried on random outputs.

    >>> class Mine:
    ...     def mean(self, outputs):
    ...         return outputs.sigmoid()
    >>> link_of(Mine(), torch.zeros(1, 3))
    'sigmoid'
    """
    told: LinkName | None = getattr(likelihood, "link", None)
    if told is not None:
        return told
    first, second = _probes(outputs)
    try:
        mean = likelihood.mean(first)
        middle = (mean + likelihood.mean(second)) / 2
        if _same(likelihood.mean((first + second) / 2), middle):
            return "linear"
    except Exception:  # outputs are not those of this likelihood
        return "other"
    if _same(mean, first.sigmoid()):
        return "sigmoid"
    return "softmax" if _same(mean, first.softmax(1)) else "other"


def gives_probabilities(likelihood: Likelihood, outputs: Tensor) -> bool:
    """Whether the mean of the target is that of classes, or of yes or no."""
    link = link_of(likelihood, outputs)
    if link != "other":
        return link != "linear"
    try:
        mean = likelihood.mean(_probes(outputs)[0])
    except Exception:  # outputs are not those of this likelihood
        return False
    several = mean.shape[1] > 1 and bool((mean >= 0).all())
    return several and _same(mean.sum(1), torch.ones_like(mean.sum(1)))


def hessian(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor
) -> Float[Tensor, "n *pixels c c"]:
    """Hessian of the negative log-probability in the outputs, of each example and pixel.

    The likelihood's own, which is the expected one, or that at the targets, by autograd.
    """
    own: Callable[[Tensor], Tensor] | None = getattr(likelihood, "hessian", None)
    if own is not None:
        return _weighed(own(outputs), likelihood, outputs, targets, sides=2)
    if hasattr(likelihood, "hessian_root"):
        root = hessian_root(likelihood, outputs, targets)
        return root @ root.mT
    return _hessian_by_autograd(likelihood, outputs, targets)


def hessian_root(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor
) -> Float[Tensor, "n *pixels c r"]:
    """A root ``R Rᵀ`` of :func:`hessian`."""
    own: Callable[[Tensor], Tensor] | None = getattr(likelihood, "hessian_root", None)
    if own is not None:
        return _weighed(own(outputs), likelihood, outputs, targets, sides=1)
    return _root(hessian(likelihood, outputs, targets), likelihood, outputs)


def sum_of_hessians(
    likelihood: Likelihood, outputs: Float[Tensor, "n c"], targets: Tensor
) -> Float[Tensor, "c c"] | None:
    """``Σ_n B_n`` without the single ones, where the likelihood has a formula for it."""
    own: Callable[[Tensor, Tensor], Tensor] | None = getattr(likelihood, "sum_of_hessians", None)
    if own is None:
        return None
    weight = weight_of(likelihood, outputs, targets)
    return own(outputs, outputs.new_ones(1, 1) if weight is None else weight)


def hessian_along(
    likelihood: Likelihood,
    outputs: Float[Tensor, "n c"],
    targets: Tensor,
    basis: Float[Tensor, "c k"],
) -> Float[Tensor, "n k"] | None:
    """``bᵀ B_n b`` without the matrices, where the likelihood has a formula for it."""
    own: Callable[[Tensor, Tensor], Tensor] | None = getattr(likelihood, "hessian_along", None)
    if own is None:
        return None
    weight = weight_of(likelihood, outputs, targets)
    found: Tensor = own(outputs, basis)
    return found if weight is None else found * weight


def is_concave(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the log-probability is concave in the outputs, so that a search for a mode ends."""
    told: bool | None = getattr(likelihood, "is_concave", None)
    if told is not None:
        return told
    try:
        found = _second_derivatives(likelihood, outputs[:_PROBED], targets[:_PROBED])
    except CosetError:  # no second derivatives: those that the likelihood gives are taken
        return True
    return not _is_indefinite(found)


def has_constant_curvature(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the log-density is a parabola in the outputs, and targets are Gaussian around them.

    Then the tangent model has a posterior in closed form.
    """
    told: bool | None = getattr(likelihood, "has_constant_curvature", None)
    if told is not None:
        return told
    if link_of(likelihood, outputs) != "linear":
        return False
    few, labels = outputs[:_PROBED].detach(), targets[:_PROBED]
    moved = few + _like_normal(few) * (1 + few.abs().mean())
    try:
        here = _second_derivatives(likelihood, few, labels)
        there = _second_derivatives(likelihood, moved, labels)
    except CosetError:
        return False
    return torch.allclose(here, there, rtol=1e-6 if few.dtype == torch.float64 else 1e-3)


@torch.no_grad()
def noise_variance(
    likelihood: Likelihood, outputs: Float[Tensor, "n c *pixels"]
) -> Float[Tensor, "n k *pixels"] | None:
    """Variance of the target given the outputs; ``None`` for classes, and where it is unknown.

    By default ``diag(M H⁻¹ Mᵀ)`` with ``M`` the derivative of the mean and ``H`` the Hessian, where
    that does not depend on the target: exact for exponential families in their natural parameters,
    such as Gaussian noise and counts of Poisson.  Of other densities it is unknown.
    """
    if unknown_noise(likelihood) is not None:
        return None
    own: Callable[[Tensor], Tensor | None] | None = getattr(likelihood, "noise_variance", None)
    if own is not None:
        given: Tensor | None = own(outputs)
        return given
    if gives_probabilities(likelihood, outputs):
        return None
    flat = outputs.movedim(1, -1).reshape(-1, outputs.shape[1])
    try:
        mean = likelihood.mean(flat)
        found = _second_derivatives(likelihood, flat, mean)
        other = _second_derivatives(likelihood, flat, mean + 1 + mean.abs().mean())
        if not torch.allclose(found, other, rtol=1e-4):
            return None
        slopes = derivative_of_mean(likelihood, flat)
        solved = torch.linalg.solve(found, slopes.mT)
    except Exception:  # not a density of any real target, or one without curvature
        return None
    variance: Tensor = (slopes * solved.mT).sum(-1)
    return variance.reshape(len(outputs), *outputs.shape[2:], -1).movedim(-1, 1)


def derivative_of_mean(
    likelihood: Likelihood, outputs: Float[Tensor, "n c"]
) -> Float[Tensor, "n k c"]:
    """``M``, of each example."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        mean = likelihood.mean(leaf)
        rows = [
            torch.autograd.grad(mean[:, k].sum(), leaf, retain_graph=True)[0]
            for k in range(mean.shape[1])
        ]
    return torch.stack(rows, dim=1)


def has_gradients(likelihood: Likelihood) -> bool:
    """Whether a parameter of the likelihood requires gradients.

    >>> from coset import GaussianNoise
    >>> has_gradients(GaussianNoise(torch.tensor(1.0, requires_grad=True)))
    True
    """
    values = getattr(likelihood, "__dict__", {}).values()
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)


def name_of(likelihood: Likelihood) -> str:
    """The name of its class."""
    return type(likelihood).__name__


def _probes(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Two small sets of random outputs as wide as those given."""
    shape = 3, *outputs.shape[1:2], *[1] * (outputs.dim() - 2)
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    probe = _like_normal(torch.empty(shape, dtype=dtype, device=outputs.device))
    return probe, 2 * probe.flip(0) + 0.5


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-5)


def _like_normal(like: Tensor) -> Tensor:
    """The same normal numbers every time."""
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return found.to(like)


def _weighed(
    found: Tensor, likelihood: Likelihood, outputs: Tensor, targets: Tensor, *, sides: int
) -> Tensor:
    weight = weight_of(likelihood, outputs, targets)
    if weight is None:
        return found
    rows = weight.movedim(1, -1).sqrt()
    found = found * rows.unsqueeze(-1)
    return found if sides == 1 else found * rows.unsqueeze(-2)


def _hessian_by_autograd(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    found = _second_derivatives(likelihood, outputs, targets)
    if _is_indefinite(found):
        raise _refusal(likelihood, "is not log-concave in the outputs")
    if not bool(found.any()):
        elsewhere = _like_normal(outputs)
        if not bool(_second_derivatives(likelihood, elsewhere, targets).any()):
            raise _refusal(likelihood, "has no second derivatives in the outputs")
    return found


def _second_derivatives(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """``-∂² log p / ∂f²`` of each example and pixel, without any that couple pixels."""
    graph = torch.is_grad_enabled() and has_gradients(likelihood)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = likelihood.log_prob(leaf, targets)
        if not value.requires_grad:
            raise _refusal(likelihood, "has no derivatives in the outputs")
        (slope,) = torch.autograd.grad(-value.sum(), leaf, create_graph=True)
        rows = [_pulled(slope[:, k].sum(), leaf, graph=graph) for k in range(outputs.shape[1])]
        found = torch.stack(rows, dim=-1).movedim(1, -2)  # n *pixels c c
        vector = _like_normal(outputs)
        wanted = _pulled((slope * vector).sum(), leaf, graph=False)
    if not bool(found.isfinite().all()):
        raise _refusal(likelihood, "has second derivatives that are not finite")
    product = (found.detach() @ vector.movedim(1, -1).unsqueeze(-1)).squeeze(-1).movedim(-1, 1)
    loose = 1e-8 if outputs.dtype == torch.float64 else 1e-3
    if float((product - wanted).abs().max()) > loose * (1e-30 + float(wanted.abs().max())):
        raise _refusal(likelihood, "couples the examples of a batch, or the pixels of an example")
    return (found + found.mT) / 2


def _pulled(value: Tensor, leaf: Tensor, *, graph: bool) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    found: Tensor | None = torch.autograd.grad(
        value, leaf, retain_graph=True, create_graph=graph, allow_unused=True
    )[0]
    return torch.zeros_like(leaf) if found is None else found


def _is_indefinite(found: Tensor) -> bool:
    values = torch.linalg.eigvalsh(found.detach().double())
    rounding = 1e-10 if found.dtype == torch.float64 else 1e-4
    return bool((values < -rounding * values.abs().amax(-1, keepdim=True)).any())


def _root(found: Tensor, likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """A root of matrices; by formulas, where these keep tiny entries that eigenvalues lose."""
    entries = found.diagonal(dim1=-2, dim2=-1)
    if bool((found == torch.diag_embed(entries)).all()):
        return torch.diag_embed(entries.clamp_min(0).sqrt())
    mean = likelihood.mean(outputs).movedim(1, -1)
    if mean.shape == entries.shape:
        classes = torch.diag_embed(mean) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        if torch.allclose(found, classes):
            roots = mean.sqrt()
            return torch.diag_embed(roots) - mean.unsqueeze(-1) * roots.unsqueeze(-2)
    values, vectors = torch.linalg.eigh(found)
    root: Tensor = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    return root


def _refusal(likelihood: Likelihood, why: str) -> CosetError:
    return CosetError(
        f"got the likelihood {name_of(likelihood)}, whose log_prob {why}",
        "needed a density that is twice differentiable and log-concave in the outputs, or members "
        "hessian and hessian_root of its own",
        "use a method without curvature, such as HMC() or DeepEnsemble(8)",
    )
