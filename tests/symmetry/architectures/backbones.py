"""Image backbones in miniature: DenseNet, MobileNetV2/V3, EfficientNet, ShuffleNet, ResNeXt,
ConvNeXt.

See `convnets` for the three scale symmetries of a batch-normalised channel, called *before*,
*after* and *sign* here as well.
"""

from collections.abc import Callable

import torch
from tests.symmetry.architectures.convnets import IMAGE, ChannelLayerNorm, pooled
from tests.symmetry.architectures.registry import case, cases_in
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def conv_norm(
    fan_in: int,
    fan_out: int,
    kernel: int = 1,
    *,
    groups: int = 1,
    activation: Activation = nn.Identity,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation."""
    convolution = nn.Conv2d(fan_in, fan_out, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(fan_out), activation())


def filters(*names: str) -> dict[str, str]:
    """Weights of convolutions that only a batch norm reads: each filter's scale is divided out."""
    return {f"{name}.weight": "filter" for name in names}


class DenseLayer(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv, concatenated to its input."""

    def __init__(self, fan_in: int, width: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(fan_in), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(fan_in, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        grown = self.conv2(self.norm2(self.conv1(self.norm1(x).relu())).relu())
        return torch.cat([x, grown], 1)


class SqueezeExcite(nn.Module):
    """Channels gated by a bottleneck of their means."""

    def __init__(self, channels: int, width: int, activation: Activation, gate: Activation) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.activation, self.gate = activation(), gate()

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.excite(self.activation(self.squeeze(pooled))))


class Residual(nn.Module):
    """x + body(x), then an activation."""

    def __init__(self, *body: nn.Module, activation: Activation = nn.Identity) -> None:
        super().__init__()
        self.body, self.activation = nn.Sequential(*body), activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x + self.body(x))


class ConvNextBlock(nn.Module):
    """Depthwise, LayerNorm, two pointwise layers with GELU, layer scale."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, width), nn.Linear(width, channels)
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ShuffleUnit(nn.Module):
    """The second version's unit: half the channels pass, half are transformed, then shuffled."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.up = nn.Conv2d(channels // 2, width, 1)
        self.down = nn.Conv2d(width, channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        right = self.down(self.up(right).relu()).relu()
        return nn.functional.channel_shuffle(torch.cat([left, right], 1), 2)


@case(
    example=IMAGE,
    permutations=[(4,), (5,), (3,), (5,), (3,), (6,)],
    positive=[*[(4,)] * 4, *[(5,)] * 4, *[(3,)] * 5, *[(6,)] * 2],
    sign=[(4,), (5,), (3,), (5,), (3,), (6,)],
    invariances=filters("0", "1.conv1", "1.conv2", "2.conv1", "2.conv2", "5"),
)
def densenet() -> nn.Module:
    """stem 4; dense layers of bottleneck 5 and growth 3, twice; transition BN-ReLU-conv 10-6; BN;
    head.

    Pieces of the concatenation: stem 4, growth 3, growth 3; each shared by all later norms. Own
    axes: bottlenecks 5 and 5, transition 6. A piece has one *before* and one *sign* (through the
    statistics and weights of every norm that reads it) and one *after* per norm that reads it: stem
    3 norms (1 + 3 positive), first growth 2 (1 + 2), second 1 (1 + 1); bottlenecks and transition 1
    + 1. Every convolution is only read by norms: per filter.
    """
    return pooled(
        nn.Conv2d(3, 4, 3, bias=False),
        DenseLayer(4, 5, 3),
        DenseLayer(7, 5, 3),
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.Conv2d(10, 6, 1, bias=False),
        nn.AvgPool2d(2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        channels=6,
    )


@case(
    example=IMAGE,
    permutations=[(5,), (4,), (8,), (6,)],
    positive=[*[(5,)] * 2, *[(4,)] * 2, *[(8,)] * 2, (6,)],
    nonzero=[(4,)],
    sign=[*[(5,)] * 2, *[(4,)] * 2, *[(8,)] * 2, (6,)],
    invariances=filters("0.0", "1.0", "2.0", "3.body.0.0", "3.body.1.0", "3.body.2.0", "4.0"),
)
def mobilenet_v2() -> nn.Module:
    """stem 5 (ReLU6), depthwise 5 (ReLU6), project 4; inverted residual 4-8-8-4; last 6 (ReLU6).

    Axes: 5 (stem and its depthwise layer), stream 4, expanded 8 (and its depthwise layer), last 6.
    ReLU6 is not homogeneous: no *after* behind it. Each of the seven norms has a *before* and a
    *sign*: two on 5, two on 4, two on 8, one on 6. The stream is linear: the two project norms'
    weights and biases against the columns of its readers: nonzero.
    """
    return pooled(
        conv_norm(3, 5, 3, activation=nn.ReLU6),
        conv_norm(5, 5, 3, groups=5, activation=nn.ReLU6),
        conv_norm(5, 4),
        Residual(
            conv_norm(4, 8, activation=nn.ReLU6),
            conv_norm(8, 8, 3, groups=8, activation=nn.ReLU6),
            conv_norm(8, 4),
        ),
        conv_norm(4, 6, activation=nn.ReLU6),
        channels=6,
    )


@case(
    example=IMAGE,
    permutations=[(4,), (8,), (3,), (6,), (5,)],
    positive=[*[(4,)] * 3, *[(8,)] * 4, (3,), *[(6,)] * 2],
    sign=[*[(4,)] * 3, *[(8,)] * 2, *[(6,)] * 2],
    invariances=filters(
        "0.0", "1.body.0.0", "1.body.1.0", "1.body.3.0", "2.body.0.0", "2.body.1.0", "2.body.2.0"
    ),
)
def mobilenet_v3() -> nn.Module:
    """stem 4 (hard-swish); block 4-8-8-4 with ReLU and squeeze-excite 3; block 4-6-6-4 with hard-
    swish; dense 5.

    Stream 4: written by the stem *after* hard-swish and by two linear norms. Hard-swish pins the
    stream's scale, so only *before* and *sign* for each of its three norms. Expanded 8: *before*,
    *after* and *sign* for both norms (ReLU; the depthwise rows stand between them; the second
    *after* goes down in the columns of squeeze and of project). Squeeze 3: ReLU, positive. Expanded
    6: *before* and *sign* twice. The last dense layer 5 has hard-swish: permutation only.
    """
    return nn.Sequential(
        conv_norm(3, 4, 3, activation=nn.Hardswish),
        Residual(
            conv_norm(4, 8, activation=nn.ReLU),
            conv_norm(8, 8, 3, groups=8, activation=nn.ReLU),
            SqueezeExcite(8, 3, nn.ReLU, nn.Hardsigmoid),
            conv_norm(8, 4),
        ),
        Residual(
            conv_norm(4, 6, activation=nn.Hardswish),
            conv_norm(6, 6, 3, groups=6, activation=nn.Hardswish),
            conv_norm(6, 4),
        ),
        *pooled(channels=4, classes=5),
        nn.Hardswish(),
        nn.Linear(5, 2),
    )


@case(
    example=IMAGE,
    permutations=[(4,), (8,), (3,), (6,)],
    positive=[(4,), *[(8,)] * 2, (4,), (6,)],
    sign=[(4,), *[(8,)] * 2, (4,), (6,)],
    invariances=filters("0.0", "1.body.0.0", "1.body.1.0", "1.body.3.0", "2.0"),
)
def efficientnet() -> nn.Module:
    """stem 4 (SiLU), MBConv 4-8-8-4 with squeeze-excite 3, last 6; SiLU everywhere.

    Stream 4 (stem and project), expanded 8, squeeze 3, last 6. SiLU allows no *after*, and it pins
    the stream's scale where the stem writes. Five norms: *before* and *sign* each.
    """
    return pooled(
        conv_norm(3, 4, 3, activation=nn.SiLU),
        Residual(
            conv_norm(4, 8, activation=nn.SiLU),
            conv_norm(8, 8, 3, groups=8, activation=nn.SiLU),
            SqueezeExcite(8, 3, nn.SiLU, nn.Sigmoid),
            conv_norm(8, 4),
        ),
        conv_norm(4, 6, activation=nn.SiLU),
        channels=6,
    )


@case(
    example=IMAGE,
    permutations=[(2,), (3, 2), (2,), (5, 2, 2), (4, 2)],
    positive=[(3, 2), *[(5, 2, 2)] * 3, *[(4, 2)] * 2],
    nonzero=[(5, 2, 2)],
    sign=[*[(5, 2, 2)] * 2, (4, 2)],
    invariances={"0.weight": "channel-group", **filters("2.0", "4.0", "5.0")},
)
def shufflenet() -> nn.Module:
    """stem 6, grouped 1x1 (2 groups) to 20 with ReLU, shuffle, depthwise 20, grouped 1x1 (2 groups)
    to 8, head.

    The stem's 6 = (g 2, i 3): groups of the first grouped layer and channels inside. Its 20 outputs
    are (g 2, o 10); the shuffle writes them as (o 10, g 2), and the second grouped layer cuts that
    in 2: o = (e 2, u 5). So e is the group of the second layer, whose columns are (u, g), and u
    lives inside both g and e. The second layer's 8 = (e 2, p 4). Factors: g 2, e 2, i 3 in g, u 5
    in g and e, p 4 in e. Scales: stem 3 in g (ReLU). On u: first norm before and after (ReLU),
    depthwise norm before (positive) and after (linear: nonzero), two signs. On p: before, after
    (ReLU), sign. Invariances: the filters before the norms; and a group of the stem (with its bias)
    scales all that its grouped layer gives to the first norm, which divides it out.
    """
    return pooled(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        conv_norm(6, 20, groups=2, activation=nn.ReLU),
        nn.ChannelShuffle(2),
        conv_norm(20, 20, 3, groups=20),
        conv_norm(20, 8, groups=2, activation=nn.ReLU),
        channels=8,
    )


@case(
    example=IMAGE,
    permutations=[(2,), (2,), (4,), (2,), (2,), (4,), (3,), (5,)],
    positive=[(2,), (2,), (4,), (2,), (2,), (4,), (3,), (5,)],
)
def shufflenet_v2() -> nn.Module:
    """stem 8, two units (chunk, transform half, concatenate, shuffle) of widths 3 and 5, head; ReLU
    everywhere.

    Unit 1: stem = a 4 | b 4; b goes through width 3 to c 4; shuffled to a0 c0 a1 c1 a2 c2 a3 c3.
    Unit 2 cuts this in halves: (a0 a1, c0 c1) pass, (a2 a3, c2 c3) go through width 5 to d 4. So a
    falls into 2 and 2, c into 2 and 2, while b, d, 3 and 5 are whole. Every piece leaves a ReLU and
    is read linearly: positive.
    """
    return pooled(nn.Conv2d(3, 8, 3), nn.ReLU(), ShuffleUnit(8, 3), ShuffleUnit(8, 5), channels=8)


@case(
    example=IMAGE,
    permutations=[(6,), (4,), (3, 4), (2, 4)],
    positive=[*[(6,)] * 3, *[(3, 4)] * 2, *[(2, 4)] * 2],
    sign=[*[(6,)] * 2, (3, 4), (2, 4)],
    invariances=filters("0.0", "1.body.0.0", "1.body.1.0", "1.body.2.0"),
)
def resnext() -> nn.Module:
    """stem 6; bottleneck 6-12-8-6 with 4 groups in the middle; ReLU after each norm and after the
    sum.

    Stream 6. Groups 4; inside each, 3 inputs (rows of the first layer) and 2 outputs (columns of
    the last). Stream: two norms before and sign, one common *after*. Inside groups: before, after,
    sign.
    """
    return pooled(
        conv_norm(3, 6, 3, activation=nn.ReLU),
        Residual(
            conv_norm(6, 12, activation=nn.ReLU),
            conv_norm(12, 8, 3, groups=4, activation=nn.ReLU),
            conv_norm(8, 6),
            activation=nn.ReLU,
        ),
        channels=6,
    )


@case(
    example=IMAGE,
    permutations=[(4,), (10,), (6,), (12,)],
    nonzero=[*[(4,)] * 3, *[(6,)] * 3],
    invariances={
        "0.weight": "layer",
        "2.depthwise.weight": "layer",
        "5.depthwise.weight": "layer",
    },
)
def convnext() -> nn.Module:
    """stem 4 with LayerNorm, block of width 10, LayerNorm and strided conv 4-6, block of width 12,
    mean, LayerNorm, head.

    Streams 4 and 6, widths 10 and 12 (GELU: no scale). Each stream ends in a LayerNorm, which ties
    its units: no scale. Nonzero scales: in each block norm weight and bias against `up`'s columns,
    and `down`'s rows and bias against the layer scale; the norm before the strided convolution
    against its columns; the last norm against the head: 4, 4, 4 and 6, 6, 6. Only what is read by a
    norm alone is divided out.
    """
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=2),
        ChannelLayerNorm(4),
        ConvNextBlock(4, 10),
        ChannelLayerNorm(4),
        nn.Conv2d(4, 6, 2, stride=2),
        ConvNextBlock(6, 12),
        *pooled(channels=6)[:2],
        nn.LayerNorm(6),
        nn.Linear(6, 2),
    )


CASES = cases_in(globals())
