"""Dense networks: one activation, one sharing or one normalisation at a time.

Throughout, the axis of input features is pinned by the input, the axis of outputs by the output,
and every hidden axis is one permutation factor unless something ties or pins it.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from tests.symmetry.architectures.registry import case, cases_in, normal
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def mlp(activation: Callable[[], nn.Module], *sizes: int) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for fan_in, fan_out in pairwise(sizes[1:]):
        layers += [activation(), nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class SharedLinear(nn.Module):
    """One square layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.square(self.square(x).relu()).relu())


class TiedAutoencoder(nn.Module):
    """The decoder is the transpose of the encoder."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.encoder_bias, self.decoder_bias = (
            nn.Parameter(torch.randn(6)),
            nn.Parameter(torch.randn(4)),
        )
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.activation(x @ self.weight.T + self.encoder_bias) @ self.weight + self.decoder_bias
        )


class TwoHeads(nn.Module):
    """A trunk that feeds a mean and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.hidden = nn.Linear(3, 8), nn.Linear(8, 5)
        self.mean, self.scale = nn.Linear(8, 2), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x).relu()
        return self.mean(x), nn.functional.softplus(self.scale(self.hidden(x).relu()))


class ResidualStream(nn.Module):
    """A linear stream with two ReLU branches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.up = nn.ModuleList([nn.Linear(8, 5), nn.Linear(8, 6)])
        self.down = nn.ModuleList([nn.Linear(5, 8), nn.Linear(6, 8)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(up(x).relu())
        return self.head(x)


class Unused(nn.Module):
    """A layer and a matrix nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(nn.ReLU, 3, 6, 2)
        self.spare = nn.Linear(4, 5)
        self.matrix = nn.Parameter(torch.randn(7, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


X = normal(4, 3)


@case(example=X, permutations=[(6,), (5,)], positive=[(6,), (5,)])
def relu_mlp() -> nn.Module:
    """3-6-5-2: two hidden layers; rows and bias up by s > 0, next columns down, through ReLU."""
    return mlp(nn.ReLU, 3, 6, 5, 2)


@case(example=X, permutations=[(6,), (5,)], sign=[(6,), (5,)])
def tanh_mlp() -> nn.Module:
    """tanh is odd and not homogeneous: a sign per hidden unit."""
    return mlp(nn.Tanh, 3, 6, 5, 2)


@case(example=X, permutations=[(6,), (5,)], nonzero=[(6,), (5,)])
def linear_mlp() -> nn.Module:
    """Nothing between the layers: any nonzero scale per hidden unit."""
    return mlp(nn.Identity, 3, 6, 5, 2)


@case(example=X, permutations=[(6,), (5,)])
def gelu_mlp() -> nn.Module:
    """GELU is neither odd nor homogeneous: permutations alone."""
    return mlp(nn.GELU, 3, 6, 5, 2)


@case(example=X, permutations=[(6,), (5,)], positive=[(6,), (5,)])
def leaky_relu_mlp() -> nn.Module:
    """LeakyReLU is positively homogeneous."""
    return mlp(nn.LeakyReLU, 3, 6, 5, 2)


@case(example=X, permutations=[(6,)], positive=[(6,)])
def prelu_per_channel() -> nn.Module:
    """The slopes move with the units and do not scale."""
    return nn.Sequential(nn.Linear(3, 6), nn.PReLU(6), nn.Linear(6, 2))


@case(example=X, permutations=[(6,)], positive=[(6,)])
def prelu_shared() -> nn.Module:
    """One slope for all units: the same group as ReLU."""
    return nn.Sequential(nn.Linear(3, 6), nn.PReLU(1), nn.Linear(6, 2))


@case(example=X, permutations=[(6,)], positive=[(6,)])
def squared_relu() -> nn.Module:
    """relu(s z)**2 = s**2 relu(z)**2 for s > 0: rows +1, next columns -2."""
    return mlp(lambda: Apply(lambda x: x.relu() ** 2), 3, 6, 2)


@case(example=X, permutations=[(6,)], nonzero=[(6,)])
def square_mlp() -> nn.Module:
    """(s z)**2 = s**2 z**2 for every nonzero s: rows +1, next columns -2, signs included."""
    return mlp(lambda: Apply(torch.square), 3, 6, 2)


@case(example=X, permutations=[(6,)], positive=[(6,)], sign=[(6,)])
def absolute_mlp() -> nn.Module:
    """|s z| = s |z| for s > 0; and the sign of the rows alone, with no column, is free."""
    return mlp(lambda: Apply(torch.abs), 3, 6, 2)


@case(example=X, permutations=[(5,), (3, 5)], positive=[(5,)])
def maxout() -> nn.Module:
    """15 rows as 5 units of 3 pieces, the maximum over pieces.

    Units permute (rows in blocks of 3, columns of the next layer); inside each unit its 3 pieces
    permute without moving anything else. One positive scale per unit, common to its pieces.
    """
    return nn.Sequential(
        nn.Linear(3, 15), Apply(lambda x: x.view(-1, 5, 3).amax(2)), nn.Linear(5, 2)
    )


@case(example=X, permutations=[(5,)], nonzero=[(5,)])
def gated_linear_unit() -> nn.Module:
    """glu: value * sigmoid(gate). The two halves of the rows move together.

    The value half and the next columns scale (no activation: nonzero); sigmoid pins the gate's
    scale.
    """
    return nn.Sequential(nn.Linear(3, 10), nn.GLU(), nn.Linear(5, 2))


@case(example=X, permutations=[(6,)], positive=[(6,)])
def shared_linear() -> nn.Module:
    """The square layer is read after `first` and after itself: all hidden axes are one factor.

    With a the exponent of `first`, its columns take -a; its second use needs rows = -columns = a.
    """
    return SharedLinear()


@case(example=normal(5, 4), permutations=[(6,)])
def tied_autoencoder_relu() -> nn.Module:
    """W up by s gives W^T W up by s**2: no scale; the six hidden units permute."""
    return TiedAutoencoder(torch.relu)


@case(example=normal(5, 4), permutations=[(6,)], sign=[(6,)])
def tied_autoencoder_tanh() -> nn.Module:
    """A sign enters twice through W and cancels: signs of the hidden units."""
    return TiedAutoencoder(torch.tanh)


@case(example=X, permutations=[(8,), (5,)], positive=[(8,), (5,)])
def two_heads() -> nn.Module:
    """Trunk 8 (columns of both readers), hidden 5 of the second head, softplus at the output pins
    nothing more.
    """
    return TwoHeads()


@case(example=X, permutations=[(8,), (5,), (6,)], nonzero=[(8,)], positive=[(5,), (6,)])
def residual_stream() -> nn.Module:
    """All that adds into the stream shares one factor of 8, scaled by any nonzero number: nothing
    acts on the stream itself. Branch units 5 and 6 pass a ReLU."""
    return ResidualStream()


@case(
    example=X,
    permutations=[(6,)],
    positive=[(6,)],
    dead=26,
    unread=("spare.weight", "spare.bias", "matrix"),
)
def unused_parameters() -> nn.Module:
    """Only the body counts; what the output never reads gets no factor.

    The probe sees 4 + 5 - 1 exponents of a 5 x 4 matrix, 5 of its bias, 7 + 7 - 1 of a square one.
    """
    return Unused()


@case(example=X, permutations=[(5,)], positive=[(5,)], common=1)
def cumulative_sum() -> nn.Module:
    """3-6-5-2 with a running sum over the first hidden axis.

    The running sum reads the six units in order: pinned, and its units share one scale (size one:
    first layer up, second layer's weight down). The second hidden axis of 5 is free.
    """
    return nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), Apply(lambda x: x.cumsum(1)), *mlp(nn.ReLU, 6, 5, 2)
    )


