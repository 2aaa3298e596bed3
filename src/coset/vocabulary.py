"""The words every other file uses, and the letters of the shape annotations.

``p`` parameters · ``n`` data · ``c`` outputs · ``m`` members · ``h`` units of a hidden axis ·
``r`` rank.  Axes come in the order members, data, outputs: ``"m n c"``.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

Weights: TypeAlias = dict[str, Tensor]
"""Parameters and saved floating buffers by name.  A *stack* is the same dictionary with a leading
member axis on every tensor."""

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""What a network is called with, one tensor or several, data axis first."""

Batch: TypeAlias = tuple[Inputs, Tensor]
"""Inputs and targets, data axis first."""

Progress: TypeAlias = Callable[[float, str], None]
"""Called with the fraction done and a short line: how long work tells that it goes on."""
