"""The joint distribution of the outputs at several inputs, where weights are Gaussian.

Predictions at two inputs are correlated, because the same weights make both.  With one Jacobian
``J`` for all inputs the outputs are ``N(f, J Σ Jᵀ)``.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import has_constant_curvature, hessian, weight_of
from coset.bayes.likelihood import Likelihood
from coset.curvature.columns import unit_columns
from coset.curvature.maps import Pair
from coset.errors import CosetError
from coset.linalg import Kronecker, RowBlocks
from coset.linalg.cholesky import cholesky
from coset.posterior.draws import check_draws
from coset.posterior.gaussian import Gaussian
from coset.posterior.output_moments import (
    BlockCovariance,
    Entries,
    OutputDeviations,
    covariance_blocks,
    jacobian_rows,
    one_position,
    times_covariance,
    turned_gradients,
    turned_sides,
)
from coset.printing import brief
from coset.vocabulary import Inputs
from coset.weights.inputs import split_rows
from coset.weights.network import Network

_MEMORY = 4 << 30
"""Bytes that the covariance of all outputs may take."""

_ENTRIES = 1 << 25
"""Entries of the largest tensor on the way."""


@dataclass(frozen=True)
class JointPredictions:
    """Outputs at several inputs as one Gaussian vector.

    Attributes:
        mean: The network's own outputs.
        covariance: Of every output at every input with every other; without the noise.
        likelihood: How outputs and targets meet.

    >>> from coset import GaussianNoise
    >>> covariance = torch.ones(2, 1, 2, 1)  # two inputs that rise and fall together
    >>> joint = JointPredictions(torch.zeros(2, 1), covariance, GaussianNoise(1.0))
    >>> draws = joint.sample(5, generator=torch.Generator().manual_seed(0))
    >>> bool(draws[:, 0].allclose(draws[:, 1], atol=1e-3))
    True
    """

    mean: Float[Tensor, "n c"]
    covariance: Float[Tensor, "n c n c"]
    likelihood: Likelihood

    __repr__ = brief

    @property
    def matrix(self) -> Float[Tensor, "nc nc"]:
        """The covariance over the flat outputs, input by input."""
        return self.covariance.reshape(self.mean.numel(), -1)

    @cached_property
    def _root(self) -> Float[Tensor, "nc nc"]:
        values, vectors = torch.linalg.eigh(self.matrix)  # may be singular: no Cholesky
        root: Tensor = vectors * values.clamp_min(0).sqrt()
        return root

    def sample_outputs(self, draws: int, *, generator: torch.Generator) -> Float[Tensor, "m n c"]:
        """Draws of the outputs: each is one function, seen at all inputs."""
        check_draws(draws, generator)
        noise = torch.randn(
            draws,
            self.mean.numel(),
            generator=generator,
            dtype=self.mean.dtype,
            device=generator.device,
        ).to(self.mean.device)
        return self.mean + (noise @ self._root.mT).reshape(draws, *self.mean.shape)

    def sample(self, draws: int, *, generator: torch.Generator) -> Float[Tensor, "m n k"]:
        """Means of the targets for draws of the outputs: probabilities, or regression means."""
        outputs = self.sample_outputs(draws, generator=generator)
        means: Tensor = self.likelihood.mean(outputs.flatten(0, 1))
        return means.reshape(draws, len(self.mean), -1)

    def log_prob(
        self, targets: Tensor, *, draws: int = 1000, generator: torch.Generator | None = None
    ) -> Float[Tensor, ""]:
        """Log-probability of all targets together.

        Gaussian noise: the density of ``N(f, J Σ Jᵀ + noise)``.  Otherwise
        ``log mean_m Π_n p(y_n | f_m(x_n))`` over draws of the outputs.

        Args:
            targets: One a row.
            draws: Where there is no closed form.
            generator: Of the draws; ``None``: one of seed 0.
        """
        self.likelihood.check(self.mean, targets)
        if has_constant_curvature(self.likelihood, self.mean, targets):
            return self._density(targets)
        generator = generator or torch.Generator().manual_seed(0)
        outputs = self.sample_outputs(draws, generator=generator)
        scores = torch.stack([self.likelihood.log_prob(one, targets).sum() for one in outputs])
        return scores.logsumexp(0) - math.log(draws)

    def _density(self, targets: Tensor) -> Float[Tensor, ""]:
        noise = torch.linalg.pinv(hessian(self.likelihood, self.mean, targets))
        weight = weight_of(self.likelihood, self.mean, targets)
        counts = torch.ones_like(self.mean) if weight is None else weight.expand_as(self.mean)
        kept = (counts > 0).flatten()
        total = (self.matrix + torch.block_diag(*noise))[kept][:, kept]
        residual = (targets.reshape(self.mean.shape) - self.mean).reshape(-1, 1)[kept]
        factor = cholesky(total)
        white = torch.linalg.solve_triangular(factor, residual, upper=False)
        volume = factor.diagonal().log().sum() + len(residual) * math.log(2 * math.pi) / 2
        density: Tensor = -white.square().sum() / 2 - volume
        return density


def joint_moments(
    posterior: Gaussian | OutputDeviations, network: Network, inputs: Inputs
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c n c"]]:
    """Mean and covariance of the outputs at all inputs together.

    Kronecker and diagonal covariances go layer by layer and never form a Jacobian; others form it
    for some inputs at a time.
    """
    if isinstance(posterior, OutputDeviations):
        mean, changes = posterior.output_deviations(network, inputs)
        _check_size(mean)
        flat = changes.flatten(1)
        return mean, (flat.mT @ flat / len(flat)).reshape(*mean.shape, *mean.shape)
    with torch.no_grad():
        mean = network.apply(posterior.centre(network), inputs)
    _check_size(mean)
    blocks = covariance_blocks(posterior, network, inputs)
    if blocks is None:
        matrix = _by_rows(posterior, network, inputs, mean)
    else:
        recorded, operators = blocks
        mean = recorded.outputs.detach()
        pairs = [recorded.pairs(direction) for direction in unit_columns(mean)]
        matrix = torch.zeros(mean.numel(), mean.numel(), dtype=mean.dtype, device=mean.device)
        for names, operator in operators.items():
            matrix += _block([found[names] for found in pairs], operator)
    return mean, matrix.reshape(*mean.shape, *mean.shape)


def _check_size(mean: Tensor) -> None:
    """Refuses what would not fit, before it is made."""
    if mean.dim() != 2:
        raise CosetError(
            f"got outputs of shape {tuple(mean.shape)}",
            "needed (n, c): with pixels the covariance of all outputs would not fit",
            "use rule=MonteCarlo(), whose members are draws for all inputs together",
        )
    size = mean.numel() ** 2 * mean.element_size()
    if size > _MEMORY:
        raise CosetError(
            f"got {len(mean):,} inputs with {mean.shape[1]} outputs: their covariance takes "
            f"{size / 2**30:.1f} GiB",
            f"needed at most {_MEMORY / 2**30:.0f} GiB",
            "ask for fewer inputs at a time",
        )


def _by_rows(
    posterior: Gaussian, network: Network, inputs: Inputs, mean: Float[Tensor, "n c"]
) -> Float[Tensor, "nc nc"]:
    """Any covariance: ``J_i Σ J_jᵀ`` for pairs of chunks of inputs."""
    step = max(1, _ENTRIES // (posterior.layout.size * mean.shape[1]))
    chunks = [*zip(split_rows(inputs, step), mean.split(step), strict=True)]
    rows = []
    for chunk, outputs in chunks:
        directions = list(unit_columns(outputs))
        found = jacobian_rows(posterior, network, chunk, directions).flatten(0, 1)
        first = posterior.widened(found)
        spread = times_covariance(posterior, first)
        parts = []
        for other, values in chunks:
            if other is not chunk:
                directions = list(unit_columns(values))
                second = jacobian_rows(posterior, network, other, directions).flatten(0, 1)
                second = posterior.widened(second)
            else:
                second = first
            parts.append((spread @ second.mT).to(found))
        rows.append(torch.cat(parts, dim=1))
    return torch.cat(rows)


def _block(pairs: list[Pair], operator: BlockCovariance) -> Float[Tensor, "nc nc"]:
    """``J Σ Jᵀ`` of one block over all inputs."""
    unshared = one_position(pairs)
    if unshared is not None and isinstance(operator, Kronecker | Entries):
        return _unshared(*turned_sides(*unshared, operator), operator.table)
    gradients = turned_gradients(pairs, operator)  # n c b o i
    if isinstance(operator, RowBlocks):
        columns = gradients.permute(2, 4, 0, 1, 3).flatten(2, 3)  # b i nc o
        features = torch.matmul(columns, cholesky(operator.middle))
        return torch.matmul(features, features.mT).sum((0, 1))
    assert isinstance(operator, Kronecker | Entries)
    flat = (gradients * operator.table.sqrt()).flatten(2).flatten(0, 1)
    return flat @ flat.mT


def _unshared(
    lefts: Float[Tensor, "n c b o"],
    right: Float[Tensor, "n b i"],
    table: Float[Tensor, "b o i"],
) -> Float[Tensor, "nc nc"]:
    """One position: ``Σ_o u_nco u_mdo (Σ_i t_oi v_ni v_mi)``, some rows ``o`` at a time."""
    count, channels, blocks, size = lefts.shape
    step = max(1, _ENTRIES // (count * count * channels))
    total = lefts.new_zeros(count, count * channels, channels)  # m (n c) d
    for block in range(blocks):
        side = right[:, block]
        for start in range(0, size, step):
            left = lefts[:, :, block, start : start + step]  # n c o
            scaled = side.unsqueeze(0) * table[block, start : start + step].unsqueeze(1)
            kernels = scaled @ side.mT  # o n m
            weighted = torch.einsum("nco,onm->mnco", left, kernels).flatten(1, 2)
            total += weighted @ left.transpose(1, 2)
    return total.permute(1, 0, 2).reshape(count * channels, -1)
