"""The noun of this room, a data set, and the verbs that reshape one."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from coset.errors import CosetError, require_kind
from coset.printing import brief


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Statistics:
    """Mean and standard deviation of training values; targets only in regression.

    One number for each channel of pictures, for each column of a table.
    """

    input_mean: Float[Tensor, "..."]
    input_std: Float[Tensor, "..."]
    target_mean: Float[Tensor, "..."] | None = None
    target_std: Float[Tensor, "..."] | None = None

    __repr__ = brief


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test part, with what is known about them.

    Pictures are ``(n, channels, height, width)`` in [0, 1] with one label each; a regression set
    has inputs ``(n, d)``, targets ``(n, 1)`` and no ``classes``. A set of which only a test part
    exists has a training part of length 0. ``origin`` says where the copy was taken from;
    ``partners`` names the sets that serve as its outliers; ``statistics`` are those it was
    standardised by, None in raw units.
    """

    name: str
    train_inputs: Float[Tensor, "train ..."]
    train_targets: Shaped[Tensor, "train ..."]
    test_inputs: Float[Tensor, "test ..."]
    test_targets: Shaped[Tensor, "test ..."]
    classes: tuple[str, ...] = ()
    origin: str = ""
    partners: tuple[str, ...] = ()
    statistics: Statistics | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        for part, (inputs, targets) in (("training", self.train), ("test", self.test)):
            require_kind(Tensor, inputs=inputs, targets=targets)
            if len(inputs) != len(targets):
                raise CosetError(
                    f"got {len(inputs)} {part} inputs and {len(targets)} targets in {self.name}",
                    "needed one target for each input",
                    "check how the two were cut",
                )
            if self.classes:
                _check_labels(targets, len(self.classes), f"{part} targets of {self.name}")
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise CosetError(
                f"got training inputs {tuple(self.train_inputs.shape[1:])} and test inputs "
                f"{tuple(self.test_inputs.shape[1:])} in {self.name}",
                "needed one shape for both parts",
                "resize one of them",
            )

    def __str__(self) -> str:
        shape = "×".join(map(str, self.test_inputs.shape[1:]))
        kind = f"{len(self.classes)} classes" if self.classes else "regression"
        sizes = f"{len(self.train_inputs)} training and {len(self.test_inputs)} test"
        return f"{self.name}: {sizes} inputs of {shape}, {kind}, from {self.origin}"

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """Training inputs and targets."""
        return self.train_inputs, self.train_targets

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Test inputs and targets."""
        return self.test_inputs, self.test_targets


def _check_labels(labels: Tensor, classes: int, what: str) -> None:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise CosetError(
            f"got {what} of {labels.dtype} and shape {tuple(labels.shape)}",
            "needed int64 labels of shape (n,)",
            "convert them with .long().flatten()",
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise CosetError(
            f"got {what} from {int(labels.min())} to {int(labels.max())}",
            f"needed labels from 0 to {classes - 1}",
            "check the labels or name every class",
        )


def statistics(dataset: Dataset) -> Statistics:
    """Mean and standard deviation (divisor n) of the training part.

    >>> pair = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    >>> found = statistics(Dataset("pair", *pair, *pair))
    >>> float(found.input_mean), float(found.input_std), float(found.target_std)
    (1.0, 1.0, 2.0)

    Raises:
        CosetError: There is no training part.
    """
    if len(dataset.train_inputs) == 0:
        raise CosetError(
            f"got {dataset.name}, which has no training part",
            "needed training inputs to take mean and standard deviation of",
            "pass the statistics of the set that the network is trained on",
        )
    moments = _moments(dataset.train_inputs)
    return (
        Statistics(*moments)
        if dataset.classes
        else Statistics(*moments, *_moments(dataset.train_targets))
    )


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Moments over all axes but the second, shaped to broadcast against one example."""
    # The mean of whole numbers is none itself.
    kind = values.dtype if values.is_floating_point() else torch.get_default_dtype()
    axes = [axis for axis in range(values.ndim) if axis != 1]
    # torch sums in double precision by itself, without a copy that is twice as large as the set
    wide = values if values.dtype in (torch.float32, torch.float64) else values.double()
    std, mean = torch.std_mean(wide, axes, correction=0, keepdim=True)
    # A constant column has no scale; dividing by its rounding error would blow it up.
    std = torch.where(values.amax(axes, True) == values.amin(axes, True), 1.0, std)
    return mean[0].to(kind), std[0].to(kind)


def standardise_inputs(inputs: Float[Tensor, "n ..."], by: Statistics) -> Float[Tensor, "n ..."]:
    """``(inputs - mean) / std`` with the mean and standard deviation of ``by``.

    Raises:
        CosetError: They are those of another number of channels or columns.
    """
    try:
        by.input_mean.expand(inputs.shape[1:])
    except RuntimeError as error:
        raise CosetError(
            f"got inputs of shape {tuple(inputs.shape[1:])} and statistics of shape "
            f"{tuple(by.input_mean.shape)}",
            "needed a mean for each channel or column of the inputs",
            "bring pictures to one shape with fit_images first",
        ) from error
    return (inputs - by.input_mean) / by.input_std


