import pytest
import torch
from torch import nn

from coset.errors import CosetError
from coset.models.transformer import SelfAttention, point_transformer, vision_transformer


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("width", "heads", "parameters"),
    [(192, 3, 5_717_416), (384, 6, 22_050_664), (768, 12, 86_567_656)],
    ids=["ViT-Ti/16", "ViT-S/16", "ViT-B/16"],
)
def test_the_published_sizes(width, heads, parameters):
    with torch.device("meta"):
        model = vision_transformer(
            image_size=224, patch=16, width=width, depth=12, heads=heads, classes=1000
        )
    assert count(model) == parameters


def test_attention_matches_torchs_own():
    attention = SelfAttention(8, 2).double()
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight = attention.query_key_value.weight
    theirs.in_proj_bias = attention.query_key_value.bias
    theirs.out_proj.weight = attention.output.weight
    theirs.out_proj.bias = attention.output.bias
    tokens = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(tokens), theirs(tokens, tokens, tokens)[0])


def test_points_may_come_in_any_order_and_number():
    model = point_transformer().double()
    points = torch.randn(4, 9, 3, dtype=torch.float64)
    order = torch.randperm(9)
    torch.testing.assert_close(model(points[:, order]), model(points), rtol=1e-12, atol=1e-12)
    assert model(points[:, :5]).shape == (4, 10)


def test_pictures_are_not_a_set_of_patches():
    model = vision_transformer(in_channels=1, image_size=8, width=8, depth=1, heads=2).double()
    with torch.no_grad():
        model.tokens.position.normal_()
    pictures = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    assert (model(pictures) - model(pictures.flip(2))).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 10, "heads": 3}, "got width 10 for 3 heads"),
        ({"image_size": 30}, "patches of side 4"),
        ({"image_size": (32, 32)}, "image_size"),
        ({"depth": 0}, "depth"),
        ({"activation": "swish"}, "'swish'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(CosetError, match=message):
        vision_transformer(**arguments)


def test_bad_points_are_refused():
    with pytest.raises(CosetError, match="coordinates=0"):
        point_transformer(coordinates=0)
