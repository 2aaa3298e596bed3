"""Attention written in several ways, transformer encoders and recurrent layers.

Two heads of three units. Whatever the layout, heads permute as blocks, and inside each head the
query-key units (rows of query and key) and the value units (rows of value, columns of the output
layer) permute on their own: factors 2, 3 in 2, 3 in 2. Query up and key down, value up and output
down, by any nonzero number per unit: two scalings of 3 in 2. The sequence axes are pinned by the
input. A key bias adds the same number to all scores of a query, which softmax removes: its entries
are dead directions for the numerical probe (6 of them), not symmetries of the group.
"""

from collections.abc import Callable

import torch
from tests.symmetry.architectures.registry import case, cases_in, normal
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

HEADS = {"permutations": [(2,), (3, 2), (3, 2)], "nonzero": [(3, 2), (3, 2)]}
SEQUENCE = normal(2, 4, 5)
Heads = tuple[Tensor, Tensor, Tensor]


class FusedAttention(nn.Module):
    """One projection to query, key and value, cut apart by `layout`."""

    def __init__(self, layout: Callable[[Tensor], Heads], bias: bool = True) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(5, 18, bias=bias), nn.Linear(6, 2)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        mixed = scaled_dot_product_attention(*self.layout(self.project(x)))
        return self.out(mixed.transpose(1, 2).flatten(2))


def chunked(x: Tensor) -> Heads:
    """Columns (q | k | v), each (head, unit)."""
    query, key, value = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in x.chunk(3, -1))
    return query, key, value


