"""ViT, BERT, GPT-2 and Llama of the `transformers` package, built from a small config.

Two heads of four units (Llama: four query heads on two key-value heads), stream 8, hidden width 12.
Without the rotary table each layer has heads 2, query-key units 4 in 2, value units 4 in 2, and two
nonzero scalings of 4 in 2 as derived in `attention`. Vocabulary and position axes are pinned by the
tokens.
"""

import os
from collections.abc import Callable
from typing import Any

from tests.symmetry.architectures.registry import case, cases_in, normal, tokens
from torch import Tensor, nn

LAYER = [(2,), (4, 2), (4, 2), (12,)]
UNITS = [(4, 2), (4, 2)]
TOKENS = tokens(2, 5, vocabulary=11)


class Logits(nn.Module):
    """A model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def model_of(name: str, head: str, **options: Any) -> nn.Module:
    """`{name}For{head}` with `{name}Config(**options)`, random weights, nothing downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    config = getattr(transformers, f"{name}Config")(**options)
    build: Callable[[Any], nn.Module] = getattr(transformers, f"{name}{head}")
    return Logits(build(config))


def llama(**options: Any) -> nn.Module:
    return model_of(
        "Llama",
        "ForCausalLM",
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=16,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=1,
        **options,
    )


@case(
    example=normal(2, 3, 8, 8),
    permutations=[(8,), *LAYER * 2],
    nonzero=[*UNITS * 2, *[(8,)] * 5],
    dead=16,
    heavy=True,
)
def vit() -> nn.Module:
    """Stream 8: patch convolution, class token, position table, norms, output layers, head. Two
    layers.

    Norms stand first: weight and bias against the columns of query, key and value, or of the MLP:
    two per layer; the last one against the classifier: five nonzero scalings of 8. GELU: no scale
    on 12. Key biases: 2 x 8 dead.
    """
    return model_of(
        "ViT",
        "ForImageClassification",
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )


@case(
    example=TOKENS,
    permutations=[(8,), *LAYER * 2, (8,)],
    nonzero=[*UNITS * 2, (8,)],
    sign=[(8,)],
    dead=20,
    heavy=True,
)
def bert() -> nn.Module:
    """Stream 8 (three embedding tables, post-norm layers), and the pooler's own 8 units.

    Norms after the sums: only the last one is read linearly alone (by the pooler): nonzero 8. The
    pooler has tanh: sign 8. Dead for the probe: 16 key biases, 3 positions and 1 token type that
    are never read.
    """
    return model_of(
        "Bert",
        "ForSequenceClassification",
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        pad_token_id=None,
        num_labels=3,
    )


@case(
    example=TOKENS,
    permutations=[(8,), *LAYER * 2],
    nonzero=[*UNITS * 2, *[(8,)] * 4],
    dead=19,
    heavy=True,
)
def gpt2() -> nn.Module:
    """Stream 8; the token table is also the head (tied), so its feature axis is the stream.

    Each layer's two norms against their readers: four nonzero scalings of 8. The last norm is read
    by the tied table, which may not scale, as it writes the stream that norms tie.
    Dead: 16 key biases, 3 positions never read.
    """
    return model_of(
        "GPT2",
        "LMHeadModel",
        vocab_size=11,
        n_embd=8,
        n_layer=2,
        n_head=2,
        n_inner=12,
        n_positions=8,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
    )


LLAMA_LAYER = [(12,), (2,), (2, 2), (6, 2)]
LLAMA_SCALES = [(12,), (6, 2), (3, 2), (8,), (8,)]


@case(
    example=TOKENS,
    permutations=[(8,), *LLAMA_LAYER * 2],
    nonzero=LLAMA_SCALES * 2,
    sign=[(8,)],
    heavy=True,
)
def llama_tied() -> nn.Module:
    """Per layer: gated MLP 12, key-value heads 2, inside them 2 query heads and 6 value units; one
    stream 8.

    The rotary table (constant) tells the 6 query-key units apart: pinned; but a pair of units that
    rotates together may scale, query against key: 3 pairs in each key-value head. Other nonzero
    scalings per layer: value units 6 in 2 against output columns, up rows against down columns 12,
    both norms' weights against their readers 8 and 8. RMSNorm does not see signs: each unit of the
    stream flips through all it touches; tied embedding and head flip together. The last norm is
    read by the tied table: no scale.
    """
    return llama(tie_word_embeddings=True)


@case(
    example=TOKENS,
    permutations=[(8,), *LLAMA_LAYER * 2],
    nonzero=[*LLAMA_SCALES * 2, (8,)],
    sign=[(8,)],
    heavy=True,
)
def llama_untied() -> nn.Module:
    """As `llama_tied`; the last norm's weight against the head of its own: one more nonzero 8."""
    return llama(tie_word_embeddings=False)


CASES = cases_in(globals())
