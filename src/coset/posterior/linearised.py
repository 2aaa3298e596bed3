"""Predictions of the linearised network: Gaussian outputs in closed form.

``f(x; θ) ≈ f(x; θ̃) + J(x) (θ - θ̃)`` is Gaussian when ``θ`` is, with mean ``f(x; θ̃)`` and covariance
``S(x) = J(x) Σ J(x)ᵀ``.  For Kronecker and diagonal covariances ``J`` is never formed: the outer
products ``u vᵀ`` it consists of go through the eigenbasis one layer at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.likelihood import GaussianNoise, HeteroscedasticGaussian, Likelihood
from coset.curvature.capture import Recorded, record
from coset.curvature.maps import Pair, outer
from coset.curvature.measure import blocks_of, gradient_rows, unit_columns
from coset.errors import CosetError
from coset.linalg import BlockDiagonal, Diagonal, Embedded, Kronecker, LinearOperator, RowBlocks
from coset.posterior.chunks import count_rows, split_rows
from coset.posterior.families import Mixture, Posterior
from coset.posterior.gaussian import Gaussian
from coset.posterior.links import Link, Probit
from coset.posterior.predict import Predictions
from coset.weights.network import Inputs, Network

_ENTRIES = 1 << 23
"""Entries of the largest tensor that is formed for a chunk of inputs."""

_ROWS = 256
"""Inputs of a chunk at most."""


@dataclass(frozen=True)
class Linearised:
    """The exact predictive distribution of the network linearised at the posterior's mean.

    Regression: mean ``f`` and variance ``S + noise``.  Classes: a link turns ``f`` and ``S`` into
    probabilities.

    Attributes:
        link: :class:`Probit`, :class:`SampledSoftmax` or :class:`LaplaceBridge`.
    """

    link: Link = field(default_factory=Probit)

    def __call__(
        self,
        posterior: Posterior,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        *,
        generator: torch.Generator,
    ) -> Predictions:
        """Predictions for the inputs."""
        if isinstance(posterior, Mixture):
            return self._mixture(posterior, network, likelihood, inputs, generator)
        if not isinstance(posterior, Gaussian):
            raise CosetError(
                f"got a posterior of type {type(posterior).__name__}",
                "needed a Gaussian, such as Laplace() finds",
                "use rule=MonteCarlo()",
            )
        mean, covariance = output_moments(posterior, network, inputs)
        return predict_from_moments(mean, covariance, likelihood, self.link, generator)

    def _mixture(
        self,
        mixture: Mixture,
        network: Network,
        likelihood: Likelihood,
        inputs: Inputs,
        generator: torch.Generator,
    ) -> Predictions:
        """Each mode by itself: a mixture of their predictive distributions."""
        found = [
            self(part, network, likelihood, inputs, generator=generator)
            for part in mixture.components
        ]
        shares = mixture.log_weights
        each = [len(part.members) for part in found]
        log_weights = torch.cat(
            [
                share - torch.tensor(float(count)).log().expand(count)
                for share, count in zip(shares, each, strict=True)
            ]
        )
        members = torch.cat([part.members for part in found])
        whole = Predictions(members, log_weights=log_weights)
        variances = [part.variance for part in found]
        total = None
        if all(variance is not None for variance in variances):
            total = torch.zeros_like(whole.mean if variances[0] is None else variances[0])
            for share, part in zip(shares.exp(), found, strict=True):
                assert part.variance is not None
                total = total + share * part.variance
        return Predictions(members, total, log_weights=log_weights)


def predict_from_moments(
    mean: Float[Tensor, "n c"],
    covariance: Float[Tensor, "n c c"],
    likelihood: Likelihood,
    link: Link,
    generator: torch.Generator,
) -> Predictions:
    """Predictions where the outputs are Gaussian."""
    if isinstance(likelihood, GaussianNoise | HeteroscedasticGaussian):
        members = likelihood.mean(mean).unsqueeze(0)
    else:
        members = link(mean, covariance, likelihood, generator=generator)
    return Predictions(members, _variance(mean, covariance, likelihood), covariance)


def _variance(
    mean: Float[Tensor, "n c"], covariance: Float[Tensor, "n c c"], likelihood: Likelihood
) -> Float[Tensor, "n k"] | None:
    spread = covariance.diagonal(dim1=1, dim2=2)
    if isinstance(likelihood, GaussianNoise):
        return None if likelihood.std is None else spread + likelihood.noise_variance(mean)
    if isinstance(likelihood, HeteroscedasticGaussian):
        means, logs = spread.chunk(2, dim=1)
        # the log-variance is Gaussian too: E exp s = exp(s + ½ var s)
        return means + likelihood.noise_variance(mean) * (logs / 2).exp()
    return spread


def output_moments(
    posterior: Gaussian, network: Network, inputs: Inputs
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c c"]]:
    """Mean and covariance of the outputs of the linearised network."""
    rows = min(_ROWS, count_rows(inputs))
    means, covariances = [], []
    for chunk in _chunks(posterior, network, inputs, rows):
        mean, covariance = _moments(posterior, network, chunk)
        means.append(mean)
        covariances.append(covariance)
    return torch.cat(means), torch.cat(covariances)


def _chunks(posterior: Gaussian, network: Network, inputs: Inputs, rows: int) -> Iterator[Inputs]:
    """As many inputs at a time as the largest layer, or the whole Jacobian, allows."""
    one = next(split_rows(inputs, 1))
    outputs = network.apply(posterior.centre(network), one)
    if outputs.dim() != 2:
        raise CosetError(
            f"got outputs of shape {tuple(outputs.shape)}",
            "needed (n, c): the covariance of an output with pixels would not fit",
            "use rule=MonteCarlo()",
        )
    largest = _columns(posterior, network, one) * outputs.shape[1]
    yield from split_rows(inputs, max(1, min(rows, _ENTRIES // max(1, largest))))


def _columns(posterior: Gaussian, network: Network, one: Inputs) -> int:
    """Entries that are formed at a time for each output of an input."""
    covariance, layout = posterior.covariance, posterior.layout
    if isinstance(covariance, Embedded):
        return max(len(covariance.index), max(layout.sizes) // 8)
    if not isinstance(covariance, BlockDiagonal | Diagonal):
        return layout.size
    recorded = record(network, posterior.centre(network), layout, one)
    if recorded.foreign:
        return layout.size
    pairs = recorded.pairs(torch.ones_like(recorded.outputs))
    found = 1
    for left, right in pairs.values():
        shared = left.shape[2] > 1  # only then are outer products formed
        block = left.shape[1] * left.shape[3] * right.shape[3] if shared else left[0].numel()
        found = max(found, block, right[0].numel() // 4)
    return found


def _moments(
    posterior: Gaussian, network: Network, inputs: Inputs
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c c"]]:
    weights = posterior.centre(network)
    layout, covariance = posterior.layout, posterior.covariance
    if isinstance(covariance, BlockDiagonal) and posterior.layers:
        separate = frozenset(names[0] for names in posterior.layers if len(names) == 1)
        recorded = record(network, weights, layout, inputs, separate=separate)
        operators = dict(zip(posterior.layers, covariance.blocks, strict=True))
        return recorded.outputs.detach(), _by_layers(recorded, operators)
    if isinstance(covariance, Diagonal):
        recorded = record(network, weights, layout, inputs)
        if not recorded.foreign:
            tables = {
                block.names: _Entries(covariance.entries[block.entries])
                for block in blocks_of(recorded, layout)
            }
            return recorded.outputs.detach(), _by_layers(recorded, tables)
    index = None
    if isinstance(covariance, Embedded):
        index, covariance = covariance.index, covariance.inner
    rows = gradient_rows(network, weights, layout, inputs, index=index)
    spread = covariance.matmat(rows.flatten(0, 1).mT).mT.reshape(rows.shape)
    with torch.no_grad():
        outputs = network.apply(weights, inputs)
    return outputs, rows @ spread.mT


@dataclass(frozen=True)
class _Entries:
    """Variances of a block's own entries: a diagonal covariance, layer by layer."""

    table: Float[Tensor, "b o i"]


