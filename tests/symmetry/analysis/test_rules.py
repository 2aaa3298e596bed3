"""One small network for each family of operations, with the factors derived by hand.

Unless a case says otherwise the network is a layer from 3 to 6 units, an operation, and a layer to
2 outputs: so a permutation of 6 units, and the scales that the operation lets through.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.symmetry.analysis.test_operations import ROWS as OPERATIONS
from torch import Tensor, nn

from coset.errors import CosetError
from coset.symmetry.analysis.rules import RULES
from coset.symmetry.analysis.rules.maps import KINDS
from coset.symmetry.check import difference, symmetry_error
from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.points import general_position, random_inputs
from coset.symmetry.runner import module_runner
from coset.symmetry.tracing import trace
from coset.weights.network import weights_of

aten = torch.ops.aten

Scales = tuple[tuple[int, str], ...]
LINEAR: Scales = ((6, "nonzero"),)
POSITIVE: Scales = ((6, "positive"),)
SIGN: Scales = ((6, "sign"),)

LOOKED_UP = torch.tensor([[0, 1], [4, 2], [3, 3], [1, 0]])
DISTANCE = (torch.arange(5)[:, None] - torch.arange(5)).abs()
GRID = torch.linspace(-0.9, 0.9, 32).reshape(1, 4, 4, 2)


class Net(nn.Module):
    """Modules and tensors under names, and a function of them."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


@dataclass(frozen=True)
class Rule:
    """A network with its factors.

    Attributes:
        build: Makes the network.
        shapes: Of its inputs.
        permutations: Sorted (size, depth).
        scalings: Sorted (size, domain) of the scaling factors of size above one.
        invariances: Sorted (tensor, groups).
    """

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...] = ((4, 3),)
    permutations: tuple[tuple[int, int], ...] = ((6, 0),)
    scalings: Scales = ()
    invariances: tuple[tuple[str, str], ...] = ()


def hidden(
    operation: Callable[[Tensor], Tensor],
    scales: Scales = (),
    *,
    shape: tuple[int, ...] = (4, 3),
    invariant: str | None = None,
) -> Rule:
    """A layer of 6 units, the operation, a layer to 2."""

    def build() -> nn.Module:
        return Net(
            lambda m, x: m.out(operation(m.into(x))), into=nn.Linear(3, 6), out=nn.Linear(6, 2)
        )

    invariances = (("into.weight", invariant),) if invariant else ()
    return Rule(build, (shape,), scalings=scales, invariances=invariances)


def tokens(operation: Callable[[Tensor], Tensor], scales: Scales = ()) -> Rule:
    """The same on sequences of five tokens."""
    return hidden(operation, scales, shape=(2, 5, 3))


def heads(h: Tensor) -> Tensor:
    """Sequences of six units as two heads of three."""
    return h.unflatten(-1, (2, 3)).transpose(1, 2)


def turned(h: Tensor) -> Tensor:
    """Pairs of units turned by the place of their token."""
    angles = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1, 0.01])).to(h.dtype)
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(h.unflatten(-1, (3, 2))) * turns).flatten(-2)


def looking_back(h: Tensor) -> Tensor:
    """Linear attention of tokens to those before them."""
    return torch.tril(h @ h.mT) @ h


def image(*layers: nn.Module, scales: Scales = (), out: nn.Module | None = None) -> Rule:
    """The same on images, convolutions as layers."""
    return Rule(
        lambda: nn.Sequential(nn.Conv2d(1, 6, 3), *layers, out or nn.Conv2d(6, 2, 1)),
        ((1, 1, 8, 8),),
        scalings=scales,
    )


