"""Language models of the `transformers` package as they come: raw, with their key-value caches."""

import os

import pytest
import torch
from torch import nn

from coset import CosetError, discover, symmetry_error
from coset.cli import main

transformers = pytest.importorskip("transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 50
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
GROUPED = {**SMALL, "num_key_value_heads": 1}
BLOCK = {"vocab_size": VOCABULARY, "hidden_size": 16}
FAMILIES = {
    "GPT2LMHeadModel": (
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16},
        [16, 2, 64, 8, 8],  # stream, heads, hidden units, query-key and value units
    ),
    "LlamaForCausalLM": (GROUPED, [16, 2, 8, 32]),  # rotations tell query-key units apart
    "MistralForCausalLM": (GROUPED, [16, 2, 8, 32]),
    "Gemma2ForCausalLM": ({**GROUPED, "head_dim": 8, "sliding_window": 8}, [16, 2, 8, 32]),
    # its first quarter of the query-key units is rotated
    "GPTNeoXForCausalLM": (SMALL, [16, 2, 32, 6, 8]),
    # its positions tell the heads apart
    "BloomForCausalLM": ({**BLOCK, "n_layer": 1, "n_head": 2}, [16, 64, 8, 8, 8, 8]),
    "OPTForCausalLM": (
        {
            **BLOCK,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "word_embed_proj_dim": 16,
            "max_position_embeddings": 16,
        },
        [16, 2, 32, 8, 8],
    ),
    "MambaForCausalLM": ({**BLOCK, "num_hidden_layers": 1, "state_size": 4}, [16, 32, 4]),
    # the encoder's stream is an output too: heads, units and hidden units of three attentions
    "BartForConditionalGeneration": (
        {
            "vocab_size": VOCABULARY,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 16,
        },
        [2, 8, 8] * 3 + [32, 32],
    ),
    "T5ForConditionalGeneration": (
        {
            "vocab_size": VOCABULARY,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        [2, 8, 8] * 3 + [32, 32],
    ),
}


def model_of(name, **more):
    build = getattr(transformers, name)
    torch.manual_seed(0)
    return build(build.config_class(**FAMILIES[name][0], **more))


def example_of(name):
    tokens = torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(0))
    return (tokens, torch.ones_like(tokens), tokens[:, :4]) if name.startswith("T5") else tokens


@pytest.mark.parametrize("name", FAMILIES)
def test_caches_have_no_say(name):
    module, example = model_of(name), example_of(name)
    group = discover(module, example)
    assert sorted(factor.size for factor in group.permutations) == sorted(FAMILIES[name][1])
    assert symmetry_error(module, group, example, elements=2) < 1e-12
    assert not any(child._forward_hooks for child in module.modules())


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, use_cache=False).logits


def test_the_group_is_that_of_the_logits():
    name = "GPT2LMHeadModel"
    group = discover(Logits(model_of(name)), example_of(name))
    assert sorted(factor.size for factor in group.permutations) == sorted(FAMILIES[name][1])


def test_caches_in_plain_tuples_have_no_say_either():
    """As older models keep them."""

    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x):
            hidden = self.first(x).relu()
            return {"logits": self.last(hidden), "past_key_values": ((hidden, hidden),)}

    assert [f.size for f in discover(Keeping(), torch.ones(1, 3)).permutations] == [5]


def test_the_command_inspects_a_raw_model(tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "import transformers as t\n"
        "def make():\n"
        f"    return t.GPT2LMHeadModel(t.GPT2Config(**{FAMILIES['GPT2LMHeadModel'][0]}))\n"
    )
    assert main(["inspect", f"{tmp_path}/model.py:make"]) == 0
    assert "transformer.h.0.mlp.c_fc" in capsys.readouterr().out


def small():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, x):
        return torch.from_numpy(self.layer(x).detach().numpy() ** 2)


class Silent(Foreign):
    def forward(self, x):
        return "nothing"


class Branching(Foreign):
    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of scripts and of quantisation
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.jit.script(small()), "scripted module.*before torch.jit"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(small(), {nn.Linear}),
            r"quantised layer .*Linear; .*as it was before it was quantised",
        ),
        (Foreign, "calls torch alone; write what leaves torch"),
        (Silent, "returns str without a tensor"),
        (Branching, r"replace Python branches .* \(torch.where\)"),
    ],
)
def test_advice_fits_what_cannot_be_traced(make, told):
    with pytest.raises(CosetError, match=told) as caught:
        discover(make(), torch.ones(2, 3))
    assert ("Python branches" in str(caught.value)) == (make is Branching)
