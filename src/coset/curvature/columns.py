"""Columns of a root of the output Hessian: what is sent back through a network."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.defaults import hessian_root, link_of
from coset.bayes.likelihood import Likelihood
from coset.bayes.problem import Problem

_ENTRIES = 1 << 20
"""Entries of the root of an example's Hessian at most, where random columns stand for it."""


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
    """A likelihood whose Hessian is seen through random columns; else it is the inner one.

    Attributes:
        inner: The likelihood.
        draws: Columns of each example.
        generator: Of signs and pixels.
        pixels: Of each example and column; ``None``: as many as the memory of a root allows.
    """

    inner: Likelihood
    draws: int
    generator: torch.Generator
    pixels: int | None = None

    def sampled_columns(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Columns ``R e / √draws``, each in the shape of the outputs, for all pixels at once.

        From ``k`` of ``P`` pixels, drawn anew for each column without replacement, they are
        ``√(P / k)`` times as long, and ``E (R e)(R e)ᵀ`` stays what it is.
        """
        at, share = outputs.detach(), self._share(outputs)
        if share is None:
            root = hessian_root(self.inner, at, targets)  # n pixels c r
        for _ in range(self.draws):
            if share is None:
                yield self._signed(root)
                continue
            flat = at.flatten(2)
            each = torch.rand(len(flat), flat.shape[2], generator=self.generator)
            places = each.topk(share).indices.to(flat.device)
            seen = _taken(flat, places), _taken(_flat_pixels(targets, outputs), places)
            column = self._signed(hessian_root(self.inner, *seen)) * (flat.shape[2] / share) ** 0.5
            at_places = places.unsqueeze(1).expand_as(column)
            yield torch.zeros_like(flat).scatter_(2, at_places, column).reshape(outputs.shape)

    def _share(self, outputs: Tensor) -> int | None:
        """How many pixels of an example a column is made of; ``None``: all."""
        if outputs.dim() < 3:
            return None
        found = pixels_drawn(self.inner, outputs, self.pixels)
        return None if found == outputs[0, 0].numel() else found

    def _signed(self, root: Float[Tensor, "n *pixels c r"]) -> Float[Tensor, "n c *pixels"]:
        shape = (*root.shape[:-2], root.shape[-1], 1)
        signs = torch.randint(2, shape, generator=self.generator).to(root)
        found: Tensor = (root @ (2 * signs - 1)).squeeze(-1) / self.draws**0.5
        return found.movedim(-1, 1)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
        """Of the inner likelihood."""
        return self.inner.log_prob(outputs, targets)

    def mean(self, outputs: Tensor) -> Tensor:
        """Of the inner likelihood."""
        return self.inner.mean(outputs)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """As the inner likelihood does."""
        self.inner.check(outputs, targets)


def pixels_drawn(likelihood: Likelihood, outputs: Tensor, asked: int | None = None) -> int:
    """How many pixels of an example a random column is made of.

    Args:
        likelihood: Without random columns.
        outputs: Of any examples.
        asked: How many were asked for; ``None``: as many as keep a root within four megabytes.

    >>> from coset import Categorical
    >>> pixels_drawn(Categorical(), torch.zeros(1, 21, 128, 128))  # of 16,384, 21² entries each
    2377
    """
    width = outputs.shape[1]
    columns = width
    if hasattr(likelihood, "hessian_root") and asked is None:
        few = outputs[:1].detach().flatten(2)[..., :1]
        columns = int(likelihood.hessian_root(few).shape[-1])
    most = max(1, _ENTRIES // (width * columns)) if asked is None else asked
    return min(most, outputs[0, 0].numel())


def pixels_note(likelihood: Likelihood, outputs: Tensor, asked: int | None = None) -> str:
    """Says where random columns leave pixels out that nobody asked to; else nothing."""
    if outputs.dim() < 3 or asked is not None:
        return ""
    drawn, pixels = pixels_drawn(likelihood, outputs), outputs[0, 0].numel()
    if drawn == pixels:
        return ""
    return (
        f"random columns of {drawn:,} of the {pixels:,} pixels of an example, drawn anew for each; "
        "MonteCarloFisher(KFAC(), pixels=…) takes others"
    )


def _flat_pixels(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets with their pixels along one axis, the last."""
    return targets.flatten(targets.dim() - (outputs.dim() - 2))


def _taken(values: Float[Tensor, "n *c p"], places: Tensor) -> Tensor:
    """Values at some pixels of each example."""
    if values.dim() == 2:
        return values.gather(1, places)
    return values.gather(2, places.unsqueeze(1).expand(-1, values.shape[1], -1))


def with_random_columns(
    problem: Problem, draws: int, seed: int = 0, *, again: bool, pixels: int | None = None
) -> Problem:
    """A problem whose likelihood draws so many columns.

    Args:
        problem: With any likelihood.
        draws: Columns of each example.
        seed: Of the signs.
        again: After an earlier pass: the signs must not be those that made its eigenvectors.
        pixels: Of each example and column; ``None``: as many as the memory of a root allows.
    """
    generator = torch.Generator().manual_seed(seed + again)
    return problem.with_likelihood(SignedColumns(problem.likelihood, draws, generator, pixels))


def exact(likelihood: Likelihood) -> Likelihood:
    """The likelihood without random columns.

    >>> from coset import Categorical
    >>> exact(SignedColumns(Categorical(), 2, torch.Generator()))
    Categorical(ignore=None)
    """
    return likelihood.inner if isinstance(likelihood, SignedColumns) else likelihood
