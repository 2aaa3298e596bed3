"""Complex numbers and Fourier transforms: scales are real, so both are linear maps."""

from collections.abc import Sequence
from typing import Any

from coset.symmetry.analysis.digits import Value
from coset.symmetry.analysis.primitives import apply, weld
from coset.symmetry.analysis.rules.arithmetic import added, multiplied
from coset.symmetry.analysis.rules.maps import mapped
from coset.symmetry.analysis.rules.reductions import reduced
from coset.symmetry.analysis.rules.table import Shape, rule
from coset.symmetry.analysis.rules.windows import windowed
from coset.symmetry.analysis.signatures import Names, Signature
from coset.symmetry.analysis.values import Algebra

PARTS = "real and imaginary parts"


@rule("view_as_complex")
def _view_as_complex(algebra: Algebra, shape: Shape, self: Value) -> Value:
    last = len(shape)
    return reduced(algebra, weld(algebra, self, last, PARTS), [last])


@rule("view_as_real")
def _view_as_real(algebra: Algebra, shape: Shape, self: Value) -> Value:
    names: Names = tuple((f"a{i}",) for i in range(len(shape) - 1))
    sizes = {f"a{i}": size for i, size in enumerate(shape[:-1])} | {"c": 2}
    signature = Signature((names,), (*names, ("c",)), sizes)
    return apply(algebra, [self], signature, "multiply", fresh=PARTS)


@rule("complex")
def _complex(algebra: Algebra, shape: Shape, real: Value, imag: Value) -> Value:
    return added(algebra, shape, real, imag)


@rule("polar")
def _polar(algebra: Algebra, shape: Shape, abs: Value, angle: Value) -> Value:
    return multiplied(algebra, shape, abs, mapped(algebra, angle, "generic"))


@rule("_conj", "_neg_view")
def _conjugate(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return mapped(algebra, self, "linear")


@rule("angle")
def _angle(algebra: Algebra, shape: Shape, self: Value) -> Value:
    return mapped(algebra, self, "step")


@rule("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft",
      "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2",
      "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn")  # fmt: skip
def _fourier(
    algebra: Algebra,
    shape: Shape,
    self: Value,
    dim: int | Sequence[int] | None = None,
    s: Sequence[int] | None = None,
    **_: Any,
) -> Value:
    """Along some axes; if none are named, the last ones that sizes are given for, or all."""
    if dim is None:
        dim = range(len(shape) - (len(shape) if s is None else len(s)), len(shape))
    axes = [dim] if isinstance(dim, int) else list(dim)
    return windowed(algebra, self, shape, axes, "a Fourier transform")
