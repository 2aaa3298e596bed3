"""Deep image prior: an untrained network fitted to the readings of one image (Ulyanov et al. 2018).

``min_θ ‖A f(θ) - y‖² / readings + γ TV(f(θ))`` from a fixed input; several images are fitted as one
stack of networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from coset.errors import CosetError, require_counts, require_kinds
from coset.models import unet
from coset.posterior.random_masks import RandomMasks
from coset.tomography.observed import Observed
from coset.tomography.total_variation import total_variation
from coset.vocabulary import Progress, Weights
from coset.weights import Network, functionalise, stack, unstack
from coset.weights.masks import DropoutSite, dropout_sites, split_masks

_CHECKED, _WINDOW, _PATIENCE = 10, 20, 20
"""Steps from one look at the stack to the next; looks that a moving variance is taken over, and
that it may go without a new minimum."""


@dataclass(frozen=True)
class DeepImagePrior:
    """How the network is fitted.

    Args:
        steps: Steps of Adam, at most.
        rate: Length of a step; it falls to a twentieth along a cosine.
        total_variation: The weight γ of total variation, in units in which the image's largest
            value is about one; ``None``: by the noise and the number of readings.
        stop: ``"discrepancy"``: when the residuals are as small as the noise is expected to be;
            ``"variance"``: when the moving variance of the image has had no new minimum for long
            (Wang et al. 2021); ``"never"``: after all steps.

    >>> DeepImagePrior(steps=100).stop
    'discrepancy'
    """

    steps: int = 2000
    rate: float = 5e-3
    total_variation: float | None = None
    stop: Literal["discrepancy", "variance", "never"] = "discrepancy"

    def __post_init__(self) -> None:
        require_kinds(self)
        require_counts(steps=self.steps)
        if not self.rate > 0 or (self.total_variation or 0.0) < 0:
            raise CosetError(
                f"got rate={self.rate} and total_variation={self.total_variation}",
                "needed a positive rate, and a weight of at least zero",
            )

    def weight(self, observed: Observed) -> float:
        """The weight of total variation.

        As a prior ``exp(-λ TV)`` it has ``λ = γ · readings / (2 · noise variance)``.  By default λ
        is one where there are as many readings as pixels, and falls with the square of their
        share: with few readings the network itself has to decide.
        """
        if self.total_variation is not None:
            return self.total_variation
        readings = len(observed.values)
        share = min(1.0, readings / observed.size**2)
        return 2 * observed.level * share**2 / readings


@dataclass(frozen=True)
class Fitted:
    """A network fitted to readings.

    Attributes:
        network: The network; its outputs are images of shape (1, 1, size, size).
        weights: Where it is.
        inputs: What it is called with.
        image: Its output.
        steps: Steps until these weights.
        misfit: Mean squared residual.
        weight: The weight γ of total variation.
    """

    network: Network
    weights: Weights
    inputs: Float[Tensor, "1 1 size size"]
    image: Float[Tensor, "size size"]
    steps: int
    misfit: float
    weight: float


class BoundedImage(nn.Module):
    """Images between 0 and a largest value that is learnt: ``scale · σ(inner(x))``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to a largest value of one."""
        nn.init.ones_(self.scale)

    def forward(
        self, inputs: Float[Tensor, "n 1 height width"]
    ) -> Float[Tensor, "n 1 height width"]:
        """Return images."""
        found: Tensor = self.scale * torch.sigmoid(self.inner(inputs))
        return found


def image_network(size: int, *, width: int | None = None, dropout: float = 0.0) -> nn.Module:
    """The U-Net of the published study: three scales, skips of four channels, images from 0 up.

    Args:
        size: Pixels along a side; beyond 40 there is a scale more, beyond 80 another.
        width: Channels at every scale; ``None``: 32, or 16 beyond 40 pixels.
        dropout: Probability that a channel is dropped after an activation.

    >>> sum(p.numel() for p in image_network(28).parameters() if p.ndim == 4)
    76608
    """
    scales = 3 + (size > 40) + (size > 80)
    channels = width or (32 if size <= 40 else 16)

    def activation() -> nn.Module:
        plain = nn.LeakyReLU(0.2)
        return nn.Sequential(plain, nn.Dropout2d(dropout)) if dropout else plain

    inner = unet(
        widths=(channels,) * scales,
        skips=(4,) * (scales - 1),
        downsampling="strided",
        upsampling="bilinear",
        activation=activation,
        normalisation="none",
    )
    return BoundedImage(inner)


def fit_images(
    module: nn.Module,
    observed: Sequence[Observed],
    settings: DeepImagePrior,
    *,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> list[Fitted]:
    """Fits one network to each image, all side by side.

    Args:
        module: An untrained network from images to images; it is copied and drawn afresh.
        observed: Readings of images of one size.
        settings: How.
        generator: Draws the weights.
        progress: Told of the work done.
    """
    network = functionalise(module)
    weights = stack([network.initialise(generator) for _ in observed])
    like = next(iter(weights.values()))
    size = observed[0].size
    inputs = torch.stack([each.start.mean.reshape(1, 1, size, size) for each in observed]).to(like)
    gamma = torch.tensor([settings.weight(each) for each in observed]).to(like)
    trained = {name: weights[name].requires_grad_() for name in network.layout.names}
    every = {**weights, **trained}
    optimiser = torch.optim.Adam(trained.values(), lr=settings.rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, settings.steps, settings.rate / 20
    )
    watch = _Watch(settings, [each.level for each in observed])
    sites = mask_sites(network, {name: w[0] for name, w in weights.items()}, inputs[0])
    masks = RandomMasks({name: w[0] for name, w in weights.items()}, sites)
    for step in range(settings.steps + 1):
        drawn = split_masks(masks.sample(len(observed), generator=generator))[1] if sites else {}
        outputs = _images(network, every | drawn, inputs)
        misfit = torch.stack(
            [
                each.misfit(each.operator.forward(image.flatten()))
                for each, image in zip(observed, outputs, strict=True)
            ]
        )
        loss = misfit + gamma * total_variation(outputs)
        if step % _CHECKED == 0 or step == settings.steps:
            watch.look(step, every, outputs.detach(), misfit.detach(), loss.detach())
            if progress is not None:
                progress(step / settings.steps, f"step {step} of at most {settings.steps}")
            if watch.done or step == settings.steps:
                break
        optimiser.zero_grad()
        loss.sum().backward()
        _clip(trained)
        optimiser.step()
        decay.step()
    return [
        Fitted(
            network,
            kept.weights,
            inputs[index],
            kept.image,
            kept.step,
            kept.misfit,
            float(gamma[index]),
        )
        for index, kept in enumerate(watch.kept)
    ]


def mask_sites(
    network: Network, weights: Weights, inputs: Float[Tensor, "1 1 size size"]
) -> tuple[DropoutSite, ...]:
    """The dropouts of a network for images."""
    apply = lambda images: network.apply(weights, images)  # noqa: E731
    return dropout_sites(apply, inputs, torch.cat([inputs, inputs]))


def _images(network: Network, weights: Weights, inputs: Tensor) -> Tensor:
    if len(inputs) == 1:  # grouped convolutions of one group are slower than plain ones
        single = {name: value[0] for name, value in weights.items()}
        return network.apply(single, inputs[0])[:, 0]
    outputs: Tensor = vmap(network.apply)(weights, inputs)
    return outputs[:, 0, 0]


def _clip(trained: Weights) -> None:
    """Each network's gradient to a norm of at most one."""
    gradients = [each.grad for each in trained.values() if each.grad is not None]
    squares = sum(each.reshape(len(each), -1).square().sum(1) for each in gradients)
    assert isinstance(squares, Tensor)
    factor = squares.sqrt().clamp_min(1.0).reciprocal()
    for each in gradients:
        each.mul_(factor.reshape(-1, *[1] * (each.ndim - 1)))


