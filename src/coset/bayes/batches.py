"""Training data as one thing: a size, passes in a fixed order, and rows by number."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from coset.bayes.named import named_inputs, named_pair
from coset.errors import CosetError
from coset.printing import brief
from coset.vocabulary import Batch, Inputs
from coset.weights.inputs import (
    as_inputs,
    count_rows,
    map_parts,
    parts_of,
    shape_rows,
    shapes_of,
    split_rows,
)
from coset.weights.plain import require_plain, require_real
from coset.weights.randomness import own_draws, own_randomness

Data: TypeAlias = "DataLoader[Any] | Dataset[Any] | Batch | Mapping[str, Any] | Batches"
"""Inputs, a tensor or a tuple of them, and targets; or something that yields such examples: of
those with more than two parts, all but the last are inputs.  Of dictionaries the names say which is
which (:mod:`coset.bayes.named`)."""


_UNEQUAL = re.compile(r"equal size, but got (.*) at entry (\d+) and (.*) at entry (\d+)")
"""What torch says of tensors that it cannot stack."""

_WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores and computes little with."""

_OF_WORKERS = (
    "num_workers",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "timeout",
)
"""Settings of a loader that say which processes read its examples."""


class Batches(Protocol):
    """A data set that can be passed over again and again."""

    @property
    def size(self) -> int:
        """Number of examples ``n``."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples in a batch of a pass."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """One pass over all examples, in the same order every time."""
        ...

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers, in that order; ``index`` may have any shape."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Inputs and targets as tensors."""

    inputs: Inputs
    targets: Tensor
    batch_size: int = 256

    __repr__ = brief

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.targets)

    def __iter__(self) -> Iterator[Batch]:
        """Batches in the order of the tensors."""
        inputs = split_rows(self.inputs, self.batch_size)
        yield from zip(inputs, self.targets.split(self.batch_size), strict=True)

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers."""
        flat = index.flatten()  # copying whole rows is twice as fast as general indexing

        def chosen(part: Tensor) -> Tensor:
            return part.index_select(0, flat).view(*index.shape, *part.shape[1:])

        return map_parts(chosen, self.inputs), chosen(self.targets)


@dataclass(frozen=True)
class FromDataset:
    """A map-style data set read example by example, never held in memory as a whole."""

    dataset: Dataset[Any]
    batch_size: int = 256
    collate: Any = default_collate
    module: nn.Module | None = None
    workers: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = brief

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.dataset)  # type: ignore[arg-type]  # map-style sets have a length

    def __iter__(self) -> Iterator[Batch]:
        """Batches in the order of the data set, from as many processes as the loader had."""
        if self.workers:
            loader = DataLoader(
                self.dataset,
                batch_size=self.batch_size,
                collate_fn=self.collate,
                generator=torch.Generator().manual_seed(0),
                **self.workers,
            )
            with blaming_shapes():
                yield from (read_batch(batch, self.module) for batch in loader)
            return
        for start in range(0, self.size, self.batch_size):
            yield self.rows(torch.arange(start, min(start + self.batch_size, self.size)))

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers."""
        with own_draws(), blaming_shapes():
            examples = [self.dataset[i] for i in index.flatten().tolist()]
            batch = self.collate(examples)
        inputs, targets = read_batch(batch, self.module)
        return (
            shape_rows(inputs, index.shape),
            targets.reshape(*index.shape, *targets.shape[1:]),
        )


@contextmanager
def blaming_shapes() -> Iterator[None]:
    """Says what torch could not stack: examples of different shapes in one batch."""
    try:
        yield
    except RuntimeError as error:
        found = re.search(
            r"equal size, but got (.*) at entry (\d+) and (.*) at entry (\d+)", str(error)
        )
        if found is None:
            raise
        one, first, other, second = found.groups()
        raise CosetError(
            f"got examples of different shapes in one batch: {one} in row {first} of it and "
            f"{other} in row {second}",
            "needed examples of one shape in each batch",
            "crop or pad them to one size in the data set, or in DataLoader(…, collate_fn=…)",
        ) from error


