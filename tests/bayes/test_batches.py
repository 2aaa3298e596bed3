import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from coset import CosetError, Problem
from coset.bayes import as_batches
from coset.bayes.batches import repeatable_rows

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


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from range(7)


class Even(Sampler):
    def __iter__(self):
        return iter([6, 0, 4])


SAMPLERS = {
    "a part": ({"sampler": SubsetRandomSampler([4, 1, 2])}, [1, 2, 4]),
    "a part by tensor": ({"sampler": SubsetRandomSampler(torch.tensor([4, 1]))}, [1, 4]),
    "one's own": ({"sampler": Even()}, [0, 4, 6]),
    "one of two machines": (
        {"sampler": DistributedSampler(range(7), 2, 1, shuffle=False, drop_last=True)},
        [1, 3, 5],
    ),
    "batches of a part": (
        {"batch_sampler": BatchSampler(SubsetRandomSampler([5, 3, 0]), 2, True)},
        [0, 3, 5],
    ),
    "batches of one's own": ({"batch_sampler": [[6, 1], [0]]}, [0, 1, 6]),
    "the first": ({"sampler": RandomSampler(range(3))}, [0, 1, 2]),
    "with repetition": ({"sampler": RandomSampler(Pairs(), replacement=True)}, list(range(7))),
    "few of all": ({"sampler": RandomSampler(Pairs(), num_samples=2)}, list(range(7))),
    "whole batches": ({"shuffle": True, "batch_size": 4, "drop_last": True}, list(range(7))),
}


@pytest.mark.parametrize("dataset", [Pairs(), TensorDataset(INPUTS, TARGETS)], ids=["set", "pair"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_examples_are_those_that_a_sampler_leaves(name, dataset):
    settings, rows = SAMPLERS[name]
    state = torch.get_rng_state()
    batches = as_batches(DataLoader(dataset, **settings))
    assert torch.equal(torch.get_rng_state(), state)
    assert batches.size == len(rows)
    assert torch.cat([targets for _, targets in batches]).tolist() == rows
    assert torch.equal(torch.cat([inputs for inputs, _ in batches]), INPUTS[rows])


@pytest.mark.parametrize("sampler", [WeightedRandomSampler(torch.ones(7), 2, False), Endless()])
def test_samplers_that_count_examples_unevenly_are_refused(sampler):
    with pytest.raises(
        CosetError, match=f"whose {type(sampler).__name__} gives some examples more"
    ):
        as_batches(DataLoader(Pairs(), sampler=sampler))


def test_a_loader_of_whole_batches_is_read_batch_by_batch():
    class Twos(Pairs):
        def __getitem__(self, index):
            return INPUTS[index : index + 1].expand(2, 2), TARGETS[index : index + 1].expand(2)

    batches = as_batches(DataLoader(Twos(), batch_size=None))
    assert torch.cat([targets for _, targets in batches]).tolist() == [k // 2 for k in range(14)]


class Halved(TensorDataset):
    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs / 2, targets


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, batch_size=3)])
def test_what_changes_examples_as_they_are_read_is_asked_for_them(wrap):
    inputs, _ = next(iter(as_batches(wrap(Halved(INPUTS, TARGETS)), batch_size=3)))
    assert torch.equal(inputs, INPUTS[:3] / 2)


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


SEVERAL = INPUTS, torch.arange(21).reshape(7, 3, 1)


class Triples(Pairs):
    def __getitem__(self, index):
        return *(part[index] for part in SEVERAL), TARGETS[index]


class Nested(Pairs):
    def __getitem__(self, index):
        return tuple(part[index].numpy() for part in SEVERAL), int(TARGETS[index])


class StreamOfTriples(IterableDataset):
    def __iter__(self):
        return iter(zip(*SEVERAL, TARGETS, strict=True))


FORMS_OF_SEVERAL = {
    "tuple": lambda: (SEVERAL, TARGETS),
    "list": lambda: [list(SEVERAL), TARGETS],
    "arrays": lambda: (tuple(part.numpy() for part in SEVERAL), TARGETS.numpy()),
    "tensor set": lambda: TensorDataset(*SEVERAL, TARGETS),
    "data set": Triples,
    "nested": Nested,
    "stream": StreamOfTriples,
    "loader": lambda: DataLoader(Triples(), batch_size=3, shuffle=True),
    "loader of nested": lambda: DataLoader(Nested(), batch_size=3),
    "loader of tensors": lambda: DataLoader(TensorDataset(*SEVERAL, TARGETS), batch_size=3),
    "batches": lambda: as_batches((SEVERAL, TARGETS), batch_size=3),
}


@pytest.mark.parametrize("form", FORMS_OF_SEVERAL.values(), ids=FORMS_OF_SEVERAL)
def test_every_form_of_several_inputs_gives_the_same_rows(form):
    batches = as_batches(form(), batch_size=3)
    assert batches.size == 7
    passed = list(batches)
    assert [len(targets) for _, targets in passed] == [3, 3, 1]
    for number, whole in enumerate(SEVERAL):
        assert torch.equal(torch.cat([inputs[number] for inputs, _ in passed]), whole)
    index = torch.tensor([[6, 0], [2, 2]])
    inputs, targets = batches.rows(index)
    assert torch.equal(targets, index)
    for found, whole in zip(inputs, SEVERAL, strict=True):
        assert torch.equal(found, whole[index])


