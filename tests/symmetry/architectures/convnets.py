"""Convolutional networks, one idea at a time.

For a channel with batch norm in eval mode there are three scale symmetries: *before*: rows and bias
of the convolution and the running mean by s > 0, variance + epsilon by s**2; *after*: norm weight
and bias by s, the next layer's columns by 1/s, in the domain that the activation allows (ReLU:
positive, nothing: nonzero, SiLU: none); and a *sign*: rows, bias, running mean and norm weight of a
channel flip together, which leaves the norm's output as it was. The sign is a factor of its own
because no integer power of s is 1 for positive and -1 for negative s. Spatial axes are pinned by
the input.
"""

import torch
from tests.symmetry.architectures.registry import case, cases_in, normal
from torch import Tensor, nn

IMAGE = normal(2, 3, 8, 8)


def pooled(*layers: nn.Module, channels: int, classes: int = 2) -> nn.Sequential:
    """Layers, global average, linear head."""
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


class FilterResponseNorm(nn.Module):
    """x / sqrt(mean x**2 + eps) * weight + bias, then max(., threshold), per channel."""

    def __init__(self, channels: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias, self.threshold = (
            nn.Parameter(torch.randn(1, channels, 1, 1)) for _ in range(3)
        )
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + self.epsilon)
        return torch.maximum(x * self.weight + self.bias, self.threshold)


class ChannelLayerNorm(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """One level down and up, with a concatenated skip and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.middle = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.decode, self.head = nn.Conv2d(9, 7, 3, padding=1), nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.encode(x).relu()
        x = self.up(self.middle(nn.functional.max_pool2d(skip, 2)).relu())
        return self.head(self.decode(torch.cat([skip, x], 1)).relu())


@case(example=IMAGE, permutations=[(4,), (5,)], positive=[(4,), (5,)])
def flatten_after_pooling() -> nn.Module:
    """conv 3-4, ReLU, max pool, conv 4-5, ReLU, average pool, flatten, linear.

    Both channel axes free and positively scaled: maximum and average pooling are homogeneous. After
    flatten the head's columns are (channel 5, 2 x 2 pixels): the channel digit moves, pixels are
    pinned.
    """
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 2),
    )


@case(example=IMAGE, permutations=[(6,)], positive=[(6,), (6,)])
def depthwise() -> nn.Module:
    """conv 3-6, ReLU, depthwise 6, ReLU, head: the depthwise layer ties in and out: one factor.

    Two scales per channel: conv rows against depthwise rows, depthwise rows (and bias) against
    head.
    """
    return pooled(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), channels=6
    )


@case(
    example=IMAGE,
    permutations=[(4,), (5,)],
    positive=[(4,), (4,), (5,), (5,)],
    sign=[(4,), (5,)],
    invariances={"0.weight": "filter", "3.weight": "filter"},
)
def batch_norm_convnet() -> nn.Module:
    """Two conv-BN-ReLU: per channel axis before (positive), after (positive), sign."""
    return pooled(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        channels=5,
    )


@case(
    example=IMAGE,
    permutations=[(4,)],
    positive=[(4,)],
    sign=[(4,)],
    invariances={"0.weight": "filter"},
    dead=4,
)
def instance_norm_convnet() -> nn.Module:
    """conv, InstanceNorm (affine), ReLU, head.

    Epsilon forbids a scale before the norm; rows and norm weight flip together; norm weight and
    bias against the head's columns. Without epsilon each filter is divided out.
    The norm removes the four biases: dead.
    """
    return pooled(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), channels=4)


@case(
    example=IMAGE,
    permutations=[(2,), (3, 2)],
    positive=[(3, 2)],
    sign=[(2,)],
    invariances={"0.weight": "channel-group"},
)
def group_norm_convnet() -> nn.Module:
    """conv 3-6, GroupNorm in 2 groups of 3, ReLU, head.

    Groups permute, and channels inside each group. Norm weight and bias against head: per channel,
    i.e. 3 within 2 groups. The mean ties a group's signs: rows and norm weights of a whole group
    flip. Each group of filters is divided out.
    """
    return pooled(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), channels=6)


@case(example=IMAGE, permutations=[(4,)], positive=[(4,)], invariances={"0.weight": "layer"})
def layer_norm_convnet() -> nn.Module:
    """conv, LayerNorm over channels, ReLU, head: as in the dense case."""
    return pooled(nn.Conv2d(3, 4, 3), ChannelLayerNorm(4), nn.ReLU(), channels=4)


@case(
    example=IMAGE,
    permutations=[(4,), (5,)],
    positive=[(4,), (5,)],
    sign=[(4,), (5,)],
    invariances={"0.weight": "filter", "2.weight": "filter"},
)
def filter_response_norm_convnet() -> nn.Module:
    """Two conv-FRN with learned thresholds.

    After: weight, bias and threshold up (the maximum needs s > 0), next columns down. Sign: rows,
    conv bias and norm weight, since the mean square does not see it. Epsilon is a constant: nothing
    before.
    """
    return pooled(
        nn.Conv2d(3, 4, 3),
        FilterResponseNorm(4),
        nn.Conv2d(4, 5, 3),
        FilterResponseNorm(5),
        channels=5,
    )


@case(
    example=IMAGE,
    permutations=[(4,), (5,), (6,), (7,)],
    positive=[(4,), (6,), (7,)],
    nonzero=[(5,)],
)
def unet_with_skip() -> nn.Module:
    """encode 4 (read by the skip and by the way down), middle 6, up 5, decode 7.

    The merge's columns are cut in 4 skip and 5 up channels. The transposed convolution has no
    activation: its five channels scale by any nonzero number.
    """
    return UNet()


@case(
    example=normal(2, 3, 12),
    permutations=[(4,), (6,)],
    positive=[(4,), (6,)],
)
def convolution_in_time() -> nn.Module:
    """Conv1d 3-4, ReLU, strided Conv1d 4-6, ReLU, mean over time, linear."""
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(4, 6, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )


@case(
    example=IMAGE,
    permutations=[(4,), (6,), (5,), (7,)],
    positive=[(4,), (4,), (6,), (6,), (5,), (7,)],
    sign=[(4,), (6,)],
    invariances={"0.weight": "filter", "4.weight": "filter"},
)
def vgg_batch_norm() -> nn.Module:
    """VGG-BN: conv-BN-ReLU-pool twice (4, 6), then flatten (6 x 2 x 2) and dense 5, 7 with ReLU.

    Convolutions: before, after, sign. Dense layers: one positive scale each.
    """
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 5),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(5, 7),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(7, 2),
    )


CASES = cases_in(globals())