def in_equal_parts(batches: Batches) -> Iterator[Batch]:
    """One pass in batches of nearly equal size, for networks that look at batches as a whole.

    What is left over of the usual batches may be a single example, of which batch norm can take no
    variance.

    >>> train = InMemory(torch.zeros(9, 2), torch.zeros(9), batch_size=4)
    >>> [len(targets) for _, targets in in_equal_parts(train)]
    [3, 3, 3]
    """
    parts = -(-batches.size // batches.batch_size)
    for index in torch.arange(batches.size).tensor_split(parts):
        yield batches.rows(index)


def repeatable_rows(batches: Batches) -> list[Batch] | None:
    """The first, the middle and the last example; ``None`` if they change from read to read.

    They are read twice: a data set that changes its examples at random gives others then.

    >>> [int(targets) for _, targets in repeatable_rows(InMemory(torch.zeros(9), torch.arange(9)))]
    [0, 4, 8]
    """
    numbers = sorted({0, batches.size // 2, batches.size - 1})
    with own_randomness(0):
        first, second = (
            [batches.rows(torch.tensor([number])) for number in numbers] for _ in range(2)
        )
    return first if all(map(_same, first, second)) else None


def _same(one: Batch, other: Batch) -> bool:
    ours, theirs = ((*parts_of(batch[0]), batch[1]) for batch in (one, other))
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        for a, b in zip(ours, theirs, strict=True)
    )


def as_batches(data: Data, *, batch_size: int = 256, module: nn.Module | None = None) -> Batches:
    """Reads a pair of inputs and targets, a data set or a loader as :class:`Batches`.

    Several inputs are a tuple.  Of examples and batches of more than two parts, such as those of
    ``TensorDataset(ids, mask, targets)``, all but the last are inputs.

    A loader's own order is not used: passes go in the order of its data set, so that two passes
    see the same rows, and training draws its own order from a seed.  Its workers read the batches
    of passes; single rows, which training asks for, are read here.  Of a loader with a sampler
    the examples that it gives are taken, and one that repeats some is refused.

    Args:
        data: What is read.
        batch_size: Examples in a batch where the data do not say.
        module: Whose ``forward`` says in which order it takes the inputs of dictionaries.

    >>> as_batches((torch.zeros(5, 2), torch.zeros(5))).size
    5
    >>> ids, mask = torch.tensor([[4, 7], [9, 0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> (first, second), targets = next(iter(as_batches(((ids, mask), torch.tensor([0, 1])))))
    >>> first.shape, second.shape, targets.shape
    (torch.Size([2, 2]), torch.Size([2, 2]), torch.Size([2]))
    """
    if isinstance(data, DataLoader):
        return _from_loader(data, batch_size, module)
    if type(data) is TensorDataset:  # not what changes its examples when they are read
        data = read_batch(data.tensors)
    if isinstance(data, (tuple, list)):
        return InMemory(*read_pair(data, module), batch_size)
    if isinstance(data, Mapping):
        return InMemory(*read_batch(data, module), batch_size)
    if isinstance(data, IterableDataset):
        return _materialise(DataLoader(data, batch_size=batch_size), batch_size, module)
    if isinstance(data, Dataset):
        return _checked(FromDataset(data, batch_size, module=module))
    if all(hasattr(data, name) for name in ("size", "batch_size", "rows")):
        return data
    raise CosetError(
        f"got data of type {type(data).__name__}",
        "needed a DataLoader, a Dataset, a pair (inputs, targets) or a dictionary",
    )


def as_tensor(part: Any) -> Any:
    """A NumPy array as a tensor, in the same memory where torch can read it; else what was given.

    Tensors made in torch's inference mode, through which no derivative can be taken, are copied,
    and unsigned numbers that torch computes little with become signed.  Masked arrays that hide
    numbers are refused.

    >>> as_tensor(np.arange(3, dtype=">u2")[::-1]).tolist()
    [2, 1, 0]
    """
    if isinstance(part, Tensor):
        if part.dtype in _WIDE:
            return part.long()
        frozen = part.is_inference() and not torch.is_inference_mode_enabled()
        return part.clone() if frozen else part
    if not isinstance(part, np.ndarray):
        return part
    if np.ma.is_masked(part):
        raise CosetError(
            f"got a masked array, {int(np.ma.getmaskarray(part).sum())} of whose "
            f"{part.size} numbers are hidden",
            "needed numbers only: tensors have no mask",
            "leave such rows out, fill inputs, or give targets as array.filled(nan) with "
            "missing='nan'",
        )
    wide = part.dtype.kind == "u" and part.dtype.itemsize > 1  # torch computes little with them
    kind = np.dtype(np.int64) if wide else part.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.asarray(part, dtype=kind, order="C"))
    except TypeError as error:
        raise CosetError(
            f"got an array of type {part.dtype}",
            "needed numbers of a type that torch has",
            "convert it with array.astype(…); number the classes from zero",
        ) from error


def _from_loader(loader: "DataLoader[Any]", batch_size: int, module: nn.Module | None) -> Batches:
    size, dataset = loader.batch_size or batch_size, loader.dataset
    if isinstance(dataset, IterableDataset) or loader.batch_sampler is None:
        return _materialise(loader, size, module)
    workers = {name: getattr(loader, name) for name in _OF_WORKERS if loader.num_workers}
    whole = _checked(FromDataset(dataset, size, loader.collate_fn, module, workers))
    rows = _chosen(loader)
    if type(dataset) is TensorDataset and loader.collate_fn is default_collate:
        tensors = dataset.tensors
        return InMemory(*read_batch(tensors if rows is None else [t[rows] for t in tensors]), size)
    return whole if rows is None else replace(whole, dataset=Subset(dataset, rows))


def _chosen(loader: "DataLoader[Any]") -> list[int] | None:
    """Numbers of the examples that a loader's sampler leaves it, in order; ``None``: all."""
    sampler: Any = loader.batch_sampler
    plain = type(sampler) is BatchSampler
    if plain:
        sampler = sampler.sampler
    size = len(loader.dataset)  # type: ignore[arg-type]  # map-style sets have a length
    if isinstance(sampler, SequentialSampler | RandomSampler) and len(sampler.data_source) == size:
        return None
    if isinstance(sampler, SubsetRandomSampler):
        drawn: Iterable[Any] = sampler.indices
    else:
        numbers = sampler if plain else chain.from_iterable(sampler)
        with own_randomness(0), own_draws():
            drawn = list(islice(numbers, size + 1))  # some have no end
    rows = sorted(map(int, drawn))
    if isinstance(sampler, WeightedRandomSampler) or len(set(rows)) < len(rows):
        raise CosetError(
            f"got a loader whose {type(sampler).__name__} gives some examples more than others",
            "needed each of them once: a posterior counts its data",
            "leave the sampler out, or repeat the examples in the data set",
        )
    return rows


def every_row(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """The same loader, but that it leaves no row out at its end, whatever its ``drop_last`` says.

    A posterior counts its data, and a score is one of all of them.

    >>> from torch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.arange(5)), batch_size=2, drop_last=True)
    >>> [len(rows) for (rows,) in every_row(loader)]
    [2, 2, 1]
    """
    sampler: Any = loader.batch_sampler
    if type(loader).__iter__ is not DataLoader.__iter__ or type(sampler) is not BatchSampler:
        return loader
    if not (loader.drop_last or sampler.drop_last):
        return loader
    options = {name: getattr(loader, name) for name in ("collate_fn", "generator", *_OF_WORKERS)}
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(loader.dataset, batch_size=loader.batch_size, **options)
    batches = BatchSampler(sampler.sampler, sampler.batch_size, drop_last=False)
    return DataLoader(loader.dataset, batch_sampler=batches, **options)


def _materialise(loader: "DataLoader[Any]", batch_size: int, module: nn.Module | None) -> Batches:
    """A stream has no second pass, so it is kept in memory."""
    with blaming_shapes():
        pairs = [read_batch(batch, module) for batch in every_row(loader)]
    if not pairs:
        raise CosetError("got an empty loader", "needed at least one example")
    inputs, targets = zip(*pairs, strict=True)
    try:
        whole = [torch.cat(each) for each in zip(*map(parts_of, inputs), strict=True)]
        return InMemory(as_inputs(whole), torch.cat(targets), batch_size)
    except (RuntimeError, ValueError) as error:
        raise CosetError(
            f"got a stream whose batches do not fit together ({error})",
            "needed inputs of the same number and shape in all, which are kept in memory",
            "pad them to one length, or give a data set that has a length",
        ) from error


def _checked(batches: FromDataset) -> FromDataset:
    if not hasattr(batches.dataset, "__len__"):
        raise CosetError("got a data set without a length", "needed __len__ and __getitem__")
    if batches.size == 0:
        raise CosetError("got an empty data set", "needed at least one example")
    return batches


def read_pair(data: tuple[Any, ...] | list[Any], module: nn.Module | None = None) -> Batch:
    """A pair of inputs and targets, checked."""
    if len(data) != 2:
        kinds = ", ".join(type(part).__name__ for part in data)
        raise CosetError(
            f"got {len(data)} parts: {kinds}",
            "needed two, inputs and targets",
            "put several inputs into a tuple: ((first, second), targets)",
        )
    targets = as_tensor(data[1])
    if not isinstance(targets, Tensor):
        raise CosetError(
            f"got targets of type {type(targets).__name__}", "needed a tensor or an array"
        )
    require_plain(targets, "targets")
    require_real(targets, "targets")
    if targets.dim() and not len(targets):
        raise CosetError("got an empty data set", "needed at least one example")
    inputs = read_inputs(data[0], module)
    if targets.dim() == 0 or count_rows(inputs) != len(targets):
        raise CosetError(
            f"got inputs of {shapes_of(inputs)} and targets of shape {tuple(targets.shape)}",
            "needed the same number of rows in all",
        )
    return inputs, targets


def read_inputs(inputs: Any, module: nn.Module | None = None) -> Inputs:
    """Inputs with arrays as tensors, and several as a tuple, in the order of the module.

    >>> read_inputs([np.zeros(3), torch.zeros(3)])
    (tensor([0., 0., 0.], dtype=torch.float64), tensor([0., 0., 0.]))
    """
    if isinstance(inputs, Mapping):
        inputs = named_inputs(inputs, module)
    several = isinstance(inputs, (tuple, list))
    found = tuple(map(as_tensor, inputs)) if several else as_tensor(inputs)
    for part in parts_of(found):
        if isinstance(part, Tensor):
            require_plain(part, "inputs")
    count_rows(found)
    return as_inputs(parts_of(found))


def read_batch(batch: Any, module: nn.Module | None = None) -> Batch:
    """A batch as a loader yields it: of more than two parts, all but the last are inputs."""
    if isinstance(batch, Mapping):
        return read_pair(named_pair(batch, module))
    if isinstance(batch, Tensor) or not isinstance(batch, Iterable):
        raise CosetError(f"got batches of type {type(batch).__name__}", "needed inputs and targets")
    parts = tuple(batch)
    return read_pair(parts if len(parts) <= 2 else (parts[:-1], parts[-1]), module)