CASES: dict[str, Rule] = {
    "one kind after the other": hidden(lambda h: torch.tanh(torch.relu(h)), ()),
    "comparison with zero": hidden(lambda h: torch.where(h > 0, h, 0.1 * h), POSITIVE),
    "comparison with one": hidden(lambda h: torch.where(h > 1, h, 0.1 * h)),
    "where between numbers": hidden(
        lambda h: torch.where(h > 0, 1.0, 0.5), POSITIVE, invariant="filter"
    ),
    "mask": hidden(lambda h: h * (h >= 0), POSITIVE),
    "filled mask": hidden(lambda h: h.masked_fill(h < 0, 0.0), POSITIVE),
    "odd power": hidden(lambda h: h.pow(3), LINEAR),
    "root of a square": hidden(lambda h: h.square().sqrt(), (*POSITIVE, *SIGN)),
    "power that is no fraction": hidden(lambda h: torch.relu(h).pow(0.333)),
    "quotient": hidden(lambda h: h / h.abs().add(1.0), SIGN),
    "reciprocal": hidden(lambda h: (h.square() + 1).reciprocal() + (h.square() + 1).rsqrt(), SIGN),
    "clamp at zero": hidden(lambda h: h.clamp(min=0.0), POSITIVE),
    "clamp around zero": hidden(lambda h: F.hardtanh(h).clamp_max(0.5), ()),
    "symmetric clamp": hidden(lambda h: h.clamp(-0.5, 0.5), SIGN),
    "threshold": hidden(lambda h: F.threshold(h, 0.0, 0.0), POSITIVE),
    "fused sums": hidden(
        lambda h: torch.addcmul(h, h, torch.ones(6)) + torch.lerp(h, 2 * h, 0.3), LINEAR
    ),
    "fused quotients": hidden(lambda h: torch.addcdiv(h, h, torch.ones(6)), LINEAR),
    "gates": hidden(lambda h: F.glu(torch.cat([h, h], 1)), ()),
    "signs": hidden(torch.sign, (*POSITIVE, *SIGN), invariant="filter"),
    "rounding has no gradient": hidden(torch.round, SIGN),
    "division without remainder has no derivative": hidden(lambda h: h // 1.0 + h % 1.0),
    "learned slopes": Rule(
        lambda: nn.Sequential(nn.Linear(3, 6), nn.PReLU(6), nn.Linear(6, 2)), scalings=POSITIVE
    ),
    "maximum of pairs": Rule(
        lambda: Net(
            lambda m, x: m.out(m.into(x).unflatten(1, (6, 2)).max(-1)[0]),
            into=nn.Linear(3, 12),
            out=nn.Linear(6, 2),
        ),
        permutations=((2, 1), (6, 0)),
        scalings=POSITIVE,
    ),
    "order of units": replace(hidden(lambda h: h.sort(1)[0].cumsum(1).flip(1)), permutations=()),
    "order of tokens": tokens(lambda h: h.cumsum(1).flip(1).roll(1, 1), LINEAR),
    "best tokens": tokens(lambda h: h.topk(2, 1)[0].amax(1), POSITIVE),
    "places of maxima": Rule(
        lambda: Net(
            lambda m, x: m.out(m.table(m.into(x).max(1)[1])),
            into=nn.Linear(3, 5),
            table=nn.Embedding(5, 6),
            out=nn.Linear(6, 2),
        ),
        scalings=LINEAR,
        invariances=(("into.weight", "layer"),),
    ),
    "means and spreads": tokens(
        lambda h: h.mean(1) + h.std(1) + h.var(1).sqrt() + h.norm(dim=1), POSITIVE
    ),
    "sums of exponentials": tokens(lambda h: h.logsumexp(1) + h.prod(1)),
    "slices and joins": tokens(
        lambda h: torch.cat([h[:, 1:3], h[:, ::2], h[:, 0:0], h.narrow(1, 0, 1)], 1), LINEAR
    ),
    "splits": tokens(lambda h: torch.stack(torch.split(h, [0, 2, 3], 1)[2].unbind(1)), LINEAR),
    "views": tokens(
        lambda h: h.permute(1, 0, 2).transpose(0, 1).movedim(1, 0).squeeze().unsqueeze(1), LINEAR
    ),
    "repeats": tokens(lambda h: h.repeat(1, 2, 1).repeat_interleave(2, 1).expand(2, 20, 6), LINEAR),
    "written into": tokens(lambda h: h.slice_scatter(h[:, :1] * 2, 1, 0, 1), LINEAR),
    "gather along the batch": hidden(
        lambda h: torch.relu(h.gather(0, torch.tensor([[2], [0], [0], [3]]).expand(4, 6))),
        POSITIVE,
    ),
    # the order of the units is that in which they are looked up
    "gather along the units": replace(
        hidden(lambda h: h.gather(1, torch.arange(5, -1, -1).expand(4, 6))), permutations=()
    ),
    "sums along the batch": hidden(
        lambda h: torch.relu(
            h.new_zeros(2, 6)
            .scatter_add(0, torch.tensor([[0], [1], [1], [0]]).expand(4, 6), h)
            .index_add(0, torch.tensor([0, 0, 1, 1]), h)
        ),
        POSITIVE,
    ),
    "sliding windows": tokens(lambda h: torch.relu(h.unfold(1, 2, 1).sum(-1)), POSITIVE),
    # unfolded and folded again: each pixel as often as windows cover it
    "windows taken apart and put together": image(
        nn.Unfold(3, padding=1), nn.Fold((6, 6), 3, padding=1), nn.ReLU(), scales=POSITIVE
    ),
    # rows stay, columns are units; the largest entry of a bag lets positive scales through
    "bags of embeddings": Rule(
        lambda: Net(
            lambda m, x: m.out(F.embedding_bag(LOOKED_UP, m.table) + m.into(x)),
            table=torch.randn(5, 6),
            into=nn.Linear(3, 6),
            out=nn.Linear(6, 2),
        ),
        scalings=LINEAR,
    ),
    "largest of bags of embeddings": Rule(
        lambda: Net(
            lambda m, x: m.out(F.embedding_bag(LOOKED_UP, m.table, mode="max")) + x.sum(),
            table=torch.randn(5, 6),
            out=nn.Linear(6, 2),
        ),
        scalings=POSITIVE,
    ),
    "values between pixels": image(
        Net(lambda m, h: F.grid_sample(h, GRID.to(h), align_corners=False)),
        nn.ReLU(),
        scales=POSITIVE,
    ),
    "lookups": tokens(
        lambda h: h[:, torch.tensor([0, 2])] + h.index_select(1, torch.tensor([1, 1])), LINEAR
    ),
    # one token of each sequence, as classifiers on the last token take it
    "lookups on two axes": tokens(
        lambda h: torch.relu(h[torch.tensor([0, 1]), torch.tensor([4, 2])]), POSITIVE
    ),
    # axes that are apart go in front: (2, 2, 5, 1) with a table of two by two
    "lookups on axes that are apart": tokens(
        lambda h: h.unsqueeze(3)[torch.tensor([[0], [1]]), :, :, torch.tensor([0, 0])].sum(1),
        LINEAR,
    ),
    # two heads of three units, one bias for each head and distance
    "biases by distance": Rule(
        lambda: Net(
            lambda m, x: m.out(
                (m.bias[:, DISTANCE].softmax(-1) @ heads(m.into(x))).transpose(1, 2).flatten(2)
            ),
            bias=torch.randn(2, 5),
            into=nn.Linear(3, 6),
            out=nn.Linear(6, 2),
        ),
        ((2, 5, 3),),
        permutations=((2, 0), (3, 1)),
        scalings=((3, "nonzero"),),
    ),
    # linear attention: the triangle is one of tokens, heads (two of three units) pass; a head may
    # be scaled, for its output grows with the third power, and its units have signs of their own
    "triangles": Rule(
        lambda: Net(
            lambda m, x: m.out(looking_back(heads(m.into(x))).transpose(1, 2).flatten(2)),
            into=nn.Linear(3, 6),
            out=nn.Linear(6, 2),
        ),
        ((2, 5, 3),),
        permutations=((2, 0), (3, 1)),
        scalings=((2, "nonzero"), (3, "sign")),
    ),
    "softmax over tokens": tokens(lambda h: h.softmax(1) + h.log_softmax(1)),
    "attention with a mask": tokens(
        lambda h: F.scaled_dot_product_attention(h, h, h, is_causal=True), SIGN
    ),
    "normalised": hidden(F.normalize, SIGN, invariant="layer"),
    "clamped below zero before a norm": hidden(lambda h: F.layer_norm(h.clamp(min=-0.5), (6,))),
    "angles": Rule(
        lambda: Net(
            lambda m, x: F.cosine_similarity(m.one(x), m.two(x)),
            one=nn.Linear(3, 6),
            two=nn.Linear(3, 6),
        ),
        scalings=SIGN,
        invariances=(("one.weight", "layer"), ("two.weight", "layer")),
    ),
    "bilinear": Rule(
        lambda: Net(
            lambda m, x, y: m.out(m.pair(m.one(x), m.two(y))),
            one=nn.Linear(3, 4),
            two=nn.Linear(3, 5),
            pair=nn.Bilinear(4, 5, 6),
            out=nn.Linear(6, 2),
        ),
        ((2, 3), (2, 3)),
        ((4, 0), (5, 0), (6, 0)),
        ((4, "nonzero"), (5, "nonzero"), (6, "nonzero")),
    ),
    "products of matrices": Rule(
        lambda: Net(
            lambda m, x: torch.addmm(m.bias, torch.relu(x @ m.one), m.two.t()) @ m.three,
            one=torch.randn(3, 6),
            two=torch.randn(5, 6),
            three=torch.randn(5, 2),
            bias=torch.randn(5),
        ),
        permutations=((5, 0), (6, 0)),
        scalings=((5, "nonzero"), (6, "positive")),
    ),
    "summed batch of products": Rule(
        lambda: Net(
            lambda m, x: torch.addbmm(m.bias, x, m.one) @ m.two,
            one=torch.randn(4, 3, 6),
            two=torch.randn(6, 2),
            bias=torch.randn(2, 6),
        ),
        ((4, 2, 3),),
        scalings=LINEAR,
    ),
    "diagonal": Rule(
        lambda: Net(
            lambda m, x: m.out(m.into(x) * torch.einsum("ii->i", m.square)),
            into=nn.Linear(3, 6),
            square=torch.randn(6, 6),
            out=nn.Linear(6, 2),
        ),
        permutations=(),
        scalings=LINEAR,
    ),
    # complex units with a scale each; their two parts stay together
    "complex units": Rule(
        lambda: Net(
            lambda m, x: torch.view_as_real(
                torch.view_as_complex(m.into(x).unflatten(-1, (6, 2))).conj()
                @ torch.view_as_complex(m.last)
            ),
            into=nn.Linear(3, 12),
            last=torch.randn(6, 2, 2),
        ),
        scalings=LINEAR,
    ),
    "sizes and angles": hidden(
        lambda h: torch.polar(torch.complex(h, 2 * h).abs(), torch.complex(h, h).angle()).real,
        POSITIVE,
    ),
    # a Fourier neural operator: its channels pass from the layer beside to the coefficients
    "learned filters of frequencies": Rule(
        lambda: Net(
            lambda m, x: m.out(
                torch.relu(
                    torch.fft.irfft2(
                        torch.fft.rfft2(h := m.into(x)) * torch.view_as_complex(m.filter), s=(4, 6)
                    )
                    + h
                )
            ),
            into=nn.Conv2d(1, 6, 1),
            filter=torch.randn(6, 4, 4, 2),
            out=nn.Conv2d(6, 2, 1),
        ),
        ((2, 1, 4, 6),),
        scalings=POSITIVE,
    ),
    "frequencies of tokens": tokens(
        lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=1), n=5, dim=1), LINEAR
    ),
    "parts of frequencies": tokens(lambda h: torch.fft.ihfft(h, dim=1).imag, LINEAR),
    # rotary positions by complex numbers: their pairs stay, and are scaled against each other
    "rotations": Rule(
        lambda: Net(
            lambda m, x: m.out(
                F.scaled_dot_product_attention(turned(m.q(x)), turned(m.k(x)), m.v(x))
            ),
            q=nn.Linear(3, 6),
            k=nn.Linear(3, 6),
            v=nn.Linear(3, 5),
            out=nn.Linear(5, 2),
        ),
        ((2, 5, 3),),
        permutations=((5, 0),),
        scalings=((3, "nonzero"), (5, "nonzero")),
    ),
    "a transform of the units": replace(hidden(lambda h: torch.fft.fft(h).real), permutations=()),
    # centres of radial basis functions: six of them in a space of three units with signs
    "distances from centres": Rule(
        lambda: Net(
            lambda m, x: m.out(torch.exp(-torch.cdist(m.into(x), m.centres))),
            into=nn.Linear(3, 3),
            centres=torch.randn(6, 3),
            out=nn.Linear(6, 2),
        ),
        permutations=((3, 0), (6, 0)),
        scalings=((3, "sign"),),
    ),
    "an operation without a rule": replace(hidden(torch.special.bessel_j0), permutations=()),
    "empty tensors": Rule(
        lambda: Net(
            lambda m, x: m.out(torch.relu(torch.cat([m.into(x), m.none.expand(4, 0)], 1))),
            into=nn.Linear(3, 6),
            none=torch.zeros(1, 0),
            out=nn.Linear(6, 2),
        ),
        scalings=POSITIVE,
    ),
    "a cell": Rule(
        lambda: Net(lambda m, x: m.out(m.cell(x)[0]), cell=nn.LSTMCell(3, 6), out=nn.Linear(6, 2)),
        scalings=SIGN,
    ),
    "norm of the batch": Rule(
        lambda: nn.Sequential(
            nn.Linear(3, 6),
            nn.BatchNorm1d(6, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(6, 2),
        ),
        scalings=((6, "positive"), (6, "sign")),
        invariances=(("0.weight", "filter"),),
    ),
    "pools": image(nn.MaxPool2d(2), nn.AvgPool2d(2, 1), nn.AdaptiveMaxPool2d(1), scales=POSITIVE),
    "windows": image(
        nn.ReflectionPad2d(1), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(2), scales=LINEAR
    ),
    "padded": image(nn.ZeroPad2d(1), nn.PixelUnshuffle(2), nn.PixelShuffle(2), scales=LINEAR),
    "shuffled": image(nn.ChannelShuffle(3), scales=LINEAR),
    "transposed": image(nn.ReLU(), scales=POSITIVE, out=nn.ConvTranspose2d(6, 2, 3, stride=2)),
    "norms of instances": Rule(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 2, 1)
        ),
        ((2, 1, 5, 5),),
        scalings=((6, "positive"), (6, "sign")),
        invariances=(("0.weight", "filter"),),
    ),
    "weight norm": Rule(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2)
        ),
        scalings=((6, "positive"), (6, "positive"), (6, "sign")),
        invariances=(("0.parametrizations.weight.original1", "filter"),),
    ),
}


