import pytest
import torch

from coset.errors import CosetError
from coset.models.unet import interpolated_upsampling, unet


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_published_size_with_batch_norm():
    """The brain-segmentation U-Net: 3 channels in, 1 out, 32 to 512 channels: 7,763,041."""
    with torch.device("meta"):
        model = unet(in_channels=3, widths=(32, 64, 128, 256, 512), normalisation="batch")
    assert count(model) == 7_763_041


def test_the_original_size_without_norm():
    """Ronneberger's layers with biases, counted by hand: 31,030,658 for 1 channel in, 2 out."""
    widths = (64, 128, 256, 512, 1024)
    with torch.device("meta"):
        model = unet(classes=2, widths=widths, normalisation="none")
    down = sum(
        (9 * a + 1) * b + (9 * b + 1) * b for a, b in zip((1, *widths), widths, strict=False)
    )
    up = sum((8 * b + 1) * b + (18 * b + 1) * b + (9 * b + 1) * b for b in widths[:-1])
    assert count(model) == down + up + 65 * 2 == 31_030_658


@pytest.mark.parametrize("upsampling", ["transposed", "interpolated"])
@pytest.mark.parametrize("size", [(16, 16), (17, 23), (5, 4), (1, 1)])
@pytest.mark.parametrize("normalisation", ["batch", "none", "filter_response"])
def test_height_and_width_are_kept(upsampling, size, normalisation):
    model = unet(
        in_channels=2,
        classes=3,
        widths=(4, 8, 8),
        upsampling=upsampling,
        normalisation=normalisation,
    )
    assert model.eval()(torch.randn(2, 2, *size)).shape == (2, 3, *size)


def test_the_skip_carries_single_pixels():
    """With the coarse path cut, a pixel reaches as far as four 3×3 convolutions: four pixels."""
    model = unet(widths=(4, 8), normalisation="none", activation="silu").double()
    with torch.no_grad():
        for parameter in model.upsamplings.parameters():
            parameter.zero_()
    first = torch.randn(1, 1, 12, 12, dtype=torch.float64)
    second = first.clone()
    second[0, 0, 2, 2] += 1.0
    change = (model(second) - model(first)).abs()[0, 0]
    assert change[2, 2] > 1e-6
    assert change[7:].max() == 0
    assert change[:, 7:].max() == 0


def test_the_deep_image_prior_of_the_tomography_study():
    """Its weights under the prior: 288 + 36,864 + 39,168 of 3×3, 256 + 32 of 1×1 convolutions."""
    model = unet(
        widths=(32, 32, 32),
        skips=(4, 4),
        downsampling="strided",
        upsampling="bilinear",
        activation="leaky_relu",
        normalisation="none",
    )
    assert sum(p.numel() for p in model.parameters() if p.ndim == 4) == 76_608
    assert sum(m.stride == (2, 2) for m in model.modules() if isinstance(m, torch.nn.Conv2d)) == 2
    assert model(torch.randn(1, 1, 28, 28)).shape == (1, 1, 28, 28)


@pytest.mark.parametrize("skips", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("size", [(12, 12), (13, 7)])
def test_skips_of_any_width(skips, size):
    model = unet(widths=(4, 6, 8), skips=skips, downsampling="strided", upsampling="bilinear")
    assert model(torch.randn(2, 1, *size)).shape == (2, 1, *size)
    assert model.decoders[1].conv1.in_channels == 6 + skips[0]


def test_a_convolution_commutes_with_interpolation():
    convolution, enlarge = interpolated_upsampling(3, 2).double()
    inputs = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(enlarge(convolution(inputs)), convolution(enlarge(inputs)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"widths": ()},
        {"widths": (4, 0)},
        {"widths": 4},
        {"classes": 0},
        {"upsampling": "nearest"},
        {"downsampling": "average"},
        {"skips": (4,)},
        {"skips": (4, -1)},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(CosetError):
        unet(**arguments)


def test_dropout_drops_whole_channels_behind_each_block():
    """Two levels: two encoders and one decoder."""
    plain, model = unet(widths=(4, 8)), unet(widths=(4, 8), dropout=0.5)
    dropped = [m for m in model.modules() if isinstance(m, torch.nn.Dropout2d)]
    assert [m.p for m in dropped] == [0.5] * 3
    assert count(model) == count(plain)
    assert model.state_dict().keys() == plain.state_dict().keys()
    model.train()
    hidden = model.encoders[0](torch.randn(4, 1, 8, 8))
    gone = (hidden == 0).flatten(2).all(-1)
    assert gone.any()
    assert not gone.all()
    with pytest.raises(CosetError, match="dropout"):
        unet(dropout=1.0)
