"""Columns of a root of the output Hessian: what is sent back through a network."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import hessian_root, link_of
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem


def columns(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The columns of the root of the output Hessian, each in the shape of the outputs.

    For outputs with pixels the Hessian does not couple them, so each pixel has its own columns.
    """
    if isinstance(likelihood, SignedColumns):
        yield from likelihood.sampled_columns(outputs, targets)
        return
    root = _root(likelihood, outputs.detach(), targets)
    if outputs.dim() == 2:
        yield from root.unbind(-1)
        return
    flat = root.flatten(1, -3)  # n pixels c r
    for pixel in range(flat.shape[1]):
        for column in flat[:, pixel].unbind(-1):
            if bool(column.any()):
                result = torch.zeros_like(outputs).flatten(2)
                result[:, :, pixel] = column
                yield result.reshape(outputs.shape)


def column_count(likelihood: Likelihood, outputs: Tensor) -> int:
    """How many columns the root has."""
    if isinstance(likelihood, SignedColumns):
        return likelihood.draws
    pixels, width = outputs[0, 0].numel(), outputs.shape[1]
    if hasattr(likelihood, "hessian_root"):
        width = int(likelihood.hessian_root(outputs[:1].detach()).shape[-1])
    spared = width > 1 and link_of(likelihood, outputs) == "softmax"
    return (width - spared) * pixels


def _root(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor
) -> Float[Tensor, "n *pixels c r"]:
    """A root of the output Hessian with as few columns as it has ranks.

    For classes ``R √π = 0``, so a reflection that takes ``√π`` to the last axis leaves a column of
    zeros there, which is dropped: one backward pass less.
    """
    root = hessian_root(likelihood, outputs, targets)
    sizes = outputs.movedim(1, -1).softmax(-1).sqrt()
    if link_of(likelihood, outputs) != "softmax" or not 1 < root.shape[-1] == sizes.shape[-1]:
        return root
    rounding = 100 * torch.finfo(root.dtype).eps * (1 + float(root.abs().max()))
    if float((root @ sizes.unsqueeze(-1)).abs().max()) > rounding:  # another root than ours
        return root
    share = sizes[..., :-1] / (1 + sizes[..., -1:])
    return root[..., :-1] - root[..., -1:] * share.unsqueeze(-2)


def unit_columns(outputs: Tensor) -> Iterator[Tensor]:
    """One direction an output."""
    for index in range(outputs[0].numel()):
        result = torch.zeros_like(outputs).flatten(1)
        result[:, index] = 1
        yield result.reshape(outputs.shape)


@dataclass(frozen=True)
class SignedColumns:
    """A likelihood whose Hessian is seen through random columns; else it is the inner one."""

    inner: Likelihood
    draws: int
    generator: torch.Generator

    def sampled_columns(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Columns ``R e / √draws``, each in the shape of the outputs, for all pixels at once."""
        root = hessian_root(self.inner, outputs.detach(), targets)  # n pixels c r
        for _ in range(self.draws):
            signs = torch.randint(
                2, (*root.shape[:-2], root.shape[-1], 1), generator=self.generator
            ).to(root)
            column = (root @ (2 * signs - 1)).squeeze(-1) / self.draws**0.5
            yield column.movedim(-1, 1)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Of the inner likelihood."""
        return self.inner.log_prob(outputs, targets)

    def mean(self, outputs: Tensor) -> Tensor:
        """Of the inner likelihood."""
        return self.inner.mean(outputs)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """As the inner likelihood does."""
        self.inner.check(outputs, targets)


def with_random_columns(problem: Problem, draws: int, seed: int = 0, *, again: bool) -> Problem:
    """A problem whose likelihood draws so many columns.

    Args:
        problem: With any likelihood.
        draws: Columns of each example.
        seed: Of the signs.
        again: After an earlier pass: the signs must not be those that made its eigenvectors.
    """
    generator = torch.Generator().manual_seed(seed + again)
    return problem.with_likelihood(SignedColumns(problem.likelihood, draws, generator))


def exact(likelihood: Likelihood) -> Likelihood:
    """The likelihood without random columns.

    >>> from coset import Categorical
    >>> exact(SignedColumns(Categorical(), 2, torch.Generator()))
    Categorical(ignore=None)
    """
    return likelihood.inner if isinstance(likelihood, SignedColumns) else likelihood