@case(example=X, permutations=[(5,)], positive=[(5,)], common=None)
def sorted_units() -> nn.Module:
    """Sorting reads the six units by value: the axis is refused; the later 5 are free.

    (Rows before a sort could be permuted alone; discovery treats every ordering as a refusal.)
    """
    return nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), Apply(lambda x: x.sort(1).values), *mlp(nn.ReLU, 6, 5, 2)
    )


@case(example=X, permutations=[(5,)], positive=[(5,)], common=None)
def fourier_transform() -> nn.Module:
    """A Fourier transform over the six units depends on their order and pins them all."""
    return nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), Apply(lambda x: torch.fft.rfft(x).abs()), *mlp(nn.ReLU, 4, 5, 2)
    )


@case(
    example=X,
    permutations=[(6,)],
    positive=[(6,)],
    invariances={"0.weight": "layer"},
)
def layer_norm_mlp() -> nn.Module:
    """Linear, LayerNorm, ReLU, Linear.

    The mean over units ties their scales and epsilon fixes the rest, so only norm weight and bias
    up against the next columns. Without epsilon the first layer as a whole is divided out.
    """
    return nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))


@case(
    example=X,
    permutations=[(6,)],
    positive=[(6,)],
    sign=[(6,)],
    invariances={"0.weight": "layer"},
)
def rms_norm_mlp() -> nn.Module:
    """Linear, RMSNorm (weight, no bias), ReLU, Linear.

    Norm weight against next columns: positive. The mean square does not see signs: row and norm
    weight of a unit may flip together.
    """
    return nn.Sequential(nn.Linear(3, 6), nn.RMSNorm(6, eps=1e-6), nn.ReLU(), nn.Linear(6, 2))


@case(
    example=X,
    permutations=[(6,)],
    positive=[(6,)],
    sign=[(6,), (6,)],
    invariances={"0.weight": "filter"},
)
def batch_norm_tanh() -> nn.Module:
    """Linear, BatchNorm, tanh, Linear.

    Before the norm: rows, bias, mean by s > 0, variance + epsilon by s**2. Signs: (rows, bias,
    mean, norm weight) and (norm weight, norm bias, next columns).
    """
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


@case(
    example=X,
    permutations=[(6,)],
    positive=[(6,), (6,)],
    sign=[(6,)],
    invariances={"0.parametrizations.weight.original1": "filter"},
)
def weight_normalisation() -> nn.Module:
    """g v / |v| in the first layer, then ReLU and a plain layer.

    v by s > 0 per row alone (exact: no epsilon); g and bias up, next columns down (positive); v and
    g flip sign together.
    """
    return nn.Sequential(weight_norm(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2))


CASES = cases_in(globals())