@cache
def studied(name: str) -> tuple[nn.Module, tuple[Tensor, ...], SymmetryGroup, set[str]]:
    """The network of a case, its inputs, its group and the operations in it."""
    torch.manual_seed(0)
    module = CASES[name].build().eval()
    example = tuple(torch.randn(shape) for shape in CASES[name].shapes)
    group = discover(module, example)
    return module, example, group, {node.op for node in trace(module, example).nodes}


@pytest.mark.parametrize("name", CASES)
def test_factors_are_those_derived_by_hand(name: str) -> None:
    rule = CASES[name]
    module, example, group, _ = studied(name)
    assert not [pin for pin in group.pinned if "failed" in pin.reason]
    assert sorted((f.size, len(f.within)) for f in group.permutations) == sorted(rule.permutations)
    found = sorted((f.size, f.domain) for f in group.scalings if f.size > 1)
    assert found == sorted(rule.scalings)
    assert sorted((i.tensor, i.groups) for i in group.invariances) == sorted(rule.invariances)
    assert symmetry_error(module, group, example, elements=2) < 1e-9
    assert error_of_the_module(module, group, example) < 1e-9


def error_of_the_module(
    module: nn.Module, group: SymmetryGroup, example: tuple[Tensor, ...]
) -> float:
    """The error without the tracer, at other weights and inputs than those of the search."""
    generator = torch.Generator().manual_seed(7)
    run = module_runner(module)
    weights = general_position(weights_of(module), ("1.running_var",), generator=generator)
    inputs = random_inputs(example, generator=generator)
    moved = group.act(group.sample(generator=generator), weights)
    return difference(run(weights, inputs), run(moved, inputs))


