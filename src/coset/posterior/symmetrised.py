"""A posterior moved by all of its network's symmetries: the mixture over them."""

from dataclasses import dataclass

import torch

from coset.errors import CosetError, require_kind
from coset.posterior.families import FitReport, Posterior
from coset.printing import brief
from coset.symmetry.group import SymmetryGroup
from coset.vocabulary import Weights
from coset.weights.layout import Layout


@dataclass(frozen=True)
class Symmetrised:
    """Draws of a posterior, each moved by a random element of the group.

    ``p(w) = ∫ q(g⁻¹ w) p(g) dg`` with uniform permutations, log-normal scales and fair signs
    (Laurent, Aldea and Franchi 2024, the posterior as a mixture over symmetries).  Every draw
    computes the function of the draw it was made from, so predictions are those of ``inner``.

    Attributes:
        inner: What is moved.
        group: The symmetries of the network.
    """

    inner: Posterior
    group: SymmetryGroup

    __repr__ = brief

    @property
    def layout(self) -> Layout:
        """The tensors of a draw."""
        return self.inner.layout

    @property
    def report(self) -> FitReport:
        """What the fit of the inner posterior found out."""
        return self.inner.report

    def sample(self, draws: int, *, generator: torch.Generator) -> Weights:
        """A stack of ``draws`` members."""
        stack = self.inner.sample(draws, generator=generator)
        return self.group.act(self.group.sample(generator=generator, members=draws), stack)


def symmetrised(posterior: Posterior, group: SymmetryGroup) -> Symmetrised:
    """The mixture of a posterior over the symmetries of its network.

    Args:
        posterior: Whose draws hold all tensors that the group moves.
        group: The symmetries, as :func:`coset.discover` finds them.

    Raises:
        CosetError: If draws lack tensors of the group.

    >>> from torch import nn
    >>> from coset import Samples, discover
    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False))
    >>> stack = {"0.weight": torch.tensor([[[1.0], [2.0]]]), "2.weight": torch.ones(1, 1, 2)}
    >>> moved = symmetrised(Samples(stack), discover(net, torch.zeros(1, 1)))
    >>> draws = moved.sample(100, generator=torch.Generator().manual_seed(0))
    >>> sorted(set(draws["0.weight"][:, 0, 0].tolist()))  # the first unit was either, of any sign
    [-2.0, -1.0, 1.0, 2.0]
    """
    require_kind(Posterior, posterior=posterior)
    require_kind(SymmetryGroup, group=group)
    held = {*posterior.layout.names, *getattr(posterior, "fixed", {})}
    if missing := [name for name in group.shapes if name not in held]:
        raise CosetError(
            f"got a posterior over {len(held)} tensors without {missing[0]!r}",
            f"needed the {len(group.shapes)} tensors that the group is of",
            "take the posterior and the group from one network, and of all its weights",
        )
    return Symmetrised(posterior, group)
