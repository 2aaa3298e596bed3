"""Transformers for pictures and for sets of points, pre-norm (Dosovitskiy et al. 2021)."""

import math
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from coset.errors import CosetError, require_counts
from coset.models.choices import ACTIVATIONS, Activation, choose, dropout_of


class SelfAttention(nn.Module):
    """Multi-head self-attention: ``softmax(Q Kᵀ / √d) V`` in each head, then a linear layer.

    Written with plain operations: the fused kernels have no forward-mode derivative and no rule
    for stacks of weights.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise CosetError(
                f"got width {width} for {heads} heads",
                "needed a width that the heads divide evenly",
                "change width or heads",
            )
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Let every token read all tokens of its own input."""
        count, length, width = tokens.shape
        split = self.query_key_value(tokens).reshape(count, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        mixed = scores.softmax(dim=-1) @ value
        outputs: Tensor = self.output(mixed.transpose(1, 2).reshape(count, length, width))
        return outputs


class TransformerBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + linear(activation(linear(norm(x))))``."""

    def __init__(
        self, width: int, heads: int, hidden: int, build: Activation, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.dropout1 = dropout_of(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.activation = build()
        self.linear2 = nn.Linear(hidden, width)
        self.dropout2 = dropout_of(dropout)

    def forward(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Mix the tokens, then transform each."""
        tokens = tokens + self.dropout1(self.attention(self.norm1(tokens)))
        hidden = self.activation(self.linear1(self.norm2(tokens)))
        outputs: Tensor = tokens + self.dropout2(self.linear2(hidden))
        return outputs


class PatchTokens(nn.Module):
    """Cut pictures into patches, embed them, put a class token in front, add the positions."""

    def __init__(self, in_channels: int, patch: int, patches: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(in_channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, width))
        self.position = nn.Parameter(torch.empty(patches + 1, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class token and the positions anew; the embedding resets itself."""
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(
        self, inputs: Float[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n tokens w"]:
        """Return the class token and one token for each patch."""
        embedded = self.embedding(inputs).flatten(2).transpose(1, 2)
        first = self.class_token.expand(embedded.shape[0], 1, -1)
        return torch.cat([first, embedded], dim=1) + self.position


class VisionTransformer(nn.Module):
    """Patches, transformer blocks, a norm, and a linear layer on the class token."""

    def __init__(
        self, tokens: PatchTokens, blocks: nn.Sequential, width: int, classes: int
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.blocks = blocks
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, inputs: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n c"]:
        """Return one row of outputs for each picture."""
        outputs: Tensor = self.linear(self.norm(self.blocks(self.tokens(inputs)))[:, 0])
        return outputs


class PointTransformer(nn.Module):
    """Embedded points, transformer blocks without positions, a norm, a mean and a linear layer."""

    def __init__(self, coordinates: int, blocks: nn.Sequential, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(coordinates, width)
        self.blocks = blocks
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, points: Float[Tensor, "n points coordinates"]) -> Float[Tensor, "n c"]:
        """Return one row of outputs for each set of points, whatever their order."""
        tokens = self.norm(self.blocks(self.embedding(points)))
        outputs: Tensor = self.linear(tokens.mean(dim=1))
        return outputs


class BlockOptions(TypedDict, total=False):
    """The arguments of ``transformer_blocks`` that the models below pass on."""

    expansion: int
    activation: str | Activation
    dropout: float


def transformer_blocks(
    *,
    width: int,
    depth: int,
    heads: int,
    expansion: int = 4,
    activation: str | Activation = "gelu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return transformer blocks of one shape.

    Args:
        width: Numbers in one token.
        depth: Blocks.
        heads: Attention heads; they divide ``width``.
        expansion: Hidden units of a block's perceptron over ``width``.
        activation: A name from the table of activations, or a factory as ``nn.GELU``.
        dropout: Rate of dropout at the end of both halves of a block.

    >>> blocks = transformer_blocks(width=4, depth=1, heads=1)
    >>> sum(p.numel() for p in blocks.parameters())  # 8 norm, 60 + 20 attention, 8 norm, 80 + 68
    244
    """
    require_counts(width=width, depth=depth, heads=heads, expansion=expansion)
    build = choose("activation", activation, ACTIVATIONS)
    hidden = expansion * width
    return nn.Sequential(
        *(TransformerBlock(width, heads, hidden, build, dropout) for _ in range(depth))
    )


def vision_transformer(
    *,
    in_channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    classes: int = 10,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    **options: Unpack[BlockOptions],
) -> VisionTransformer:
    """Return a vision transformer for square pictures of one size.

    Args:
        in_channels: Channels of the pictures.
        image_size: Side of the pictures in pixels.
        patch: Side of the patches; it divides ``image_size``.
        classes: Outputs.
        width: Numbers in one token.
        depth: Transformer blocks.
        heads: Attention heads; they divide ``width``.
        **options: ``expansion``, ``activation``, ``dropout`` of ``transformer_blocks``.

    >>> model = vision_transformer(in_channels=1, image_size=8, width=4, depth=1, heads=1)
    >>> sum(p.numel() for p in model.parameters())  # 68 patches, 24 tokens, 244 block, 8, 50
    394
    """
    require_counts(in_channels=in_channels, image_size=image_size, patch=patch, classes=classes)
    if image_size % patch:
        raise CosetError(
            f"got pictures of side {image_size} and patches of side {patch}",
            "needed patches that fill the picture",
            "change patch to a divisor of image_size",
        )
    blocks = transformer_blocks(width=width, depth=depth, heads=heads, **options)
    tokens = PatchTokens(in_channels, patch, (image_size // patch) ** 2, width)
    return VisionTransformer(tokens, blocks, width, classes)


def point_transformer(
    *,
    coordinates: int = 3,
    classes: int = 10,
    width: int = 32,
    depth: int = 2,
    heads: int = 4,
    **options: Unpack[BlockOptions],
) -> PointTransformer:
    """Return a transformer for sets of points, invariant to the order of the points.

    The sets of one batch have one number of points; other batches may have another.  The
    arguments are those of ``vision_transformer``, with ``coordinates`` the numbers of one point.

    >>> model = point_transformer(width=4, depth=1, heads=1)
    >>> sum(p.numel() for p in model.parameters())  # 16 points, 244 block, 8 norm, 50
    318
    """
    require_counts(coordinates=coordinates, classes=classes)
    blocks = transformer_blocks(width=width, depth=depth, heads=heads, **options)
    return PointTransformer(coordinates, blocks, width, classes)