def test_a_tuple_of_one_is_one_input():
    assert torch.equal(as_batches(((INPUTS,), TARGETS)).inputs, INPUTS)


class Named(Pairs):
    def __getitem__(self, index):
        return {"labels": TARGETS[index], "input_ids": INPUTS[index], "mask": INPUTS[index]}


class Ragged(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0), (torch.zeros(3), 1)])


BAD_SEVERAL = {
    "three parts": ((*SEVERAL, TARGETS), r"\(\(first, second\), targets\)"),
    "no inputs": (((), TARGETS), "an empty tuple"),
    "other rows": (((INPUTS, INPUTS[:3]), TARGETS), "needed the same number of rows"),
    "other targets": ((SEVERAL, TARGETS[:3]), r"\(7, 2\).*\(7, 3, 1\).* targets of shape \(3,\)"),
    "numbers": (((INPUTS, 3), TARGETS), "a tensor, a int"),
    "ragged": (DataLoader(Ragged(), batch_size=1), "pad them to one length"),
    "ragged in a batch": (DataLoader(Ragged(), batch_size=2), r"\[2\] in row 0 .* \[3\] in row 1"),
    "names": (
        {"input_ids": INPUTS, "labels": TARGETS, "mask": INPUTS},
        r"give as_batches\(…, module=module\)",
    ),
    "named examples": (
        Named(),
        r"return \(batch\['input_ids'\], batch\['mask'\]\), batch\['labels'\]\n",
    ),
    "named inputs": (
        ({"ids": INPUTS, "mask": INPUTS}, TARGETS),
        r"write \(inputs\['ids'\], inputs\['mask'\]\)",
    ),
    "inputs alone": (DataLoader(INPUTS, batch_size=2), "needed inputs and targets"),
}


class RaggedRows(Pairs):
    def __getitem__(self, index):
        return torch.zeros(2 + (index == 5)), 0


@pytest.mark.filterwarnings("ignore:.*os.fork")  # JAX warns of it, where it was imported
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_of_different_shapes_are_refused_where_they_meet(workers):
    for data in (RaggedRows(), DataLoader(RaggedRows(), batch_size=7, num_workers=workers)):
        with pytest.raises(
            CosetError, match=r"\[2\] in row 0 of it and \[3\] in row 5.*crop or pad"
        ):
            list(as_batches(data))


def test_rows_that_the_network_cannot_read_are_refused_before_any_work():
    data = DataLoader(RaggedRows(), batch_size=1)
    with pytest.raises(CosetError, match=r"shape \(1, 3\) .*from row 5 on.*crop or pad"):
        Problem.of(nn.Linear(2, 3), data)
    whole = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, -1)))  # outputs as many as inputs
    module = nn.Sequential(whole, Scaled())
    with pytest.raises(CosetError, match=r"outputs of shape \(3,\) for row 5 and of \(2,\)"):
        Problem.of(module, data)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.scale * inputs


@pytest.mark.parametrize("name", BAD_SEVERAL)
def test_other_things_in_place_of_several_inputs_are_refused(name):
    data, message = BAD_SEVERAL[name]
    with pytest.raises(CosetError, match=message):
        next(iter(as_batches(data)))


def test_what_the_refusal_of_names_says_to_do_works():
    def collate(examples):
        batch = default_collate(examples)
        return (batch["input_ids"], batch["mask"]), batch["labels"]

    batches = as_batches(DataLoader(Named(), batch_size=3, collate_fn=collate))
    inputs, targets = batches.rows(torch.arange(7))
    assert torch.equal(inputs[0], INPUTS)
    assert torch.equal(targets, TARGETS)


@pytest.mark.parametrize("place", [0, 1], ids=["inputs", "targets"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda part: part.to("meta"), "on the meta device"),
        (lambda part: part.to_sparse(), r"of layout torch.sparse_coo; .* use \.to_dense\(\)"),
    ],
    ids=["meta", "sparse"],
)
def test_tensors_without_their_numbers_are_named(place, change, words):
    data = [torch.ones(4, 2), torch.ones(4)]
    data[place] = change(data[place])
    with pytest.raises(CosetError, match=words):
        as_batches(tuple(data))


class Read(Dataset):
    """Six examples, each a function of its number and of how often it has been read."""

    def __init__(self, example):
        self.example, self.read = example, []

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.read.append(index)
        return self.example(index, self.read.count(index))


@pytest.mark.parametrize(
    ("example", "repeatable"),
    [
        (lambda index, _: (torch.full((2,), float(index)), index), True),
        (lambda index, _: (torch.tensor([torch.nan, index]), index), True),
        (lambda index, _: (torch.randn(2), index), False),
        (lambda index, times: (torch.zeros(2), index + times), False),
        (lambda index, times: (torch.zeros(2), index + (index == 5) * times), False),
        (lambda index, times: (torch.zeros(times), index), False),
        (lambda index, times: (*(torch.zeros(2),) * times, index), False),
    ],
    ids=["fixed", "not a number", "random", "targets", "the last", "shape", "parts"],
)
def test_examples_that_change_from_read_to_read_are_noticed(example, repeatable):
    dataset = Read(example)
    state = torch.get_rng_state()
    rows = repeatable_rows(as_batches(dataset))
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.read == [0, 3, 5] * 2
    assert (rows is not None) is repeatable
