"""Weights of the first layer along the principal axes of the inputs.

Turning the inputs, ``x → Qᵀ x``, and the weights that meet them, ``W → W Q``, changes no output,
and a prior that is the same for all weights of a unit does not notice.  But the curvature of the
energy in ``W`` is, unit by unit, a weighted ``Σ x xᵀ``: along the principal axes of the inputs it
is close to diagonal, and a diagonal mass can undo it.  Along axes on which no input has a part only
the prior acts, and products with the data leave them out: of 1,000 handwritten digits with 784
pixels 194 such axes.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.batches import InMemory
from coset.bayes.problem import Problem
from coset.vocabulary import Weights
from coset.weights.network import Network
from coset.weights.randomness import own_randomness

_WIDEST = 4096
"""Inputs beyond which finding their axes would take minutes."""

_ROUNDING = 8
"""Parts of inputs along an axis that change no product, in units of rounding."""


@dataclass(frozen=True)
class InputAxes:
    """New coordinates for a part of flat vectors.

    Attributes:
        place: Where the weights of the first layer lie.
        axes: The principal axes as columns; orthogonal.
    """

    place: slice
    axes: Float[Tensor, "d d"]

    def turned(self, flat: Float[Tensor, "*m p"]) -> Float[Tensor, "*m p"]:
        """``W → W Q``.

        >>> InputAxes(slice(0, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])).turned(torch.arange(3.0))
        tensor([1., 0., 2.])
        """
        return self._product(flat, self.axes)

    def back(self, flat: Float[Tensor, "*m p"]) -> Float[Tensor, "*m p"]:
        """The inverse of :meth:`turned`."""
        return self._product(flat, self.axes.T)

    def _product(self, flat: Tensor, matrix: Tensor) -> Tensor:
        part = flat[..., self.place].unflatten(-1, (-1, len(matrix))) @ matrix
        rest = flat[..., : self.place.start], flat[..., self.place.stop :]
        return torch.cat([rest[0], part.flatten(-2), rest[1]], dim=-1)


def along_axes(problem: Problem) -> tuple[Problem, InputAxes | None]:
    """The problem with its inputs along their axes, and these; unchanged where they are of no use.

    They need a network whose inputs meet nothing but one matrix of weights, and a prior that is the
    same for all weights of a unit there.
    """
    inputs, targets = problem.train.rows(torch.arange(problem.train.size))
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return problem, None
    name = first_weight(problem.network, inputs[:4])
    if name is None or not _same_in_rows(problem, name):
        return problem, None
    rows = inputs.flatten(1).double()
    products = rows.T @ rows
    if not bool(products.isfinite().all()):  # too large to be squared
        return problem, None
    _, axes = torch.linalg.eigh(products)
    along = (rows @ axes).to(inputs)
    turned = replace(problem, train=InMemory(along.reshape(inputs.shape), targets))
    found = InputAxes(problem.network.layout.slices[name], axes.to(inputs))
    shorter = _without_empty(rows @ axes, rounding=torch.finfo(inputs.dtype).eps).to(inputs)
    network = _shortened(turned, name, shorter)
    if network is not None:
        turned = replace(turned, network=network, train=InMemory(shorter, targets))
    return turned, found


def _without_empty(inputs: Float[Tensor, "n d"], *, rounding: float) -> Float[Tensor, "n r"]:
    """Inputs along their axes, ascending, without the first ones if no input has a part there.

    Args:
        inputs: The inputs, of which parts are known to ``d`` times their own rounding.
        rounding: That of the products they are used in.

    >>> _without_empty(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.5, 2.0]]), rounding=1e-7)
    tensor([[0.0000, 1.0000],
            [0.5000, 2.0000]])
    """
    sizes = inputs.norm(dim=0)
    least = _ROUNDING * max(rounding, len(sizes) * torch.finfo(inputs.dtype).eps)
    empty = sizes[:-1] <= least * sizes.max()
    return inputs[:, int(empty.long().cumprod(0).sum()) :]


def _shortened(problem: Problem, name: str, rows: Float[Tensor, "n r"]) -> Network | None:
    """The network for inputs without their first parts; ``None`` if it does not take such inputs.

    Its first weights are as they were, and their columns for what is left out are not used.
    """
    network, count = problem.network, rows.shape[1]
    if count == network.weights[name].shape[1]:
        return None

    def met(weights: Weights) -> Weights:
        return {**weights, name: weights.get(name, network.weights[name])[..., -count:]}

    shorter = replace(
        network,
        apply=lambda weights, inputs: network.apply(met(weights), inputs),
        apply_training=lambda weights, inputs: network.apply_training(met(weights), inputs),
    )
    few = problem.train.rows(torch.arange(min(4, len(rows))))[0]
    try:
        wanted = network.apply(network.weights, few)
        found = shorter.apply(network.weights, rows[: len(few)])
    except Exception:  # one that asks for the shape of its inputs keeps it
        return None
    room = torch.finfo(wanted.dtype).eps ** 0.5 * float(wanted.abs().max())
    close = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0, atol=room)
    return shorter if close else None


def first_weight(network: Network, inputs: Tensor) -> str | None:
    """The matrix of weights that all of an input meets, and nothing else, if there is one.

    A random reflection of both changes the outputs of any other network.

    >>> from coset.weights import functionalise
    >>> layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> first_weight(functionalise(layers), torch.ones(2, 3))
    '0.weight'
    """
    width = inputs[0].numel()
    if not 1 < width <= _WIDEST:
        return None
    shapes = zip(network.layout.names, network.layout.shapes, strict=True)
    found = [name for name, shape in shapes if len(shape) == 2 and shape[1] == width]
    return next((name for name in found if _reflects(network, inputs, name)), None)


def _reflects(network: Network, inputs: Tensor, name: str) -> bool:
    """Whether outputs stay as they are when inputs and one matrix are reflected, in double.

    At weights and inputs that are moved at random, for zeros would prove nothing.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {n: w.double() if w.is_floating_point() else w for n, w in network.weights.items()}
    for each in network.layout.names:
        weights[each] = weights[each] + _normal(weights[each], generator)
    rows = inputs.flatten(1).double()
    rows, normal = rows + _normal(rows, generator), _normal(rows[0], generator)
    normal = normal / normal.norm()

    def reflected(vectors: Tensor) -> Tensor:
        return torch.addr(vectors, vectors @ normal, normal, alpha=-2)

    def outputs(weights: Weights, rows: Tensor) -> Tensor:
        return network.apply(weights, rows.reshape(inputs.shape))

    try:
        with own_randomness(0), torch.no_grad():
            wanted = outputs(weights, rows)
            found = outputs({**weights, name: reflected(weights[name])}, reflected(rows))
    except Exception:  # one that asks for other types or ranges of numbers stays as it is
        return False
    close: bool = torch.allclose(found, wanted, rtol=1e-8, atol=1e-8 * float(wanted.abs().max()))
    return close


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=torch.float64, generator=generator).to(like)


def _same_in_rows(problem: Problem, name: str) -> bool:
    """Whether the prior is the same for all weights of a row."""
    tensor = problem.network.weights[name]
    precision = problem.prior.of(name, tensor).expand(tensor.shape)
    return bool((precision == precision[:, :1]).all())
