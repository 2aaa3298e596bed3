"""Every family of `coset.models`, with small widths.

`convnets` derives the scale symmetries of a normalised channel: *before*, *after*, *sign*.
"""

from tests.symmetry.architectures.backbones import filters
from tests.symmetry.architectures.registry import case, cases_in, normal
from torch import nn

import coset.models as models
from coset.models.residual import Bottleneck

IMAGE = normal(2, 3, 8, 8)
GREY = normal(2, 1, 8, 8)
BASIC = filters(
    "conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2"
) | filters("layer2.0.shortcut.0")


@case(example=normal(3, 2, 2), permutations=[(6,), (5,)], positive=[(6,), (5,)])
def family_mlp() -> nn.Module:
    """4-6-5-3 with ReLU: two hidden axes, each with a positive scale per unit."""
    return models.mlp(4, (6, 5), 3)


@case(example=GREY, permutations=[(4,), (5,)], positive=[(4,), (5,)])
def family_convnet() -> nn.Module:
    """Two convolutions with ReLU, no norm: two channel axes with positive scales."""
    return models.convnet(widths=(4, 5), classes=3)


@case(
    example=normal(2, 1, 18, 18),
    permutations=[(2,), (5, 2), (3,)],
    positive=[(2,), (5, 2), (3,)],
)
def family_optunet() -> nn.Module:
    """conv 1-2, ReLU, max pool, grouped conv 2-10 (two groups), ReLU, mean, linear 3, ReLU, linear.

    The two channels are the two groups: factor 2, and inside each its 5 outputs; then 3. Two, ten
    and three units rescale.
    """
    return models.optunet(classes=4)


@case(
    example=IMAGE,
    permutations=[(4,), (4,), (6,), (6,)],
    positive=[(4,)] * 5 + [(6,)] * 5,
    sign=[(4,)] * 3 + [(6,)] * 3,
    invariances=BASIC,
)
def family_resnet_batch_relu() -> nn.Module:
    """One basic block of 4 and one of 6 with a projection, batch norm, ReLU (the shape of
    ResNet-20).

    Streams 4 and 6, one hidden axis a block. Norms: stem and second of block 1 on stream 4; second
    of block 2 and projection on stream 6; one on each hidden axis. Six *before* and six *sign*; an
    *after* for each of the four axes (the stream's is shared by all its norms).
    """
    return models.resnet(depths=(1, 1), widths=(4, 6), classes=2)


@case(
    example=IMAGE,
    permutations=[(4,), (4,), (6,), (6,)],
    sign=[(4,)] * 3 + [(6,)] * 3,
    invariances=BASIC,
)
def family_resnet_filter_response_silu() -> nn.Module:
    """The same with filter response norm and SiLU: no *before* (epsilon), no *after* (SiLU).

    Signs: each of the six convolutions against its norm's weight.
    """
    return models.resnet(
        depths=(1, 1),
        widths=(4, 6),
        classes=2,
        normalisation="filter_response",
        activation="silu",
    )


@case(
    example=IMAGE,
    permutations=[(4,), (4,), (6,), (6,)],
    positive=[(4,), (4,), (6,), (6,)],
    sign=[(4,)] * 3 + [(6,)] * 3,
    invariances=BASIC,
)
def family_resnet_filter_response_relu() -> nn.Module:
    """Filter response norm and ReLU: an *after* per axis and six signs."""
    return models.resnet(depths=(1, 1), widths=(4, 6), classes=2, normalisation="filter_response")


@case(
    example=IMAGE,
    permutations=[(4,), (2,), (2,), (4,), (8,)],
    positive=[(4,)] * 6 + [(2,)] * 4 + [(8,)] * 2,
    sign=[(4,)] * 4 + [(2,)] * 2 + [(8,)],
    invariances={name: groups for name, groups in BASIC.items() if "shortcut" not in name},
)
def family_resnet_padding() -> nn.Module:
    """Blocks of 4 and 8 with the shortcut padded by zeros.

    Stream 8 is 2 | 4 | 2, its middle tied to stream 4; zeros fit any label and scale. Factors: 4
    (both streams), 2, 2, hidden 4, hidden 8. On the common 4: *before* and *sign* of stem, block
    1 and the middle of block 2, one *after*; on each 2: before, after, sign; hidden axes likewise.
    """
    return models.resnet(depths=(1, 1), widths=(4, 8), classes=2, shortcut=models.padding_shortcut)


@case(
    example=normal(2, 3, 16, 16),
    permutations=[(4,), (4,), (4,), (6,), (6,)],
    positive=[(4,)] * 8 + [(6,)] * 5,
    sign=[(4,)] * 5 + [(6,)] * 3,
    invariances=BASIC | filters("layer1.1.conv1", "layer1.1.conv2"),
)
def family_resnet_imagenet() -> nn.Module:
    """Two basic blocks of 4, one of 6, strided stem and max pool (the shape of ResNet-18).

    Stream 4 has three norms (stem, two blocks): 3 before, 1 after, 3 signs; two hidden axes of 4
    with 2 positive and 1 sign each; stream 6 has two norms: 2 + 1 and 2; hidden 6: 2 and 1.
    """
    return models.resnet(depths=(2, 1), widths=(4, 6), classes=2, stem="imagenet")


