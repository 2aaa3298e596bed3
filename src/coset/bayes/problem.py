"""Network, likelihood, prior and data: what a method is asked to solve."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coset.bayes.batches import Batches, Data, as_batches
from coset.bayes.defaults import count_targets, link_of, with_noise
from coset.bayes.likelihood import Categorical, Likelihood, LinkName
from coset.bayes.prior import GaussianPrior
from coset.errors import CosetError, require_kinds
from coset.vocabulary import Batch, Inputs, Weights
from coset.weights.inputs import (
    check_finite_inputs,
    count_rows,
    map_parts,
    other_type,
    parts_of,
    shapes_of,
    take_rows,
)
from coset.weights.network import REFUSALS, Network, functionalise


@dataclass(frozen=True)
class Problem:
    """The posterior ``p(w | data) ∝ p(w) Π p(y | f(x; w))`` that methods approximate."""

    network: Network
    likelihood: Likelihood
    prior: GaussianPrior
    train: Batches

    def __post_init__(self) -> None:
        require_kinds(self)

    @classmethod
    def of(
        cls,
        module: nn.Module,
        train: Data,
        *,
        likelihood: Likelihood = Categorical(),
        prior: GaussianPrior | None = None,
    ) -> "Problem":
        """The problem that :func:`coset.fit` would build, checked.

        Args:
            module: The network.
            train: A pair ``(inputs, targets)``, a ``Dataset`` or a ``DataLoader``.
            likelihood: Classes unless told otherwise.
            prior: ``None`` stands for precision one.

        >>> import torch
        >>> problem = Problem.of(nn.Linear(2, 3), (torch.zeros(5, 2), torch.arange(5) % 3))
        >>> problem.train.size, problem.network.layout.size
        (5, 9)
        """
        batches = as_batches(train, module=module)
        prior = GaussianPrior() if prior is None else prior
        problem = cls(functionalise(module), likelihood, prior, batches)
        problem.check()
        return problem

    def log_likelihood(self, weights: Weights, batch: Batch) -> Tensor:
        """Log-likelihood of all data, estimated from a batch: ``n / |batch| · Σ log p``."""
        inputs, targets = batch
        outputs = self.network.apply(weights, inputs)
        return self.likelihood.log_prob(outputs, targets).mean() * self.train.size

    def log_prior(self, weights: Weights) -> Tensor:
        """Log-prior of the parameters among ``weights``."""
        names = set(self.network.layout.names)
        return self.prior.log_prob({name: w for name, w in weights.items() if name in names})

    def log_joint(self, weights: Weights, batch: Batch) -> Tensor:
        """Log-likelihood of all data, estimated from a batch, plus the log-prior."""
        return self.log_likelihood(weights, batch) + self.log_prior(weights)

    def check(self) -> None:
        """Runs the first examples through the network and refuses what does not fit.

        All data are checked, so that a bad number is found before training, not during it.
        """
        if not self.network.layout.names:
            raise CosetError(
                "got a network without parameters",
                "needed one that there is a posterior over",
                "check that its layers are attributes of the module, not of a list or dictionary",
            )
        self.check_batch_norm()
        seen, counted = 0, 0.0
        shapes = set[tuple[torch.Size, ...]]()
        for number, (inputs, targets) in enumerate(self.train):
            check_finite_inputs(inputs, first=seen)
            shape = tuple(part.shape[1:] for part in parts_of(inputs))
            if number == 0:
                outputs = self._first_outputs(inputs)
                self._check_examples_apart(inputs)
            elif shape not in shapes:  # pictures of another size, sentences of another length
                self._check_shape(inputs, seen, outputs)
            shapes.add(shape)
            seen += len(targets)
            each = outputs.expand(len(targets), *outputs.shape[1:])
            self.likelihood.check(each, targets)
            counted += count_targets(self.likelihood, each, targets)
        if counted == 0:
            raise CosetError(
                f"got {seen} examples of which no target counts: all are void or missing",
                "needed one target that counts",
                f"check {self.likelihood!r} against the targets",
            )

    def check_batch_norm(self) -> None:
        """Refuses norms that couple the examples of a batch, which then have no outputs alone."""
        module = self.network.module
        for name, child in () if module is None else module.named_modules():
            if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.running_mean is None:
                raise CosetError(
                    f"got the batch norm {name!r} without running statistics",
                    "needed outputs that do not depend on the other examples of a batch",
                    "build it with track_running_stats=True and train it, or use another norm",
                )

    def _check_examples_apart(self, inputs: Inputs) -> None:
        """Refuses networks whose outputs for an example depend on the others of its batch."""
        count = count_rows(inputs)
        rows = torch.linspace(0, count - 1, min(4, count)).round().long().unique()
        if len(rows) < 2:
            return
        network, several = self.network, take_rows(inputs, rows)
        halves = [take_rows(inputs, half) for half in rows.tensor_split(2)]
        try:
            whole, again = (network.apply(network.weights, several) for _ in range(2))
            apart = torch.cat([network.apply(network.weights, half) for half in halves])
        except REFUSALS:  # what it cannot take is named where it is asked for it
            return
        if _agree(whole, apart) or not _agree(whole, again):  # one that draws cannot be asked
            return
        where = "" if network.module is None else mixing_layer(network.module, several, halves)
        raise CosetError(
            "got a network whose outputs for an example depend on the other examples of its batch"
            + where,
            "needed outputs of each example by itself",
            "look for means, norms and attention along the first axis (batch_first=True)",
        )

    def _check_gradients(self, inputs: Inputs) -> None:
        """Refuses networks through which no gradient comes."""
        network = self.network
        leaves = {n: network.weights[n].detach().requires_grad_() for n in network.layout.names}
        try:
            with torch.enable_grad():
                outputs = network.apply({**network.weights, **leaves}, inputs)
                reached = outputs.requires_grad
                if reached:
                    torch.autograd.grad(outputs.sum(), list(leaves.values()), allow_unused=True)
        except REFUSALS as error:
            raise CosetError(
                f"got a network that torch cannot differentiate ({str(error).partition(':')[0]})",
                "needed gradients of its outputs",
                "replace operations in place, such as relu_ and mul_, in its forward",
            ) from error
        if not reached:
            raise CosetError(
                "got a network whose outputs do not depend on its parameters",
                "needed gradients from its outputs to them",
                "look for detach, no_grad, .data and .item in its forward",
            )

    def _first_outputs(self, inputs: Inputs) -> Tensor:
        few = map_parts(torch.clone, take_rows(inputs, slice(2)))
        before = map_parts(torch.clone, few)
        try:
            outputs: object = self.network.apply(self.network.weights, few)
        except REFUSALS as error:
            reason = str(error).partition("\n")[0]
            raise CosetError(
                f"got inputs of {shapes_of(inputs)}, which the network cannot read ({reason})",
                "needed one example a row, in the shape and type that its first layer takes",
                self._advice(inputs),
            ) from error
        if not all(map(torch.equal, parts_of(few), parts_of(before))):
            raise CosetError(
                "got a network that writes into its inputs",
                "needed one that leaves the data as they are",
                "let its forward begin with a copy, or replace operations in place on the inputs",
            )
        if isinstance(outputs, Tensor) and outputs.shape[:1] == (count_rows(few),):
            self._check_gradients(few)
            return outputs[:1]
        kind = type(outputs).__name__
        if isinstance(outputs, Tensor):
            kind = f"shape {tuple(outputs.shape)} for {count_rows(few)} examples"
        raise CosetError(
            f"got a network that returns {kind}",
            "needed one tensor of outputs, one row an example",
            "wrap it in a module whose forward returns that tensor, such as its logits",
        )

    def _check_shape(self, inputs: Inputs, row: int, first: Tensor) -> None:
        """Refuses rows that the network cannot read, or reads as outputs of another shape."""
        network = self.network
        try:
            found = network.apply(network.weights, take_rows(inputs, slice(1)))
        except REFUSALS as error:
            reason = str(error).partition("\n")[0]
            raise CosetError(
                f"got rows of {shapes_of(take_rows(inputs, slice(1)))} from row {row} on, which "
                f"the network cannot read ({reason})",
                "needed rows in the shape of the first, or of any that the network can read",
                "crop or pad them to one size in the data set",
            ) from error
        if found.shape != first.shape:
            raise CosetError(
                f"got outputs of shape {tuple(found.shape[1:])} for row {row} and of "
                f"{tuple(first.shape[1:])} for the first",
                "needed outputs of one shape",
                "crop or pad the inputs to one size in the data set",
            )

    def _advice(self, inputs: Inputs) -> str:
        weights = [self.network.weights[name] for name in self.network.layout.names]
        several = len(parts_of(inputs)) > 1
        more = ": all parts of an example but the last are inputs" if several else ""
        return other_type(inputs, weights) or f"check the data set{more}"

    def outputs_and_targets(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """What the network says of all data at some weights, and what it should have said."""
        pairs = [(self.network.apply(weights, inputs), targets) for inputs, targets in self.train]
        outputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return outputs, targets

    def first_outputs(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Outputs and targets of the first batch."""
        inputs, targets = next(iter(self.train))
        return self.network.apply(weights, inputs), targets

    def one_output(self) -> Tensor:
        """What the network says of the first example."""
        inputs, _ = next(iter(self.train))
        return self.network.apply(self.network.weights, take_rows(inputs, slice(1)))

    def outputs_each(self) -> int:
        """Outputs of one example, over all its pixels."""
        return self.one_output().numel()

    def link(self) -> LinkName:
        """How the mean of a target follows from the outputs."""
        return link_of(self.likelihood, self.one_output())

    def with_noise(self, std: float) -> "Problem":
        """The same problem with noise of a known size, where it is to be learnt."""
        return self.with_likelihood(with_noise(self.likelihood, std))

    def with_likelihood(self, likelihood: Likelihood) -> "Problem":
        """The same problem under another likelihood (learnt noise, say)."""
        return replace(self, likelihood=likelihood)