def _by_layers(
    recorded: Recorded,
    operators: "dict[tuple[str, ...], LinearOperator] | dict[tuple[str, ...], _Entries]",
) -> Float[Tensor, "n c c"]:
    pairs = [recorded.pairs(column) for column in unit_columns(recorded.outputs)]
    total = None
    for names, operator in operators.items():
        part = block_covariance([found[names] for found in pairs], operator)
        total = part if total is None else total + part
    assert total is not None
    return total.detach()


def block_covariance(
    pairs: list[Pair], operator: "LinearOperator | _Entries"
) -> Float[Tensor, "n c c"]:
    """``J Σ Jᵀ`` of one block, from the outer products of each output."""
    right = pairs[0][1]
    same = all(pair[1] is right for pair in pairs)
    if same and right.shape[2] == 1:
        lefts = torch.stack([left[:, :, 0] for left, _ in pairs], 1)
        return _unshared(lefts, right[:, :, 0], operator)
    if same:  # turn the inputs once, and form the outer products of all outputs together
        lefts = torch.stack([_turned(left, operator, "left") for left, _ in pairs], dim=2)
        lefts = lefts.transpose(3, 4).flatten(2, 3)  # n b (c o) r
        products = lefts @ _turned(right, operator, "right")
        gradients = products.unflatten(2, (len(pairs), -1)).transpose(1, 2)
    else:
        turned = [(_turned(u, operator, "left"), _turned(v, operator, "right")) for u, v in pairs]
        gradients = torch.stack([outer(u, v) for u, v in turned], dim=1)  # n c b o i
    if isinstance(operator, RowBlocks):
        columns = gradients.permute(2, 4, 0, 1, 3)  # b i n c o
        spread = columns @ operator.middle.unsqueeze(2)
        return torch.matmul(columns, spread.mT).sum((0, 1))
    assert isinstance(operator, Kronecker | _Entries)
    flat = (gradients * operator.table.sqrt()).flatten(2)
    return torch.matmul(flat, flat.mT)


