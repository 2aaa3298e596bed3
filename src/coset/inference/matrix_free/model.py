"""The tangent model, its prior by groups, and the random right-hand sides of its samples.

With the root ``R Rᵀ = B`` of the output curvature and standard normal ``e`` and ``ε``, the solution
of ``(H + Λ) z = Jᵀ R e + Λ^½ ε`` is a sample of ``N(0, (H + Λ)⁻¹)``.  It is the minimum of
``½ |Rᵀ J z|² + ½ |z - θⁿ|²_Λ`` with ``Λ θⁿ`` the right-hand side: all the noise stands in the
prior's term, so that batches of data add little of their own (Antorán et al. 2023).  It is also a
sample ``z₀ = Λ^-½ ε`` of the prior plus what the data change of it, ``(H + Λ) c = Jᵀ R e - H z₀``.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coset.bayes.defaults import with_noise
from coset.curvature.products import Linearisation
from coset.curvature.tangent import Form, Point, Tangent
from coset.errors import CosetError
from coset.inference.laplace.groups import Groups
from coset.inference.laplace.noise import Residuals
from coset.inference.matrix_free.randomness import source
from coset.weights.inputs import count_rows, split_rows

_PROBED = 16
"""Examples whose gradients are added before they are squared: fewer would be more accurate."""

_DEAD = 1e-12
"""Share of a tensor's largest curvature below which a weight has none."""


@dataclass(frozen=True)
class Model:
    """The tangent model with everything but the values of precisions and noise.

    Attributes:
        tangent: The tangent model, at unit noise where the noise is learnt.
        groups: Which weights share a precision.
        features: What the precision of its group is multiplied with for each weight: ones, or
            the diagonal of the curvature (g-prior).
        form: Full or simple.
        learn_noise: Whether the noise is learnt.
        seed: Of all random numbers.
        samples: How many samples are drawn.
    """

    tangent: Tangent
    groups: Groups
    features: Float[Tensor, " p"]
    form: Form
    learn_noise: bool
    seed: int
    samples: int

    @property
    def labels(self) -> Int[Tensor, " p"]:
        """The group of each weight."""
        return self.groups.labels

    @property
    def residuals(self) -> Residuals:
        """What outputs leave of the targets."""
        return Residuals(self.tangent)

    def at(self, noise: float) -> Tangent:
        """The tangent model under some noise precision."""
        if not self.learn_noise:
            return self.tangent
        return self.tangent.with_likelihood(with_noise(self.tangent.likelihood, noise**-0.5))

    def flat(self, precision: Float[Tensor, " g"]) -> Float[Tensor, " p"]:
        """``Λ``: one precision a weight."""
        return precision.to(self.features)[self.labels] * self.features

    def norms(self, flat: Float[Tensor, " p"]) -> Float[Tensor, " g"]:
        """``Σ d θ²`` of each group, with ``d`` the features."""
        return self.groups.sums(flat.double().square() * self.features.double())

    def pulled_noise(self, tangent: Tangent, outputs: Tensor) -> Float[Tensor, "p m"]:
        """``Jᵀ R e``; the random numbers are always the same."""
        root = tangent.root(outputs)
        noise = torch.stack(
            [_colour(root, source(self.seed, "data", k)) for k in range(self.samples)]
        )
        result = tangent.jacobian.pull(noise.flatten(1).mT)
        _check_derivatives(result)
        return result

    def prior_samples(self, precision: Float[Tensor, " p"]) -> Float[Tensor, "p m"]:
        """``Λ^-½ ε``; the random numbers are always the same."""
        each = (source(self.seed, "prior", k) for k in range(self.samples))
        deviation = precision.rsqrt()
        found = [_normal(precision.shape, own, like=precision).mul_(deviation) for own in each]
        return torch.stack(found).mT

    def effective(
        self,
        samples: Float[Tensor, "p m"],
        curved: Float[Tensor, "p m"],
    ) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
        """Effective dimension of each group and its standard error.

        ``γ_g = tr [H Σ]_gg ≈ 1/m Σ z_g · (H z)_g``, without bias.

        Args:
            samples: The samples ``z``.
            curved: ``H z``.
        """
        pairs = zip(samples.unbind(1), curved.unbind(1), strict=True)
        each = torch.stack([self.groups.sums(z * h) for z, h in pairs])
        error = each.std(0) / len(each) ** 0.5 if len(each) > 1 else torch.full_like(each[0], 1e300)
        return each.mean(0), error

    def start_precision(self) -> Float[Tensor, " g"]:
        """``λ_g = D_g / |θ̃_g|²``: the only start that follows every rescaling of a group."""
        flat = self.tangent.layout.flatten(self.tangent.weights)
        return self.groups.natural(self.norms(flat))

    def network_point(self) -> Point:
        """The network's own weights."""
        return self.tangent.start(self.form, at_network=True)


def estimate_diagonal(
    tangent: Tangent, outputs: Tensor, *, probes: int, seed: int
) -> Float[Tensor, " p"]:
    """The diagonal of ``H`` from one pass: the mean of ``(Σ Jᵀ R e)²`` over random ``e``.

    The sum goes over a few examples at a time, whose cross terms vanish in the mean.  A weight that
    the outputs never read has none; it gets the mean of its tensor, which changes no prediction.
    """
    line = Linearisation(tangent.problem.network, tangent.weights, tangent.layout)
    root = tangent.root(outputs)
    random = source(seed, "diagonal")
    total = torch.zeros(tangent.layout.size, dtype=outputs.dtype, device=outputs.device)
    start = 0
    for inputs, _ in tangent.problem.train:
        for part in split_rows(inputs, _PROBED):
            some = root[start : start + count_rows(part)]
            noise = torch.stack([_colour(some, random) for _ in range(probes)])
            for pulled in line.pull(part, noise):
                total.addcmul_(pulled, pulled, value=1 / probes)
            start += len(some)
    _check_derivatives(total)
    return _without_zeros(tangent, total)


def _check_derivatives(found: Tensor) -> None:
    if not bool(found.isfinite().all()):
        raise CosetError(
            "got derivatives of the network that are not finite",
            "needed finite Jacobians at its own weights",
            "check the inputs and whether training diverged",
        )


def _without_zeros(tangent: Tangent, diagonal: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    parts = []
    for part in tangent.layout.unflatten(diagonal).values():
        alive = part > _DEAD * part.max()
        mean = part.mean() if bool(alive.any()) else diagonal.mean()
        parts.append(torch.where(alive, part, mean).flatten())
    filled = torch.cat(parts)
    if not bool((filled > 0).all()):
        raise CosetError(
            "got a network whose outputs do not depend on its weights, or saturated outputs",
            "needed curvature of the likelihood in the weights",
            "use float64, or check whether training diverged",
        )
    return filled


def _colour(root: Float[Tensor, "n ... c r"], random: torch.Generator) -> Tensor:
    """``R e`` in the shape of the outputs."""
    noise = _normal((*root.shape[:-2], root.shape[-1], 1), random, like=root)
    return (root @ noise).squeeze(-1).movedim(-1, 1)


def _normal(shape: tuple[int, ...], random: torch.Generator, *, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=random, dtype=like.dtype).to(like.device)
