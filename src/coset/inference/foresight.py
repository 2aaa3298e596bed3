"""What can be known of a method's posterior before it is fitted, so that nothing is run in vain."""

from coset.inference.ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.laplace.method import Laplace
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.mean_field import MeanField
from coset.inference.method import Method
from coset.inference.monte_carlo_dropout import MCDropout
from coset.inference.multi_mode import MultiMode
from coset.inference.nuts import NUTS
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.swag import SWAG


def expected_members(method: Method, *, normalised: bool = False) -> int | None:
    """How many members a finite posterior will have; 0: it is drawn from; ``None``: unknown.

    Args:
        method: What will be fitted.
        normalised: Whether the network has batch-norm statistics.

    >>> expected_members(MultiMode(DeepEnsemble(5), 3)), expected_members(MeanField())
    (15, 0)
    """
    match method:
        case MaximumAPosteriori():
            return 1
        case DeepEnsemble():
            return method.members
        case HMC() | NUTS() | SGHMC() | SGLD():
            cycles = getattr(method, "schedule", None)
            return method.chains * (
                method.draws if cycles is None else cycles.cycles * cycles.draws
            )
        case MultiMode(by_evidence=False):
            each = expected_members(method.inner, normalised=normalised)
            return None if each is None else method.modes * each
        case SWAG():
            return method.members if normalised else 0
    return 0 if isinstance(method, (MeanField, MCDropout, Laplace)) else None


def innermost(method: object) -> object:
    """The method that methods around it run.

    >>> innermost(MultiMode(MCDropout(), 3)) == MCDropout()
    True
    """
    while hasattr(method, "inner"):
        method = method.inner
    return method
