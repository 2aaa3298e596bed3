"""Dictionaries as data: names instead of an order, wherever data are."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from coset import (
    ByActivations,
    ByEvidence,
    ByStraightThrough,
    CosetError,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    barrier,
    discover,
    evaluate,
    fit,
    match,
    weights_of,
)
from coset.bayes import as_batches
from coset.bayes.named import named_inputs, named_pair


class Reader(nn.Module):
    """Words and which of them count; the order of its arguments matters."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(9, 5), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask, scale=None):
        words = self.embed(input_ids)
        mask = attention_mask.unsqueeze(-1).to(words.dtype)
        mean = (words * mask).sum(1) / mask.sum(1)
        found = self.head(self.hidden(mean).relu())
        return found if scale is None else found * scale


IDS = torch.randint(0, 9, (24, 4), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(4) < 1 + torch.arange(24)[:, None] % 4).long()
LABELS = torch.arange(24) % 3
NAMED = {"labels": LABELS, "attention_mask": MASK, "input_ids": IDS}
ORDERED = ((IDS, MASK), LABELS)


class Named(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {name: part[index] for name, part in NAMED.items()}


class NamedStream(IterableDataset):
    def __iter__(self):
        return iter(Named()[index] for index in range(24))


FORMS = {
    "dictionary": lambda: NAMED,
    "arrays": lambda: {name: part.numpy() for name, part in NAMED.items()},
    "inputs": lambda: ({"attention_mask": MASK, "input_ids": IDS}, LABELS),
    "data set": Named,
    "stream": NamedStream,
    "loader": lambda: DataLoader(Named(), batch_size=5, shuffle=True),
    "loader of a stream": lambda: DataLoader(NamedStream(), batch_size=5),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_rows_in_the_order_of_forward(form):
    batches = as_batches(form(), batch_size=5, module=Reader())
    (ids, mask), labels = batches.rows(torch.arange(24))
    assert torch.equal(ids, IDS)
    assert torch.equal(mask, MASK)
    assert torch.equal(labels, LABELS)
    assert [len(targets) for _, targets in batches] == [5, 5, 5, 5, 4]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_fits_predictions_and_scores_are_those_of_a_tuple(form):
    torch.manual_seed(0)
    module = Reader().double()
    wanted, found = (
        fit(module, data, method=Laplace(subset=LastLayer())) for data in (ORDERED, form())
    )
    assert found.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-12)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    expected = wanted((IDS, MASK)).mean
    assert torch.allclose(found(inputs).mean, expected, rtol=1e-12)
    assert torch.equal(found(NAMED).mean, found(inputs).mean)  # a batch with its targets will do
    assert torch.allclose(found.joint(inputs).mean, wanted.joint((IDS, MASK)).mean)
    score = evaluate(found, form(), outliers=inputs)
    assert score == pytest.approx(evaluate(wanted, ORDERED, outliers=((IDS, MASK),)))
    updated = found.update(form())((IDS, MASK)).mean
    assert torch.allclose(updated, wanted.update(ORDERED)((IDS, MASK)).mean)
    calibrated = found.calibrated(form())(inputs).mean
    assert torch.allclose(calibrated, wanted.calibrated(ORDERED)((IDS, MASK)).mean)


def test_held_out_data_may_have_names():
    torch.manual_seed(0)
    module = Reader()
    for method in (
        lambda held_out: Laplace(tuning=ByEvidence(validation=held_out)),
        lambda held_out: MaximumAPosteriori(epochs=2, validation=held_out),
    ):
        found, wanted = (
            fit(module, data, method=method(data))((IDS, MASK)).mean for data in (NAMED, ORDERED)
        )
        assert torch.equal(found, wanted)


def test_alignment_takes_names_too():
    torch.manual_seed(0)
    module = Reader()
    ours, theirs = (weights_of(Reader()) for _ in range(2))
    group = discover(module, (IDS, MASK))
    for by in (
        lambda data, inputs: ByActivations(module, inputs),
        lambda data, inputs: ByStraightThrough(module, data, steps=2),
    ):
        first, second = (
            match(group, ours, to=theirs, by=by(data, inputs)).weights
            for data, inputs in ((ORDERED, (IDS, MASK)), (NAMED, NAMED))
        )
        assert all(torch.equal(first[name], second[name]) for name in first)
    one, other = (barrier(module, ours, theirs, data) for data in (ORDERED, NAMED))
    assert torch.equal(one.loss, other.loss)


def test_one_input_may_have_any_name():
    assert named_inputs({"pixels": 1, "label": 2}, nn.Linear(2, 1)) == 1
    assert named_pair({"pixels": 1, "label": 2}, nn.Sequential()) == (1, 2)
    assert named_pair({"image": 1, "y": 2}, torch.compile(nn.Linear(2, 1))) == (1, 2)


def test_a_name_that_forward_takes_is_a_target_only_without_another():
    class Labelled(nn.Module):
        def forward(self, input_ids, labels=None): ...

    class Two(nn.Module):
        def forward(self, x, y): ...

    assert named_pair({"labels": 2, "input_ids": 1}, Labelled()) == (1, 2)
    assert named_pair({"target": 3, "y": 2, "x": 1}, Two()) == ((1, 2), 3)
    assert named_inputs({"y": 2, "x": 1}, Two()) == (1, 2)


class Anything(nn.Module):
    def forward(self, *parts): ...


BAD = {
    "no target": ({"input_ids": IDS, "attention_mask": MASK}, Reader(), "by one of the names"),
    "no module": (NAMED, None, r"return \(batch\['attention_mask'\], batch\['input_ids'\]\)"),
    "a stranger": (
        NAMED | {"idx": LABELS},
        Reader(),
        r"Reader.forward\(input_ids, attention_mask, scale\) takes; leave idx out",
    ),
    "a gap": ({"labels": LABELS, "input_ids": IDS}, Reader(), "needed attention_mask too"),
    "a hole": (
        {"labels": LABELS, "scale": IDS, "input_ids": IDS},
        Reader(),
        "needed attention_mask too",
    ),
    "targets alone": ({"labels": LABELS}, Reader(), "inputs are none"),
    "no names": (NAMED, Anything(), r"Anything.forward\(\) takes"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_dictionaries_are_refused(name):
    data, module, message = BAD[name]
    with pytest.raises(CosetError, match=message):
        as_batches(data, module=module)


def test_a_network_without_a_module_says_what_it_needs():
    with pytest.raises(CosetError, match=r"write \(inputs\['a'\], inputs\['b'\]\)"):
        named_inputs({"a": 1, "b": 2}, None)


class Where(Dataset):
    """Examples that tell in which process they were read."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return torch.tensor([-1.0 if info is None else info.id]), index


@pytest.mark.filterwarnings("ignore:.*os.fork")  # JAX warns of it, where it was imported
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_read_the_batches_of_passes_in_order():
    batches = as_batches(DataLoader(Where(), batch_size=2, shuffle=True, num_workers=2))
    state = torch.get_rng_state()
    for _ in range(2):
        inputs, targets = zip(*batches, strict=True)
        assert torch.cat(targets).tolist() == list(range(7))
        assert torch.cat(inputs).flatten().tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert torch.equal(torch.get_rng_state(), state)
    assert batches.rows(torch.tensor([3]))[0].item() == -1
