"""Zoos: networks by the thousand, trained alike from different seeds, kept, shared and read.

A zoo is a folder.  Its recipe says how one network is trained; its files hold the weights; an index
that is rebuilt from them at any time says what is where.  Names load on first use, so that recipes
can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coset.zoo.checkpoints import read_checkpoints as read_checkpoints
    from coset.zoo.packing import pack as pack
    from coset.zoo.packing import rebuild_index as rebuild_index
    from coset.zoo.populating import populate as populate
    from coset.zoo.reading import Member as Member
    from coset.zoo.reading import Zoo as Zoo
    from coset.zoo.recipe import ZooRecipe as ZooRecipe
    from coset.zoo.recipe import read_recipe as read_recipe
    from coset.zoo.recipe import recipes as recipes
    from coset.zoo.sharing import export_hub as export_hub
    from coset.zoo.sharing import import_hub as import_hub
    from coset.zoo.summary import excess_of_mass as excess_of_mass
    from coset.zoo.verifying import Fault as Fault
    from coset.zoo.verifying import verify as verify

NAMES = {
    "Fault": "coset.zoo.verifying",
    "Member": "coset.zoo.reading",
    "Zoo": "coset.zoo.reading",
    "ZooRecipe": "coset.zoo.recipe",
    "excess_of_mass": "coset.zoo.summary",
    "export_hub": "coset.zoo.sharing",
    "import_hub": "coset.zoo.sharing",
    "pack": "coset.zoo.packing",
    "populate": "coset.zoo.populating",
    "read_checkpoints": "coset.zoo.checkpoints",
    "read_recipe": "coset.zoo.recipe",
    "rebuild_index": "coset.zoo.packing",
    "recipes": "coset.zoo.recipe",
    "verify": "coset.zoo.verifying",
}

__all__ = list(NAMES)


def __getattr__(name: str) -> Any:
    """Imports a name on first use."""
    if name not in NAMES:
        raise AttributeError(f"module 'coset.zoo' has no attribute {name!r}")
    value = getattr(import_module(NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, imported or not."""
    return sorted({*globals(), *NAMES})
