"""How each operation treats axes and scales: one short rule an operation.

Rules are written in the primitives of :mod:`coset.symmetry.analysis.primitives`; norms, softmax,
attention and the like are compositions, so that whatever holds for them follows instead of being
claimed.  A rule is called with the algebra, the result's shape and the operation's arguments by
schema name.  An operation without a rule refuses every axis it touches (:func:`unknown`).  Of
several results, one that refuses more than the others may be a function that makes it when it is
asked for.
"""

from coset.symmetry.analysis.rules import (
    arithmetic,
    axes,
    contractions,
    convolutions,
    lookups,
    maps,
    norms,
    reductions,
    spectra,
    windows,
)
from coset.symmetry.analysis.rules.table import RULES, unknown

FAMILIES = (
    maps, arithmetic, contractions, reductions, axes, windows, lookups, convolutions, norms,
    spectra,
)  # fmt: skip
"""The files of rules; importing them fills the table."""

__all__ = ["FAMILIES", "RULES", "unknown"]