def unbound(x: Tensor) -> Heads:
    """Columns (3, head, unit), unbound at the 3."""
    query, key, value = x.reshape(*x.shape[:2], 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def interleaved(x: Tensor) -> Heads:
    """Columns (head, (q | k | v), unit)."""
    query, key, value = x.view(*x.shape[:2], 2, 9).transpose(1, 2).split(3, -1)
    return query, key, value


def innermost(x: Tensor) -> Heads:
    """Columns (unit, head, 3)."""
    query, key, value = x.view(*x.shape[:2], 3, 2, 3).permute(0, 3, 1, 2, 4).unbind(-1)
    return query, key, value


class EinsumAttention(nn.Module):
    """Heads as an axis of the weights, every product an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Parameter(torch.randn(2, 3, fan)) for fan in (5, 5, 5, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            torch.einsum("bse,hde->bhsd", x, w) for w in (self.query, self.key, self.value)
        )
        scores = torch.einsum("bhsd,bhtd->bhst", query, key) / 3**0.5
        mixed = torch.einsum("bhst,bhtd->bhsd", scores.softmax(-1), value)
        return torch.einsum("bhsd,hdo->bso", mixed, self.out)


class GroupedQueryAttention(nn.Module):
    """Two key-value heads, each serving two query heads; causal."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(5, rows, bias=False) for rows in (12, 6, 6))
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (4, 3)).transpose(1, 2)
        key, value = (
            layer(x).unflatten(-1, (2, 3)).transpose(1, 2).repeat_interleave(2, 1)
            for layer in (self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SlopedAttention(nn.Module):
    """Distances weighted by a constant slope per head (ALiBi)."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(5, 18, bias=False), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype)
        slopes = torch.tensor([0.5, 0.25], dtype=x.dtype).view(2, 1, 1)
        mask = slopes * (place[None] - place[:, None])
        mixed = scaled_dot_product_attention(*chunked(self.project(x)), attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Embedding, nn.TransformerEncoder, mean over the sequence, head."""

    def __init__(self, layers: int, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            6, 2, 10, batch_first=True, norm_first=norm_first, dropout=0.1
        )
        norm = nn.LayerNorm(6) if norm_first else None
        self.embed, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=norm, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    """Two recurrent layers and a head on the last step."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]) -> None:
        super().__init__()
        self.body, self.head = kind(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


@case(example=SEQUENCE, **HEADS, dead=6)
def attention_chunked() -> nn.Module:
    """Fused rows (q | k | v), each (head, unit)."""
    return FusedAttention(chunked)


@case(example=SEQUENCE, **HEADS, dead=6)
def attention_unbound() -> nn.Module:
    """Fused rows (3, head, unit), reshaped and unbound."""
    return FusedAttention(unbound)


@case(example=SEQUENCE, **HEADS, dead=6)
def attention_interleaved() -> nn.Module:
    """Fused rows (head, q | k | v, unit): the cut lies inside the head."""
    return FusedAttention(interleaved)


@case(example=SEQUENCE, **HEADS)
def attention_innermost() -> nn.Module:
    """Fused rows (unit, head, 3): every third row belongs to one of query, key, value; no bias."""
    return FusedAttention(innermost, bias=False)


@case(example=SEQUENCE, **HEADS)
def attention_einsum() -> nn.Module:
    """Weights [head, unit, feature]: the same factors on axes 0 and 1."""
    return EinsumAttention()


@case(
    example=SEQUENCE,
    permutations=[(2,), (2, 2), (3, 2), (3, 2)],
    nonzero=[(3, 2), (3, 2)],
)
def attention_grouped_queries() -> nn.Module:
    """Key-value heads 2; inside each 2 query heads, 3 query-key units and 3 value units.

    A unit of a key head serves both its query heads: query rows are (key head, query head, unit)
    and the unit's permutation and scale look at the key head only. The causal mask touches the
    sequence alone.
    """
    return GroupedQueryAttention()


@case(example=SEQUENCE, permutations=[(3,)] * 4, nonzero=[(3,)] * 4)
def attention_with_slopes() -> nn.Module:
    """The slopes are constants that tell the two heads apart: heads are pinned.

    Each head is then a parent with a fixed index, and its query-key and value units are factors of
    their own: four of size 3, permuted and scaled.
    """
    return SlopedAttention()


@case(
    example=SEQUENCE,
    permutations=[(6,), *[(2,), (3, 2), (3, 2), (10,)] * 2],
    positive=[(10,), (10,)],
    nonzero=[*[(3, 2), (3, 2)] * 2, (6,)],
    dead=12,
)
def encoder_post_norm() -> nn.Module:
    """Two layers, norm after each sum: stream 6; per layer heads 2, units 3 and 3 inside, ReLU
    width 10.

    A norm's output goes into the next sum, whose norm ties the units; only the last norm is free:
    weight and bias against the head's columns (nonzero).
    """
    return Encoder(2, norm_first=False)


@case(
    example=SEQUENCE,
    permutations=[(6,), *[(2,), (3, 2), (3, 2), (10,)] * 2],
    positive=[(10,), (10,)],
    nonzero=[*[(3, 2), (3, 2), (6,), (6,)] * 2, (6,)],
    dead=12,
)
def encoder_norm_first() -> nn.Module:
    """Two layers, norm inside each branch: every norm's weight and bias against its one reader's
    columns.

    Two norms per layer and the last one: five nonzero scalings of 6. The stream itself is read by
    norms: no scale.
    """
    return Encoder(2, norm_first=True)


@case(example=normal(2, 3, 3), permutations=[(5,), (5,)], sign=[(5,), (5,)])
def lstm() -> nn.Module:
    """Per layer 5 units, moved in all four gates' rows, in the recurrent columns and in the next
    layer's.

    A unit's sign: candidate rows flip, so cell and output flip (tanh), so the readers' columns
    flip.
    """
    return Recurrent(nn.LSTM)


@case(example=normal(2, 3, 3), permutations=[(5,), (5,)], sign=[(5,), (5,)])
def gru() -> nn.Module:
    """Per layer 5 units; the sign of the candidate is the sign of the state."""
    return Recurrent(nn.GRU)


@case(example=normal(2, 3, 3), permutations=[(5,), (5,)], sign=[(5,), (5,)])
def rnn_tanh() -> nn.Module:
    """Per layer 5 units with tanh: signs of rows, recurrent rows and columns, readers."""
    return Recurrent(nn.RNN)


CASES = cases_in(globals())
