"""Every operation under its own name, between a layer to 6 units and a layer from them.

A row says where the units are, what the operation does to them, and which scales it lets through:
all that is not zero, positive ones, signs, or none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.symmetry.analysis.written_graphs import Writer
from tests.symmetry.discovered import seeded

from coset.symmetry.check import difference
from coset.symmetry.discover import group_of
from coset.symmetry.graph import Ref
from coset.symmetry.points import general_position, random_inputs

Scales = tuple[tuple[int, str], ...]
ANY: Scales = ((6, "nonzero"),)
POSITIVE: Scales = ((6, "positive"),)
SIGN: Scales = ((6, "sign"),)
SIZE: Scales = (*POSITIVE, *SIGN)
Operation = Callable[[Writer, Ref], Ref]

INPUTS = {
    "vector": (3,),
    "rows": (4, 3),
    "tokens": (2, 5, 3),
    "signal": (2, 3, 8),
    "image": (2, 3, 6, 6),
    "volume": (2, 3, 4, 4, 4),
}


@dataclass(frozen=True)
class Row:
    """An operation between two layers.

    Attributes:
        kind: What the units are units of, a key of ``INPUTS``.
        operation: Writes it.
        scales: Sorted (size, domain) of the scaling factors of more than one scale.
        permutations: Sorted (size, depth).
        units: Where they are afterwards; ``None`` if they are summed already.
    """

    kind: str
    operation: Operation
    scales: Scales = ()
    permutations: tuple[tuple[int, int], ...] = ((6, 0),)
    units: int | None = -1


def written(row: Row) -> Writer:
    """The network of a row, whose last node is its output."""
    w = Writer()
    shape = INPUTS[row.kind]
    inside = len(shape) - 2 if row.kind in ("signal", "image", "volume") else 0
    x = w.input(*shape)
    weight, bias = w.parameter("into.weight", 6, 3, *[1] * inside), w.parameter("into.bias", 6)
    one, zero = [1] * inside, [0] * inside
    if inside:
        hidden = w.convolution(x, weight, bias, one, zero, one, False, zero, 1)
    else:
        hidden = w.linear(x, weight, bias)
    found = row.operation(w, hidden)
    if not w.values[found.node].is_floating_point():
        found = w._to_copy(found, dtype=torch.float32)
    if row.units is not None:
        found = w.movedim(found, row.units, -1)
        last = w.parameter("out.weight", 2, w.shape(found)[-1]), w.parameter("out.bias", 2)
        w.linear(found, *last)
    return w


def plain(name: str, *arguments: Any, item: int | None = None, **keywords: Any) -> Operation:
    """An operation on the units with these other arguments."""

    def operation(w: Writer, h: Ref) -> Ref:
        found: Ref = getattr(w, name)(h, *arguments, **keywords)
        return found if item is None else w.item(found, item)

    return operation


def beside(name: str, *shape: int, turned: bool = False, item: int | None = None) -> Operation:
    """An operation on the units and a parameter."""

    def operation(w: Writer, h: Ref) -> Ref:
        other = w.parameter("other", *shape)
        found: Ref = getattr(w, name)(*((other, h) if turned else (h, other)))
        return found if item is None else w.item(found, item)

    return operation


def real(w: Writer, name: str, h: Ref, axes: Any) -> Ref:
    """The real part of a Fourier transform."""
    found: Ref = getattr(w, name)(h, None, axes)
    if not w.values[found.node].is_complex():
        return found
    if w.values[found.node].is_conj():
        found = w._conj(found)
    return w.select(w.view_as_real(found), -1, 0)


def of_signs(name: str, *arguments: Any) -> Operation:
    """An operation on whether units are above zero."""
    return lambda w, h: getattr(w, name)(w.gt(h, 0.0), *arguments)


def with_mask(name: str, *arguments: Any) -> Operation:
    """An operation on whether units are above zero, and on a mask over the batch."""

    def operation(w: Writer, h: Ref) -> Ref:
        mask = w.constant(torch.tensor([[True], [False], [True], [False]]))
        found: Ref = getattr(w, name)(w.gt(h, 0.0), mask, *arguments)
        return found

    return operation


def batch_norm(name: str, *arguments: Any, item: int | None = None) -> Operation:
    """A batch norm with its four tensors."""

    def operation(w: Writer, h: Ref) -> Ref:
        tensors = [w.parameter(f"norm.{n}", 6) for n in ("weight", "bias", "running_mean")]
        found: Ref = getattr(w, name)(h, *tensors, w.parameter("norm.running_var", 6), *arguments)
        return found if item is None else w.item(found, item)

    return operation


def affine(name: str, *arguments: Any, item: int | None = None, bias: bool = True) -> Operation:
    """A norm with its weight, and bias."""

    def operation(w: Writer, h: Ref) -> Ref:
        tensors = [w.parameter(f"norm.{n}", 6) for n in ("weight", "bias")][: 1 + bias]
        before, after = arguments[0], arguments[1:]
        found: Ref = getattr(w, name)(h, before, *tensors, *after)
        return found if item is None else w.item(found, item)

    return operation


NORMED: Scales = ((6, "nonzero"), (6, "positive"), (6, "sign"))
RMS: Scales = ((6, "nonzero"), (6, "sign"))
BOTH: Scales = ((5, "nonzero"), (6, "nonzero"))
TWO = ((5, 0), (6, 0))

# fmt: off
ROWS: dict[str, Row] = {
    # views and copies
    "_reshape_alias": Row("rows", plain("_reshape_alias", [2, 2, 6], [12, 6, 1]), ANY),
    "_to_copy": Row("rows", plain("_to_copy"), ANY),
    "_unsafe_view": Row("rows", plain("_unsafe_view", [2, 2, 6]), ANY),
    "broadcast_to": Row("rows", plain("broadcast_to", [3, 4, 6]), ANY),
    "copy": Row("rows", lambda w, h: w.copy(w.constant(torch.zeros(4, 6)), h), ANY),
    "expand_as": Row("rows", lambda w, h: w.expand_as(h, w.constant(torch.ones(3, 4, 6))), ANY),
    "expand_copy": Row("rows", plain("expand_copy", [3, 4, 6]), ANY),
    "flatten": Row("tokens", plain("flatten", 0, 1), ANY),
    "movedim": Row("rows", plain("movedim", 0, 1), ANY, units=0),
    "numpy_T": Row("rows", plain("numpy_T"), ANY, units=0),
    "permute_copy": Row("rows", plain("permute_copy", [1, 0]), ANY, units=0),
    "reshape": Row("rows", plain("reshape", [2, 2, 6]), ANY),
    "squeeze_copy": Row("rows", plain("squeeze_copy"), ANY),
    "swapaxes": Row("rows", plain("swapaxes", 0, 1), ANY, units=0),
    "t_copy": Row("rows", plain("t_copy"), ANY, units=0),
    "tile": Row("rows", plain("tile", [2, 1]), ANY),
    "to": Row("rows", plain("to", torch.float32), ANY),
    "transpose_copy": Row("rows", plain("transpose_copy", 0, 1), ANY, units=0),
    "type_as": Row("rows", lambda w, h: w.type_as(h, h), ANY),
    "unflatten": Row("rows", plain("unflatten", 0, [2, 2]), ANY),
    "unsqueeze_copy": Row("rows", plain("unsqueeze_copy", 0), ANY),
    "view_copy": Row("rows", plain("view_copy", [2, 2, 6]), ANY),
    # cuts, joins and orders
    "chunk": Row("rows", plain("chunk", 2, 0, item=0), ANY),
    "concat": Row("rows", lambda w, h: w.concat([h, h], 0), ANY),
    "concatenate": Row("rows", lambda w, h: w.concatenate([h, h], 0), ANY),
    "diff": Row("tokens", plain("diff", 1, 1), ANY),
    "narrow": Row("rows", plain("narrow", 0, 1, 2), ANY),
    "narrow_copy": Row("rows", plain("narrow_copy", 0, 1, 2), ANY),
    "native_channel_shuffle": Row("image", plain("native_channel_shuffle", 3), ANY, units=1),
    "rot90": Row("tokens", plain("rot90", 1, [0, 1]), ANY),
    "select": Row("rows", plain("select", 0, 1), ANY),
    "select_copy": Row("rows", plain("select_copy", 0, 1), ANY),
    "select_scatter": Row(
        "rows", lambda w, h: w.select_scatter(h, w.parameter("other", 6), 0, 1), ANY),
    "slice_copy": Row("rows", plain("slice_copy", 0, 1, 3), ANY),
    "split": Row("rows", plain("split", 2, 0, item=1), ANY),
    "split_copy": Row("rows", plain("split_copy", 2, 0, item=1), ANY),
    "split_with_sizes_copy": Row("rows", plain("split_with_sizes_copy", [1, 3], 0, item=1), ANY),
    "tensor_split": Row("rows", plain("tensor_split", 2, 0, item=1), ANY),
    "tril": Row("rows", plain("tril"), permutations=()),
    "triu": Row("rows", plain("triu"), permutations=()),
    "unbind_copy": Row("rows", plain("unbind_copy", 0, item=2), ANY),
    "unsafe_chunk": Row("rows", plain("unsafe_chunk", 2, 0, item=0), ANY),
    # arithmetic
    "atan2": Row("rows", beside("atan2", 6)),
    "bitwise_and": Row("rows", with_mask("bitwise_and"), POSITIVE),
    "bitwise_or": Row("rows", with_mask("bitwise_or"), POSITIVE),
    "bitwise_xor": Row("rows", with_mask("bitwise_xor"), POSITIVE),
    "clip": Row("rows", plain("clip", 0.0), POSITIVE),
    "divide": Row("rows", plain("divide", 2.0), ANY),
    "eq": Row("rows", lambda w, h: w.eq(w.relu(h), 0.0), POSITIVE),
    "fmax": Row("rows", beside("fmax", 6), POSITIVE),
    "fmin": Row("rows", beside("fmin", 6), POSITIVE),
    "fmod": Row("rows", beside("fmod", 6)),
    "hypot": Row("rows", beside("hypot", 6), (*POSITIVE, *SIGN, *SIGN)),
    "le": Row("rows", beside("le", 6), POSITIVE),
    "logaddexp": Row("rows", beside("logaddexp", 6)),
    "logical_and": Row("rows", with_mask("logical_and"), POSITIVE),
    "logical_or": Row("rows", with_mask("logical_or"), POSITIVE),
    "logical_xor": Row("rows", with_mask("logical_xor"), POSITIVE),
    "lt": Row("rows", beside("lt", 6), POSITIVE),
    "masked_fill": Row(
        "rows", lambda w, h: w.masked_fill(h, w.gt(h, 0.0), 0.0), POSITIVE),
    "maximum": Row("rows", beside("maximum", 6), POSITIVE),
    "minimum": Row("rows", beside("minimum", 6), POSITIVE),
    "multiply": Row("rows", plain("multiply", 2.0), ANY),
    "ne": Row("rows", lambda w, h: w.ne(w.relu(h), 0.0), POSITIVE),
    "rsub": Row("rows", lambda w, h: w.rsub(h, w.parameter("other", 6), alpha=0.5), ANY),
    "sub": Row("rows", lambda w, h: w.sub(h, w.parameter("other", 6), alpha=0.5), ANY),
    "subtract": Row("rows", lambda w, h: w.subtract(h, w.parameter("other", 6)), ANY),
    "true_divide": Row("rows", plain("true_divide", 2.0), ANY),
    "xlogy": Row("rows", plain("xlogy", 3.0)),
    # maps
    "_prelu_kernel": Row("rows", beside("_prelu_kernel", 1, 6), POSITIVE),
    "alpha_dropout": Row("rows", plain("alpha_dropout", 0.5, False), ANY),
    "dropout": Row("rows", plain("dropout", 0.5, False), ANY),
    "feature_alpha_dropout": Row("rows", plain("feature_alpha_dropout", 0.5, False), ANY),
    "feature_dropout": Row("rows", plain("feature_dropout", 0.5, False), ANY),
    # contractions
    "addmv": Row(
        "rows", lambda w, h: w.addmv(w.parameter("one", 4), h, w.parameter("other", 6)), ANY,
        units=None),
    "baddbmm": Row(
        "tokens",
        lambda w, h: w.baddbmm(w.parameter("one", 1, 1, 5), h, w.parameter("other", 2, 6, 5)),
        BOTH, TWO),
    "bmm": Row("tokens", beside("bmm", 2, 6, 5), BOTH, TWO),
    "dot": Row("vector", beside("dot", 6), ANY, units=None),
    "ger": Row("vector", beside("ger", 5, turned=True), ANY),
    "mm": Row("rows", beside("mm", 6, 5), BOTH, TWO),
    "mv": Row("rows", beside("mv", 6), ANY, units=None),
    "outer": Row("vector", beside("outer", 5, turned=True), ANY),
    "vdot": Row("vector", beside("vdot", 6), ANY, units=None),
    # convolutions
    "conv1d": Row("signal", beside("conv1d", 5, 6, 3), BOTH, TWO, units=1),
    "conv3d": Row("volume", beside("conv3d", 5, 6, 3, 3, 3), BOTH, TWO, units=1),
    "conv_transpose1d": Row("signal", beside("conv_transpose1d", 6, 5, 3), BOTH, TWO, units=1),
    "conv_transpose3d": Row(
        "volume", beside("conv_transpose3d", 6, 5, 3, 3, 3), BOTH, TWO, units=1),
    "convolution": Row(
        "image",
        lambda w, h: w.convolution(
            h, w.parameter("other", 5, 6, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        BOTH, TWO, units=1),
    # reductions over tokens
    "all": Row("tokens", of_signs("all", 1), POSITIVE),
    "amin": Row("tokens", plain("amin", [1]), POSITIVE),
    "any": Row("tokens", of_signs("any", 1), POSITIVE),
    "argmax": Row("tokens", plain("argmax", 1), POSITIVE),
    "argmin": Row("tokens", plain("argmin", 1), POSITIVE),
    "count_nonzero": Row("tokens", of_signs("count_nonzero", [1]), POSITIVE),
    "cummax": Row("tokens", plain("cummax", 1, item=0), POSITIVE),
    "cummin": Row("tokens", plain("cummin", 1, item=0), POSITIVE),
    "cumprod": Row("tokens", plain("cumprod", 1)),
    "kthvalue": Row("tokens", plain("kthvalue", 2, 1, item=0), POSITIVE),
    "logcumsumexp": Row("tokens", plain("logcumsumexp", 1)),
    "median": Row("tokens", plain("median", 1, item=0), POSITIVE),
    "min": Row("tokens", plain("min", 1, item=0), POSITIVE),
    "mode": Row("tokens", plain("mode", 1, item=0), POSITIVE),
    "norm": Row("tokens", plain("norm", 2, [1]), SIZE),
    "std_mean": Row("tokens", plain("std_mean", [1], item=0), SIZE),
    "var_mean": Row("tokens", plain("var_mean", [1], item=0), ANY),
    # softmax over units
    "_log_softmax": Row("rows", plain("_log_softmax", 1, False)),
    "_safe_softmax": Row("rows", plain("_safe_softmax", 1)),
    "_softmax": Row("rows", plain("_softmax", 1, False)),
    # windows
    "_adaptive_avg_pool2d": Row("image", plain("_adaptive_avg_pool2d", [2, 2]), ANY, units=1),
    "_adaptive_avg_pool3d": Row("volume", plain("_adaptive_avg_pool3d", [2, 2, 2]), ANY, units=1),
    "_upsample_bicubic2d_aa": Row(
        "image", plain("_upsample_bicubic2d_aa", [9, 9], False), ANY, units=1),
    "_upsample_bilinear2d_aa": Row(
        "image", plain("_upsample_bilinear2d_aa", [9, 9], False), ANY, units=1),
    "_upsample_nearest_exact1d": Row(
        "signal", plain("_upsample_nearest_exact1d", [12]), ANY, units=1),
    "_upsample_nearest_exact2d": Row(
        "image", plain("_upsample_nearest_exact2d", [9, 9]), ANY, units=1),
    "_upsample_nearest_exact3d": Row(
        "volume", plain("_upsample_nearest_exact3d", [6, 6, 6]), ANY, units=1),
    "adaptive_avg_pool1d": Row("signal", plain("adaptive_avg_pool1d", [2]), ANY, units=1),
    "adaptive_avg_pool3d": Row("volume", plain("adaptive_avg_pool3d", [2, 2, 2]), ANY, units=1),
    "adaptive_max_pool1d": Row(
        "signal", plain("adaptive_max_pool1d", [2], item=0), POSITIVE, units=1),
    "adaptive_max_pool3d": Row(
        "volume", plain("adaptive_max_pool3d", [2, 2, 2], item=0), POSITIVE, units=1),
    "avg_pool1d": Row("signal", plain("avg_pool1d", [2]), ANY, units=1),
    "avg_pool3d": Row("volume", plain("avg_pool3d", [2, 2, 2]), ANY, units=1),
    "constant_pad_nd": Row("image", plain("constant_pad_nd", [1, 1, 0, 2]), ANY, units=1),
    "grid_sampler_2d": Row(
        "image",
        lambda w, h: w.grid_sampler_2d(
            h, w.constant(torch.linspace(-0.9, 0.9, 32).reshape(1, 4, 4, 2).repeat(2, 1, 1, 1)),
            0, 0, False),
        ANY, units=1),
    "max_pool1d": Row("signal", plain("max_pool1d", [2]), POSITIVE, units=1),
    "max_pool1d_with_indices": Row(
        "signal", plain("max_pool1d_with_indices", [2], item=0), POSITIVE, units=1),
    "max_pool2d_with_indices": Row(
        "image", plain("max_pool2d_with_indices", [2, 2], item=0), POSITIVE, units=1),
    "max_pool3d": Row("volume", plain("max_pool3d", [2, 2, 2]), POSITIVE, units=1),
    "max_pool3d_with_indices": Row(
        "volume", plain("max_pool3d_with_indices", [2, 2, 2], item=0), POSITIVE, units=1),
    "reflection_pad1d": Row("signal", plain("reflection_pad1d", [1, 2]), ANY, units=1),
    "reflection_pad2d": Row("image", plain("reflection_pad2d", [1, 2, 0, 1]), ANY, units=1),
    "reflection_pad3d": Row("volume", plain("reflection_pad3d", [1] * 6), ANY, units=1),
    "replication_pad1d": Row("signal", plain("replication_pad1d", [1, 2]), ANY, units=1),
    "replication_pad2d": Row("image", plain("replication_pad2d", [1, 2, 0, 1]), ANY, units=1),
    "replication_pad3d": Row("volume", plain("replication_pad3d", [1] * 6), ANY, units=1),
    "upsample_bicubic2d": Row("image", plain("upsample_bicubic2d", [9, 9], False), ANY, units=1),
    "upsample_bilinear2d": Row("image", plain("upsample_bilinear2d", [9, 9], False), ANY, units=1),
    "upsample_linear1d": Row("signal", plain("upsample_linear1d", [12], False), ANY, units=1),
    "upsample_nearest1d": Row("signal", plain("upsample_nearest1d", [12]), ANY, units=1),
    "upsample_nearest3d": Row("volume", plain("upsample_nearest3d", [6, 6, 6]), ANY, units=1),
    "upsample_trilinear3d": Row(
        "volume", plain("upsample_trilinear3d", [6, 6, 6], False), ANY, units=1),
    # norms
    "_fused_rms_norm": Row("rows", affine("_fused_rms_norm", [6], 1e-5, item=0, bias=False), RMS),
    "_native_batch_norm_legit_functional": Row(
        "image", batch_norm("_native_batch_norm_legit_functional", False, 0.1, 1e-5, item=0),
        NORMED, units=1),
    "_native_batch_norm_legit_no_training": Row(
        "image", batch_norm("_native_batch_norm_legit_no_training", 0.1, 1e-5, item=0),
        NORMED, units=1),
    "batch_norm": Row("image", batch_norm("batch_norm", False, 0.1, 1e-5, False), NORMED, units=1),
    "group_norm": Row(
        "image",
        lambda w, h: w.group_norm(
            h, 3, w.parameter("norm.weight", 6), w.parameter("norm.bias", 6), 1e-5),
        ((2, "nonzero"), (3, "sign")), ((2, 1), (3, 0)), units=1),
    "native_batch_norm": Row(
        "image", batch_norm("native_batch_norm", False, 0.1, 1e-5, item=0), NORMED, units=1),
    "native_layer_norm": Row("rows", affine("native_layer_norm", [6], 1e-5, item=0), ANY),
    "rms_norm": Row("rows", affine("rms_norm", [6], 1e-5, bias=False), RMS),
    # spectra
    **{
        f"fft_{name}": Row("tokens", lambda w, h, name=name: real(w, f"fft_{name}", h, 1), ANY)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        f"fft_{name}": Row(
            "image", lambda w, h, name=name: real(w, f"fft_{name}", h, [2, 3]), ANY, units=1)
        for name in ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
    },
    # lookups
    "_embedding_bag": Row(
        "rows",
        lambda w, h: w.item(
            w._embedding_bag(
                h, w.constant(torch.tensor([0, 1, 2, 3])), w.constant(torch.tensor([0, 2]))), 0),
        ANY),
    "_embedding_bag_forward_only": Row(
        "rows",
        lambda w, h: w.item(
            w._embedding_bag_forward_only(
                h, w.constant(torch.tensor([0, 1, 2, 3])), w.constant(torch.tensor([0, 2]))), 0),
        ANY),
}
# fmt: on


@pytest.mark.parametrize("name", ROWS)
def test_an_operation_lets_through_what_it_should(name: str) -> None:
    row = ROWS[name]
    writer = written(row)
    graph, weights, inputs = writer.finished(Ref(len(writer.nodes) - 1))
    assert name in {node.op for node in graph.nodes}
    group = group_of(graph, weights, inputs)
    assert not [pin for pin in group.pinned if "failed" in pin.reason]
    assert sorted((f.size, len(f.within)) for f in group.permutations) == sorted(row.permutations)
    found = sorted((f.size, f.domain) for f in group.scalings if f.size > 1)
    assert found == sorted(row.scales)
    positive = [name for name in weights if name.endswith("running_var")]
    point = general_position(weights, positive, generator=seeded(7))
    probe = random_inputs(inputs, generator=seeded(8))
    moved = group.act(group.sample(generator=seeded(9)), point)
    before, after = (graph.run(each, probe, dtype=torch.float64) for each in (point, moved))
    assert difference(before, after) < 1e-9
