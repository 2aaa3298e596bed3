"""How much worse a network gets on the straight line between two others."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from coset.alignment.checks import answer
from coset.alignment.interpolation import interpolate
from coset.alignment.norm_reset import repair as repaired
from coset.alignment.norm_reset import reset_norm as with_norms_reset
from coset.bayes.batches import Data, as_batches
from coset.bayes.likelihood import Categorical, GaussianNoise
from coset.errors import CosetError
from coset.printing import brief
from coset.vocabulary import Weights
from coset.weights.network import Network, functionalise
from coset.weights.refusals import as_weights, check_floating, require_finite
from coset.weights.stacking import check_fit

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LossPath:
    """Loss and error at points of the line from ``a`` (``t = 0``) to ``b`` (``t = 1``).

    Attributes:
        t: The points.
        loss: Mean loss at each.
        error: Share of wrong classes at each; for regression the root mean square error.

    >>> t = torch.tensor([0.0, 0.5, 1.0])
    >>> path = LossPath(t, torch.tensor([1.0, 4.0, 2.0]), torch.zeros(3))
    >>> path.height, path.height_over_mean
    (2.5, 2.5)
    """

    t: Float[Tensor, " k"]
    loss: Float[Tensor, " k"]
    error: Float[Tensor, " k"]

    __repr__ = brief

    @property
    def height(self) -> float:
        """``max_t loss(t) - [(1 - t) loss(0) + t loss(1)]`` (Entezari et al. 2022)."""
        return float(_above_chord(self.t, self.loss).max())

    @property
    def error_height(self) -> float:
        """The same for the error."""
        return float(_above_chord(self.t, self.error).max())

    @property
    def height_over_mean(self) -> float:
        """``max_t loss(t) - [loss(0) + loss(1)] / 2`` (Frankle et al. 2020)."""
        return float((self.loss - (self.loss[0] + self.loss[-1]) / 2).max())

    @property
    def interior_height(self) -> float:
        """The height over inner points alone: negative where the line lies below its chord."""
        if len(self.t) < 3:
            raise CosetError("got a path of its two ends", "needed inner points", "give points=25")
        return float(_above_chord(self.t, self.loss)[1:-1].max())


def _above_chord(t: Tensor, values: Tensor) -> Tensor:
    return values - torch.lerp(values[0], values[-1], t.to(values.dtype))


def barrier(
    module: nn.Module,
    a: Weights,
    b: Weights,
    data: Data,
    *,
    points: int = 25,
    loss: Loss | None = None,
    reset_norm: bool = False,
    repair: bool = False,
    norm_data: "Data | None" = None,
) -> LossPath:
    """Loss and error along the straight line from ``a`` to ``b``.

    Args:
        module: The network; it is not changed.
        a: The weights at ``t = 0``.
        b: The weights at ``t = 1``.
        data: What the loss is measured on.
        points: How many, the ends included; an odd number contains the middle.
        loss: Mean loss from outputs and targets.  ``None``: cross-entropy for integer targets,
            else the mean squared error.
        reset_norm: Measures batch-norm statistics again at every point.
        repair: Rescales channels at every inner point, for networks without norms.
        norm_data: What statistics are measured on; ``None``: ``data``.

    Raises:
        CosetError: If weights do not fit the module or are not finite, if the network does not take
            the inputs or its outputs do not fit the targets, or there are fewer than two points.
    """
    if not isinstance(points, int) or points < 2:
        raise CosetError(f"got points={points}", "needed at least the two ends")
    network = functionalise(module)
    a = _checked(a, network, "the first weights")
    b = _checked(b, network, "the second weights")
    measured_on = data if norm_data is None else norm_data
    times = torch.linspace(0, 1, points, dtype=torch.float64)
    rows = []
    for t in times.tolist():
        weights = interpolate(a, b, t)
        if repair and 0 < t < 1:
            weights = repaired(module, weights, (a, b), measured_on)
        if reset_norm:
            weights = with_norms_reset(module, weights, measured_on)
        rows.append(evaluate_at(network, weights, data, loss))
    values = torch.tensor(rows, dtype=torch.float64)
    return LossPath(times, values[:, 0], values[:, 1])


def _checked(given: Weights, network: Network, what: str) -> Weights:
    """Weights that fit the network and are finite."""
    weights = as_weights(given, what)
    check_fit(weights, network.weights, what=what)
    check_floating(weights, weights, what)
    require_finite(weights, weights, what)
    return weights


def evaluate_at(
    network: Network, weights: Weights, data: Data, loss: Loss | None = None
) -> tuple[float, float]:
    """Mean loss and error of one network."""
    total, wrong, count = 0.0, 0.0, 0
    classes = True
    with torch.no_grad():
        for inputs, targets in as_batches(data, batch_size=1000, module=network.module):
            outputs = answer(partial(network.apply, weights), inputs, weights.values())
            _check_targets(outputs, targets, loss)
            classes = not targets.is_floating_point()
            value = torch.as_tensor((loss or default_loss)(outputs, targets))
            _check_loss(value)
            size = len(targets)
            total += float(value) * size
            count += size
            if classes:
                wrong += float((outputs.argmax(1) != targets).double().mean()) * size
            else:
                wrong += float((outputs.reshape(targets.shape) - targets).square().mean()) * size
    return total / count, wrong / count if classes else (wrong / count) ** 0.5


def _check_targets(outputs: Tensor, targets: Tensor, loss: Loss | None) -> None:
    if targets.is_floating_point():
        GaussianNoise().check(outputs.unsqueeze(1) if outputs.dim() == 1 else outputs, targets)
    else:  # what labels mean is up to a loss of one's own, their shape is not
        labels = targets if loss is None else torch.zeros_like(targets, dtype=torch.long)
        Categorical().check(outputs, labels)


def _check_loss(value: Tensor) -> None:
    if value.numel() != 1:
        raise CosetError(
            f"got a loss that returns a tensor of shape {tuple(value.shape)}",
            "needed one number, the mean over the batch",
            "average it: loss=lambda outputs, targets: own(outputs, targets).mean(), or leave out "
            'reduction="none"',
        )


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy for integer targets, else the mean squared error."""
    if targets.is_floating_point():
        return functional.mse_loss(outputs.reshape(targets.shape), targets)
    return functional.cross_entropy(outputs, targets.long())
