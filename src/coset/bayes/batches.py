"""Training data as one thing: a size, passes in a fixed order, and rows by number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from coset.errors import CosetError
from coset.printing import brief
from coset.vocabulary import Batch

Data: TypeAlias = "DataLoader[Any] | Dataset[Any] | tuple[Tensor, Tensor] | Batches"


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

    inputs: Tensor
    targets: Tensor
    batch_size: int = 256

    __repr__ = brief

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    def __iter__(self) -> Iterator[Batch]:
        """Batches in the order of the tensors."""
        pairs = zip(
            self.inputs.split(self.batch_size), self.targets.split(self.batch_size), strict=True
        )
        yield from pairs

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers."""
        flat = index.flatten()  # copying whole rows is twice as fast as general indexing
        return (
            self.inputs.index_select(0, flat).view(*index.shape, *self.inputs.shape[1:]),
            self.targets.index_select(0, flat).view(*index.shape, *self.targets.shape[1:]),
        )


@dataclass(frozen=True)
class FromDataset:
    """A map-style data set read example by example, never held in memory as a whole."""

    dataset: Dataset[Any]
    batch_size: int = 256
    collate: Any = default_collate

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.dataset)  # type: ignore[arg-type]  # map-style sets have a length

    def __iter__(self) -> Iterator[Batch]:
        """Batches in the order of the data set."""
        for start in range(0, self.size, self.batch_size):
            yield self.rows(torch.arange(start, min(start + self.batch_size, self.size)))

    def rows(self, index: Tensor) -> Batch:
        """The examples of the given numbers."""
        examples = [self.dataset[i] for i in index.flatten().tolist()]
        inputs, targets = _pair(tuple(self.collate(examples)))
        return (
            inputs.reshape(*index.shape, *inputs.shape[1:]),
            targets.reshape(*index.shape, *targets.shape[1:]),
        )


def as_batches(data: Data, *, batch_size: int = 256) -> Batches:
    """Reads a pair of tensors, a data set or a loader as :class:`Batches`.

    A loader's own order is not used: passes go in the order of its data set, so that two passes
    see the same rows, and training draws its own order from a seed.

    >>> as_batches((torch.zeros(5, 2), torch.zeros(5))).size
    5
    """
    if isinstance(data, DataLoader):
        return _from_loader(data, batch_size)
    if isinstance(data, TensorDataset):
        data = _pair(data.tensors)
    if isinstance(data, (tuple, list)):
        inputs, targets = _pair(data)
        return InMemory(inputs, targets, batch_size)
    if isinstance(data, IterableDataset):
        return _materialise(DataLoader(data, batch_size=batch_size), batch_size)
    if isinstance(data, Dataset):
        return _checked(FromDataset(data, batch_size))
    if all(hasattr(data, name) for name in ("size", "batch_size", "rows")):
        return data
    raise CosetError(
        f"got data of type {type(data).__name__}",
        "needed a DataLoader, a Dataset or a pair (inputs, targets)",
    )


def as_tensor(part: Any) -> Any:
    """A NumPy array as a tensor, in the same memory where torch can read it; else what was given.

    >>> as_tensor(np.arange(3, dtype=">u2")[::-1]).tolist()
    [2, 1, 0]
    """
    if not isinstance(part, np.ndarray):
        return part
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


def _from_loader(loader: "DataLoader[Any]", batch_size: int) -> Batches:
    size = loader.batch_size or batch_size
    if isinstance(loader.dataset, IterableDataset):
        return _materialise(loader, size)
    default = loader.collate_fn is default_collate
    if isinstance(loader.dataset, TensorDataset) and default:
        return InMemory(*_pair(loader.dataset.tensors), size)
    return _checked(FromDataset(loader.dataset, size, loader.collate_fn))


def _materialise(loader: "DataLoader[Any]", batch_size: int) -> Batches:
    """A stream has no second pass, so it is kept in memory."""
    pairs = [_pair(batch) for batch in loader]
    if not pairs:
        raise CosetError("got an empty loader", "needed at least one example")
    inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return InMemory(inputs, targets, batch_size)


def _checked(batches: FromDataset) -> Batches:
    if not hasattr(batches.dataset, "__len__"):
        raise CosetError("got a data set without a length", "needed __len__ and __getitem__")
    if batches.size == 0:
        raise CosetError("got an empty data set", "needed at least one example")
    return batches


def _pair(data: Sequence[Any]) -> tuple[Tensor, Tensor]:
    parts = [as_tensor(part) for part in data]
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        raise CosetError(
            f"got {len(parts)} parts: {', '.join(type(part).__name__ for part in parts)}",
            "needed two tensors, inputs and targets",
            "put several inputs side by side in one tensor, and wrap the network in a module "
            "that parts them",
        )
    inputs, targets = parts
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise CosetError(
            f"got inputs of shape {tuple(inputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}",
            "needed the same number of rows in both",
        )
    if len(inputs) == 0:
        raise CosetError("got an empty data set", "needed at least one example")
    return inputs, targets
