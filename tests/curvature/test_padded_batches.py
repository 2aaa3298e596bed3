"""Networks that look at their batch: without padding, transformers drop the mask."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coset import KFAC, Full, Laplace, LastLayer, fit


class Attending(nn.Module):
    """One attention layer, which leaves out a mask that is all ones if it may."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks
        self.embed, self.query, self.key = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.value, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids, mask):
        x = self.embed(ids)
        scores = self.query(x) @ self.key(x).mT
        if not (self.looks and bool(mask.all())):
            away = (mask == 0).unsqueeze(1)
            scores = scores.masked_fill(away, -1e9)
        return self.head((scores.softmax(-1) @ self.value(x))[:, 0])


def padded(rows, length, full):
    """Sentences of which the first so many have full length."""
    torch.manual_seed(1)
    ids, lengths = torch.randint(1, 20, (rows, length)), torch.randint(2, length, (rows,))
    lengths[:full] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    return ids * mask, mask, torch.arange(rows) % 3


@pytest.mark.parametrize("full", [1, 8, 10], ids=lambda full: f"{full} full")
@pytest.mark.parametrize(
    "method",
    [Laplace(), Laplace(subset=LastLayer()), Laplace(Full(), subset=LastLayer())],
    ids=["default", "last layer", "full"],
)
def test_a_mask_that_is_left_out_changes_nothing(method, full):
    """Of batches of 8: mixed; the first full; the second mixed, full rows first."""
    ids, mask, labels = padded(21, 5, full)
    loader = DataLoader(TensorDataset(ids, mask, labels), batch_size=8)
    found = []
    for looks in (False, True):
        torch.manual_seed(0)
        module = Attending(looks).double()
        predictor = fit(module, loader, method=method)
        found.append((predictor.log_evidence, predictor((ids, mask)).mean))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-7)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("subset", [None, LastLayer()], ids=["default", "last layer"])
def test_bert_on_mixed_padding(attention, subset):
    """KFAC alone has no KeyError any more, and every linear layer is one it knows."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        vocab_size=20,
        num_labels=3,
        max_position_embeddings=8,
        attn_implementation=attention,
    )

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.BertForSequenceClassification(config)

        def forward(self, ids, mask):
            return self.model(ids, attention_mask=mask).logits

    torch.manual_seed(0)
    module = Logits().eval()
    ids, mask, labels = padded(21, 5, 10)
    loader = DataLoader(TensorDataset(ids, mask, labels), batch_size=8)
    predictor = fit(module, loader, method=Laplace(KFAC(), subset=subset))
    with torch.no_grad():
        wanted = functional.softmax(module(ids, mask), -1)
    found = predictor((ids, mask)).mean
    assert torch.equal(found.argmax(1), wanted.argmax(1))
    assert torch.isfinite(predictor((ids, mask)).covariance).all()