def mixing_layer(module: nn.Module, whole: Inputs, parts: Sequence[Inputs]) -> str:
    """Which layer mixes examples: the first to end whose inputs agree and whose outputs do not."""
    module, seen = copy.deepcopy(module), list[tuple[str, Tensor, Tensor]]()

    def hear(name: str, args: tuple[object, ...], result: object) -> None:
        first = next((part for part in args if isinstance(part, Tensor)), None)
        result = result[0] if isinstance(result, tuple) else result
        if first is not None and isinstance(result, Tensor):
            seen.append((name, first, result))

    for name, child in module.named_modules():
        child.register_forward_hook(lambda _, args, result, n=name: hear(n, args, result))
    runs = []
    for inputs in (whole, *parts):
        seen.clear()
        module(*parts_of(inputs))
        runs.append(list(seen))
    for calls in zip(*runs, strict=False):
        name, given, result = calls[0]
        others = [torch.cat(side) for side in zip(*(call[1:] for call in calls[1:]), strict=True)]
        if name and _agree(given, others[0]) and not _agree(result, others[1]):
            return f", by its layer {name!r}"
    return f", by {type(module).__name__}.forward"


def _agree(first: Tensor, second: Tensor) -> bool:
    """Whether outputs are the same but for rounding; what cannot be compared is not different."""
    if first.shape != second.shape or not first.is_floating_point():
        return True
    if not bool(first.isfinite().all()):
        return True
    room = torch.finfo(first.dtype).eps ** 0.5 * float(first.detach().abs().max())
    return float((first - second).detach().abs().max()) <= float(room)