@dataclass
class _Kept:
    """The best weights of one network so far."""

    weights: Weights
    image: Tensor
    step: int
    misfit: float
    loss: float


class _Watch:
    """Keeps the weights of the lowest loss of each network, and says when to stop."""

    def __init__(self, settings: DeepImagePrior, levels: Sequence[float]) -> None:
        self._settings, self._levels = settings, levels
        self._stopped = [False] * len(levels)
        self._recent: list[list[Tensor]] = [[] for _ in levels]
        self._calmest = [(float("inf"), 0)] * len(levels)
        self.kept: list[_Kept] = []

    @property
    def done(self) -> bool:
        """Whether every network has stopped."""
        return all(self._stopped)

    def look(
        self, step: int, weights: Weights, images: Tensor, misfit: Tensor, loss: Tensor
    ) -> None:
        """Compares with what is kept."""
        if not bool(loss.isfinite().all()):
            raise CosetError(
                f"got a loss that is not finite at step {step}",
                "needed a descent that does not diverge",
                "give DeepImagePrior(rate=…) a smaller one",
            )
        single = unstack({name: value.detach().clone() for name, value in weights.items()})
        for index in range(len(images)):
            if self._stopped[index]:
                continue
            now = _Kept(
                single[index], images[index], step, float(misfit[index]), float(loss[index])
            )
            if len(self.kept) <= index:
                self.kept.append(now)
            calmest = self._calms(index, step, images[index])
            by_variance = self._settings.stop == "variance"
            if calmest if by_variance else now.loss <= self.kept[index].loss:
                self.kept[index] = now
            self._stopped[index] = self._stops(index, now)

    def _calms(self, index: int, step: int, image: Tensor) -> bool:
        """Whether the moving variance is at its smallest."""
        recent = self._recent[index]
        recent.append(image)
        if len(recent) <= _WINDOW:
            return True
        recent.pop(0)
        variance = float(torch.stack(recent).var(0).sum())
        if variance < self._calmest[index][0]:
            self._calmest[index] = variance, step
            return True
        return False

    def _stops(self, index: int, now: _Kept) -> bool:
        if self._settings.stop == "discrepancy":
            return now.misfit <= self._levels[index]
        if self._settings.stop == "variance" and len(self._recent[index]) == _WINDOW:
            return now.step - self._calmest[index][1] > _PATIENCE * _CHECKED
        return False