PROMISES: dict[str, tuple[float, float]] = {
    "linear": (-2.0, -2.0),
    "positive": (2.0, 2.0),
    "odd": (-1.0, -1.0),
    "even": (-1.0, 1.0),
    "abs": (-2.0, 2.0),
    "sign": (-2.0, -1.0),
}


@pytest.mark.parametrize("kind", PROMISES)
def test_maps_keep_the_promise_of_their_kind(kind: str) -> None:
    """Arguments times the first number give results times the second."""
    inner, outer = PROMISES[kind]
    x = torch.linspace(-0.45, 0.45, 12, dtype=torch.float64)
    for name in KINDS[kind]:
        function = getattr(aten, name)
        assert torch.allclose(function(inner * x), outer * function(x), atol=1e-12), name


class Choice(nn.Module):
    """A network whose printed form does not tell what it computes."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, 6, bias=False), nn.Linear(6, 2, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.activation(self.into(x)))
        return outputs


def test_networks_that_look_alike_are_told_apart() -> None:
    """On zeros a rectifier and a hyperbolic tangent give the same; their scales differ."""
    example = torch.zeros(1, 3)
    domains = [discover(Choice(f), example).scalings[0].domain for f in (torch.relu, torch.tanh)]
    assert domains == ["positive", "sign"]


class OwnBatchNorm(nn.Module):
    """Batch norm with an epsilon that its printed form does not show."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.into, self.out = nn.Linear(3, 6), nn.Linear(6, 2)
        self.register_buffer("running_mean", torch.zeros(6))
        self.register_buffer("running_var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.get_buffer("running_mean"), self.get_buffer("running_var")
        hidden = F.batch_norm(self.into(x), *statistics, eps=self.epsilon)
        outputs: Tensor = self.out(hidden.relu())
        return outputs


def test_networks_that_differ_little_are_told_apart() -> None:
    """Another epsilon is another group, though outputs in single precision are nearly the same."""
    example = torch.randn(4, 3)
    for epsilon in (1e-5, 1e-3):
        module = OwnBatchNorm(epsilon)
        group = discover(module, example)
        assert {site.shift for factor in group.scalings for site in factor.sites} == {0, epsilon}
        run, weights = module_runner(module), weights_of(module)
        weights = {name: tensor.double() for name, tensor in weights.items()}
        moved = group.act(group.sample(generator=torch.Generator().manual_seed(0)), weights)
        assert difference(run(weights, [example]), run(moved, [example])) < 1e-12


def test_networks_of_other_numbers_are_told_apart() -> None:
    """Complex outputs are compared with real ones of the same shape."""
    example = torch.randn(4, 3)
    functions = (lambda h: torch.complex(h, h).abs(), lambda h: torch.complex(h, h))
    modules = [Net(lambda m, x, f=f: f(m.into(x)), into=nn.Linear(3, 2)) for f in functions]
    graphs = [trace(module, example) for module in modules]
    assert [graph.nodes[-1].op for graph in graphs] == ["abs", "complex"]


def test_a_transposed_view_is_another_tensor() -> None:
    weight = torch.randn(6, 6)
    module = Net(lambda m, x: torch.relu(x @ m.one) @ m.two, one=weight, two=weight.t())
    group = discover(module, torch.randn(4, 6))
    assert [factor.size for factor in group.permutations] == [6]
    assert error_of_the_module(module, group, (torch.randn(4, 6),)) < 1e-9


def test_inputs_may_have_to_be_positive() -> None:
    """Noise has no logarithm; the check must not take that for a failure."""
    module = Net(
        lambda m, x: m.out(torch.relu(m.into(x.log()))), into=nn.Linear(3, 6), out=nn.Linear(6, 2)
    )
    group = discover(module, torch.rand(4, 3) + 0.1)
    assert [factor.size for factor in group.permutations] == [6]


def test_random_numbers_in_evaluation_mode_are_held_fixed() -> None:
    """Units of the layer before the noise are free, those that the noise is drawn for are not."""
    module = Net(
        lambda m, x: m.out(F.dropout(m.mid(torch.relu(m.into(x))), 0.5)),
        into=nn.Linear(3, 6),
        mid=nn.Linear(6, 4),
        out=nn.Linear(4, 2),
    )
    group = discover(module, torch.randn(4, 3))
    assert [factor.size for factor in group.permutations] == [6]


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (nn.LazyLinear(2), torch.zeros(1, 3), "lazy"),
        (Net(lambda m, x: x, w=torch.zeros(2, dtype=torch.cfloat)), torch.zeros(2), "complex"),
        (nn.Identity(), (torch.zeros(1), (torch.zeros(1),)), "tuple"),
    ],
)
def test_what_cannot_be_traced_is_named(module: nn.Module, example: Any, words: str) -> None:
    with pytest.raises(CosetError, match=words):
        discover(module, example)


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (nn.Linear(3, 2), torch.zeros(1, 4), r"\(1, 4\) .*cannot be multiplied"),
        (nn.Linear(3, 2), torch.zeros(1, 3, dtype=torch.long), "int64.*same dtype"),
        (nn.Linear(3, 2), (torch.zeros(1, 3), torch.zeros(1)), "2 positional arguments"),
        (nn.Embedding(4, 2), torch.tensor([7]), "out of range"),
        (Net(lambda m, x: 1 / 0), torch.zeros(2), "division by zero"),
    ],
)
def test_an_example_that_the_module_does_not_take_is_named(
    module: nn.Module, example: Any, words: str
) -> None:
    with pytest.raises(CosetError, match=f"got inputs of .*{words}"):
        discover(module, example)


def test_a_layer_in_two_places_stays_as_it_is() -> None:
    """A call with other weights would leave plain tensors in it, which cannot be exported."""
    shared = nn.Linear(3, 3)
    module = Net(lambda m, x: m.two(m.one(x).relu()), one=shared, two=nn.Sequential(shared))
    for _ in range(2):
        assert [factor.size for factor in discover(module, torch.zeros(1, 3)).permutations] == []
        assert isinstance(shared.weight, nn.Parameter)


def test_an_example_may_be_of_another_type_than_the_weights() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    group = discover(module, torch.zeros(1, 3, dtype=torch.float64))
    assert [factor.size for factor in group.permutations] == [6]


def test_every_rule_has_a_case() -> None:
    """Here, among the operations under their own names, or as a map that keeps its promise."""
    seen = set().union(*(studied(name)[3] for name in CASES))
    maps = {name for names in KINDS.values() for name in names}
    assert RULES.keys() - seen - maps - OPERATIONS.keys() == set()
