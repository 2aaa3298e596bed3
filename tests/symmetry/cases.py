"""Every test network with its symmetries, derived by hand in the docstring of its factory."""

from tests.symmetry.architectures import (
    attention,
    backbones,
    convnets,
    families,
    perceptrons,
    pretrained,
)
from tests.symmetry.architectures.registry import Case

CASES: tuple[Case, ...] = (
    *perceptrons.CASES,
    *convnets.CASES,
    *backbones.CASES,
    *attention.CASES,
    *families.CASES,
    *pretrained.CASES,
)