DEPTHS = (3, 4, 6, 3)
BOTTLENECKS = [f"layer{i}.{j}" for i, depth in enumerate(DEPTHS, 1) for j in range(depth)]


@case(
    example=normal(1, 3, 16, 16),
    permutations=[(2,)] * 33 + [(8,)] * 4,
    positive=[(2,)] * 66 + [(8,)] * 24,
    sign=[(2,)] * 33 + [(8,)] * 20,
    invariances=filters(
        "conv1",
        *(f"{block}.conv{k}" for block in BOTTLENECKS for k in (1, 2, 3)),
        *(f"layer{i}.0.shortcut.0" for i in (1, 2, 3, 4)),
    ),
    heavy=True,
)
def family_resnet50() -> nn.Module:
    """ResNet-50 with all its blocks and widths of 2: 37 factors, 53 filters divided out.

    Stem 2, in each of 16 blocks two hidden axes of 2, four streams of 8. Stem and hidden axes:
    before, after, sign. A stage of d blocks has d + 1 norms on its stream (blocks and projection):
    d + 1 before and signs, one after; with d = 3, 4, 6, 3: 20 and 4.
    """
    return models.resnet(depths=DEPTHS, widths=(2, 2, 2, 2), block=Bottleneck, classes=2)


@case(
    example=IMAGE,
    permutations=[(4,), (4,), (4,), (6,), (6,)],
    positive=[(4,)] * 8 + [(6,)] * 4,
    sign=[(4,)] * 3 + [(6,)] * 2,
    invariances=filters("layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1"),
)
def family_preactivation_resnet() -> nn.Module:
    """Two pre-activation blocks of 4, one of 6, closing norm.

    Stream 4 is written by the stem and two blocks and read by three norms: one *before* and one
    *sign* through all of them, one *after* per norm. Stream 6: one norm, before, after, sign. Three
    hidden axes: before, after, sign. Only first convolutions are read by a norm alone.
    """
    return models.preactivation_resnet(depths=(2, 1), widths=(4, 6), classes=2)


@case(
    example=IMAGE,
    permutations=[(4,), (2,), (2,), (4,), (8,)],
    common=5,
)
def family_fixup_resnet() -> nn.Module:
    """Blocks of 4 and 8 without norm, padded shortcuts: axes as in `family_resnet_padding`.

    Every activation is preceded by one bias for all channels, which ties their scales. Scales of
    size one remain: the stream's, and in each block the hidden one and the multiplier against the
    last convolution: 1 + 2 * 2.
    """
    return models.fixup_resnet(depths=(1, 1), widths=(4, 8), classes=2)


BLOCK = [(2,), (3, 2), (3, 2), (12,)]


@case(
    example=GREY,
    permutations=[(6,), *BLOCK * 2],
    nonzero=[*[(3, 2), (3, 2), (6,), (6,)] * 2, (6,)],
    dead=12,
)
def family_vision_transformer() -> nn.Module:
    """Stream 6; two blocks of 2 heads with 3 units, hidden 12 with GELU.

    Scales as in `attention`: query-key and value units, every norm against its reader (two per
    block and the last). Key biases are dead: 2 * 6.
    """
    return models.vision_transformer(
        in_channels=1, image_size=8, patch=4, classes=2, width=6, depth=2, heads=2, expansion=2
    )


@case(
    example=normal(2, 5, 3),
    permutations=[(6,), *BLOCK],
    nonzero=[(3, 2), (3, 2), (6,), (6,), (6,)],
    dead=6,
)
def family_point_transformer() -> nn.Module:
    """One block without positions: as the vision transformer; the points are pinned by input."""
    return models.point_transformer(classes=2, width=6, depth=1, heads=2, expansion=2)


@case(
    example=GREY,
    permutations=[*[(2,), (3, 2)] * 4, *[(4,), (3, 4)] * 2, (6,)],
    positive=[(3, 2)] * 4 + [(3, 4)] * 2,
    nonzero=[(6,)],
    sign=[(2,)] * 4 + [(4,)] * 2,
    invariances={
        f"{part}.conv{k}.weight": "channel-group"
        for part in ("encoders.0", "encoders.1", "decoders.0")
        for k in (1, 2)
    },
)
def family_unet() -> nn.Module:
    """Levels 6 and 12, group norm of 2 groups of 3 and 4 groups of 3, ReLU, transposed convolution
    6.

    Two convolutions each in both encoders and the decoder: groups, channels inside; norm weight and
    bias against readers; a sign per group against the norm's weights. The enlarged 6 channels are
    linear and concatenated to the skip: nonzero.
    """
    return models.unet(widths=(6, 12))


CASES = cases_in(globals())