def _turned(
    side: Float[Tensor, "n b r k"], operator: "LinearOperator | _Entries", which: str
) -> Float[Tensor, "n b r k"]:
    """One side of the outer products in the operator's own basis."""
    if isinstance(operator, Kronecker):
        return torch.matmul(side, operator.left if which == "left" else operator.right)
    if isinstance(operator, RowBlocks) and which == "right":
        return torch.matmul(side, operator.right)
    return side


def _unshared(
    lefts: Float[Tensor, "n c b o"],
    right: Float[Tensor, "n b i"],
    operator: "LinearOperator | _Entries",
) -> Float[Tensor, "n c c"]:
    """One position: ``S_cd = Σ_o u_co u_do w_o`` with ``w = table · v²``, no outer product."""
    if isinstance(operator, RowBlocks):
        turned = torch.einsum("nbi,bij->nbj", right, operator.right)
        middle = torch.einsum("nbj,bjxy->nbxy", turned.square(), operator.middle)
        return torch.einsum("ncbx,nbxy,ndby->ncd", lefts, middle, lefts)
    if isinstance(operator, Kronecker):
        lefts = torch.einsum("ncbx,bxo->ncbo", lefts, operator.left)
        right = torch.einsum("nbx,bxi->nbi", right, operator.right)
    assert isinstance(operator, Kronecker | _Entries)
    weight = torch.einsum("boi,nbi->nbo", operator.table, right.square())
    scaled = (lefts * weight.unsqueeze(1)).flatten(2)
    return scaled @ lefts.flatten(2).mT
