import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from coset import CosetError
from coset.bayes import as_batches

INPUTS, TARGETS = torch.arange(14.0).reshape(7, 2), torch.arange(7)


class Pairs(Dataset):
    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        return INPUTS[index], TARGETS[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(INPUTS, TARGETS, strict=True))


def upside_down(rows):
    inputs, targets = zip(*rows, strict=True)
    return -torch.stack(inputs), torch.stack(targets)


FORMS = {
    "arrays": lambda: (INPUTS.numpy(), TARGETS.numpy()),
    "arrays turned round": lambda: (INPUTS.flip(0).numpy()[::-1], TARGETS.numpy()),
    "arrays of other bytes": lambda: (
        INPUTS.numpy().astype(INPUTS.numpy().dtype.newbyteorder(">")),
        TARGETS.numpy().astype("uint16"),
    ),
    "pair": lambda: (INPUTS, TARGETS),
    "list": lambda: [INPUTS, TARGETS],
    "tensor set": lambda: TensorDataset(INPUTS, TARGETS),
    "data set": Pairs,
    "stream": Stream,
    "loader": lambda: DataLoader(Pairs(), batch_size=3, shuffle=True),
    "loader of tensors": lambda: DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=3),
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=3),
    "batches": lambda: as_batches((INPUTS, TARGETS), batch_size=3),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_rows_twice(form):
    batches = as_batches(form(), batch_size=3)
    assert batches.size == 7
    for _ in range(2):
        passed = list(batches)
        assert [len(inputs) for inputs, _ in passed] == [3, 3, 1]
        assert torch.equal(torch.cat([inputs for inputs, _ in passed]), INPUTS)
        assert torch.equal(torch.cat([targets for _, targets in passed]), TARGETS)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rows_are_found_by_number_in_any_shape(form):
    index = torch.tensor([[6, 0], [2, 2]])
    inputs, targets = as_batches(form(), batch_size=3).rows(index)
    assert torch.equal(inputs, INPUTS[index])
    assert torch.equal(targets, index)


def test_a_loader_keeps_its_collate_function():
    batches = as_batches(DataLoader(Pairs(), batch_size=2, collate_fn=upside_down))
    assert torch.equal(next(iter(batches))[0], -INPUTS[:2])


class Lengthless(Dataset):
    def __getitem__(self, index):
        return INPUTS[index], TARGETS[index]


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


BAD = {
    "different lengths": (INPUTS, TARGETS[:3]),
    "three parts": (INPUTS, TARGETS, TARGETS),
    "no tensors": ([1, 2], [3, 4]),
    "words": (INPUTS.numpy(), TARGETS.numpy().astype(str)),
    "objects": (INPUTS.numpy().astype(object), TARGETS.numpy()),
    "no axis": (torch.tensor(1.0), torch.tensor(1)),
    "nothing in it": (INPUTS[:0], TARGETS[:0]),
    "empty tensor set": TensorDataset(INPUTS[:0], TARGETS[:0]),
    "empty stream": Empty(),
    "no length": Lengthless(),
    "a number": 5,
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_other_things_are_refused(bad):
    with pytest.raises(CosetError, match="needed"):
        as_batches(bad)


class Triples(Pairs):
    def __getitem__(self, index):
        return INPUTS[index], TARGETS[index], TARGETS[index]


def test_examples_of_three_parts_are_refused_when_they_are_read():
    with pytest.raises(CosetError, match="side by side"):
        next(iter(as_batches(Triples())))
