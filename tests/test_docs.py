"""Every example of the documentation runs, page by page, in the order it is read."""

import doctest
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import coset
from coset.engines import Serial
from coset.zoo import populate, read_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]
KNOWN = ("Checkpoint", "DeepEnsemble", "Laplace", "MatrixFree", "discover", "fit", "functionalise")
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


class Texts(Dataset):
    """Dictionaries, as data sets of texts have them."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return {
            "input_ids": torch.full((2,), row % 5),
            "attention_mask": torch.ones(2),
            "labels": row % 3,
        }


class Reader(nn.Module):
    """A network of two inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask):
        return self.last((self.table(input_ids) * attention_mask.unsqueeze(-1)).mean(1))


def names():
    """What the pages take for granted."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)).eval()
    inputs, targets = torch.randn(60, 2), torch.randint(3, (60,))
    train, weights = (inputs, targets), coset.weights_of(module)
    network, zoo = coset.functionalise(module), coset.stack([weights, weights])
    return {
        **{name: getattr(coset, name) for name in KNOWN},
        "coset": coset,
        "torch": torch,
        "nn": nn,
        "DataLoader": DataLoader,
        "dataset": Texts(),
        "reader": Reader(),
        "module": module,
        "model": module,
        "network": network,
        "example": inputs[:1],
        "inputs": inputs,
        "targets": targets,
        "train": train,
        "batch": train,
        "new_inputs": inputs[:5],
        "test_inputs": inputs,
        "test_targets": targets,
        "new_data": train,
        "held_out": train,
        "other_inputs": inputs + 5,
        "draws": 3,
        "loader": DataLoader(TensorDataset(*train), batch_size=16),
        "weights": weights,
        "other_weights": weights,
        "zoo": zoo,
        "checkpoints": [weights] * 3,
        "generator": torch.Generator().manual_seed(0),
    }


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return names()


def prepare(page, given):
    """What one page needs besides."""
    if page.name == "zoo.md" and page.parent.name == "start":
        populate(read_recipe("tiny"), "ZOO", 12, engine=Serial(), progress=False)
    if page.name in ("files.md", "metrics.md", "posterior.md"):
        method = coset.MaximumAPosteriori(epochs=2)
        given["predictor"] = coset.fit(given["module"], given["train"], method=method)
        given["posterior"] = given["predictor"].posterior


def instead(code, given):
    """Other names for one example: its page speaks of another network there."""
    if "likelihood=GaussianNoise" in code:
        return {"model": nn.Linear(2, 1), "targets": given["inputs"].sum(1, keepdim=True)}
    if '"head.*"' in code:
        network = coset.functionalise(nn.ModuleDict({"head": nn.Linear(2, 3)}))
        return {"network": network, "weights": network.weights}
    return {}


def run(code, given):
    if ">>>" in code:
        test = doctest.DocTestParser().get_doctest(code, given, "page", None, 0)
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        told = []
        doctest.DocTestRunner(optionflags=flags).run(test, out=told.append, clear_globs=False)
        assert not told, "".join(told)
        given.update(test.globs)
    else:
        exec(compile(code, "page", "exec"), given)


def _marked(page):
    slow = page.name == "pixels.md"  # trains and fits U-Nets of the size that its picture shows
    return pytest.param(page, marks=[pytest.mark.slow] if slow else [], id=page.stem)


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES])
def test_the_examples_of_a_page_run(page, given):
    prepare(page, given)
    for code in EXAMPLE.findall(page.read_text()):
        other = instead(code, given)
        run(code, {**given, **other} if other else given)