def standardise(dataset: Dataset, *, by: Statistics | None = None) -> Dataset:
    """Shift and scale to mean 0 and standard deviation 1 on the training part.

    Regression targets are standardised too; multiply a standardised root-mean-square error by
    ``statistics.target_std`` of the result to have it in raw units.

    >>> pair = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    >>> standardise(Dataset("pair", *pair, *pair)).test_targets.flatten().tolist()
    [-1.0, 1.0]

    Args:
        dataset: In raw units.
        by: Other statistics than its own, such as those of the set a network was trained on.

    Raises:
        CosetError: It is standardised already, or it has no training part and ``by`` is None.
    """
    if dataset.statistics is not None:
        raise CosetError(
            f"got {dataset.name}, which is standardised already",
            "needed a set in raw units",
            "use it as it is",
        )
    by = statistics(dataset) if by is None else by
    changed = replace(
        dataset,
        train_inputs=standardise_inputs(dataset.train_inputs, by),
        test_inputs=standardise_inputs(dataset.test_inputs, by),
        statistics=by,
    )
    if by.target_mean is None or by.target_std is None:
        return changed
    return replace(
        changed,
        train_targets=(dataset.train_targets - by.target_mean) / by.target_std,
        test_targets=(dataset.test_targets - by.target_mean) / by.target_std,
    )


def holding_out(dataset: Dataset, classes: Collection[int]) -> tuple[Dataset, Dataset]:
    """Split some classes off as an out-of-distribution set.

    >>> images, labels = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 1])
    >>> whole = Dataset("four", images, labels, images, labels, classes=("a", "b", "c"))
    >>> rest, held = holding_out(whole, [1])
    >>> rest.train_targets.tolist(), rest.classes, held.train_targets.tolist(), held.classes
    ([0, 1], ('a', 'c'), [0, 0], ('b',))

    Args:
        dataset: Of labelled inputs.
        classes: Labels to hold out.

    Returns:
        The rest, and what was held out; both labelled anew from 0 in the old order.
    """
    require_kind(Collection, classes=classes)
    given, known = list(classes), range(len(dataset.classes))
    # A truth value counts as 0 or 1; ten of them are a mask, which would hold those two out.
    strange = [k for k in given if not isinstance(k, Integral) or isinstance(k, bool)]
    held = [label for label in known if label in given]
    kept = [label for label in known if label not in given]
    if strange or not held or not kept or not set(given) <= set(known):
        raise CosetError(
            f"got the classes {given} to hold out of {dataset.name}",
            f"needed some, not all, of 0 to {len(dataset.classes) - 1}",
            "name at least one and leave at least one",
        )
    names = ", ".join(dataset.classes[label] for label in held)
    return (
        _only(dataset, kept, f"{dataset.name} without {names}"),
        _only(dataset, held, f"{dataset.name} only {names}"),
    )


def _only(dataset: Dataset, labels: list[int], name: str) -> Dataset:
    def part(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        anew = targets.new_full((len(dataset.classes),), -1)
        anew[labels] = torch.arange(len(labels), device=targets.device)
        relabelled = anew[targets]
        chosen = relabelled >= 0
        return inputs[chosen], relabelled[chosen]

    train, test = part(*dataset.train), part(*dataset.test)
    return replace(
        dataset,
        name=name,
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test[0],
        test_targets=test[1],
        classes=tuple(dataset.classes[label] for label in labels),
    )


def validation_split(
    dataset: Dataset, fraction: float, *, generator: torch.Generator
) -> tuple[Dataset, tuple[Tensor, Tensor]]:
    """Take a random part of the training data away, for early stopping and tuning.

    >>> pair = torch.arange(10.0)[:, None], torch.arange(10.0)[:, None]
    >>> ten = Dataset("ten", *pair, *pair)
    >>> rest, held = validation_split(ten, 0.3, generator=torch.Generator().manual_seed(0))
    >>> len(rest.train_inputs), len(held[0])
    (7, 3)

    Args:
        dataset: With a training part.
        fraction: Of the training data to take away, in (0, 1); rounded to whole examples.
        generator: Chooses them.

    Returns:
        The set with what is left to train on, and the validation inputs and targets.
    """
    require_kind(torch.Generator, "torch.Generator", generator=generator)
    require_kind(float, fraction=fraction)
    count = len(dataset.train_inputs)
    size = round(fraction * count) if 0 < fraction < 1 else 0
    if not 0 < size < count:
        raise CosetError(
            f"got the fraction {fraction} of {count} training examples of {dataset.name}",
            "needed a fraction between 0 and 1 that leaves an example on each side",
            "choose another fraction",
        )
    order = torch.randperm(count, generator=generator, device=generator.device)
    order = order.to(dataset.train_inputs.device)
    # Sorted, so that the rest keeps its order and only the choice is random.
    validation, rest = order[:size].sort().values, order[size:].sort().values
    inputs, targets = dataset.train
    smaller = replace(dataset, train_inputs=inputs[rest], train_targets=targets[rest])
    return smaller, (inputs[validation], targets[validation])
