"""Small networks with every kind of layer that the curvature knows."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from coset import Categorical, GaussianPrior, Problem, functionalise
from coset.bayes import as_batches
from coset.linalg import dense


class Twice(nn.Module):
    """One weight used in two places."""

    def __init__(self):
        super().__init__()
        self.shared, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.relu(self.shared(torch.tanh(self.shared(x)))))


class Tied(nn.Module):
    """An embedding whose table is the last layer, too."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)).mean(1))


class Attention(nn.Module):
    """Heads from plain projections, as most people write them."""

    def __init__(self):
        super().__init__()
        self.project, self.out, self.head = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.head((x + self.out(mixed)).mean(1))


class Scaled(nn.Module):
    """A parameter that no known layer reads."""

    def __init__(self):
        super().__init__()
        self.first, self.gain = nn.Linear(4, 3), nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        return torch.einsum("ni,oi->no", self.first(x), self.gain)


class Vision(nn.Module):
    """Patches with a class token and learnt positions, and scales of what blocks add."""

    def __init__(self):
        super().__init__()
        self.patch, self.layer = nn.Conv2d(1, 4, 2, 2), nn.Linear(4, 4)
        self.token, self.places = nn.Parameter(torch.ones(1, 1, 4)), nn.Parameter(torch.ones(6, 4))
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places[: x.shape[1] + 1]
        x = x + self.scale * self.layer(torch.tanh(x))
        return self.head(x[:, 0] - x[:, 1:].mean(1)) / self.temperature


class Language(nn.Module):
    """Tokens and counted positions, sequences in front of the examples, a tied head."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(7, 4), nn.Embedding(9, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6)
        self.offset = nn.Parameter(torch.ones(5, 1, 4))

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = self.block(x.transpose(0, 1) + self.offset)
        return functional.linear(x[-1], self.table.weight)


class ByHand(nn.Module):
    """Layers as products and sums of parameters, one of them a function of a parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(7, 3))
        self.first, self.shift = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(5))
        self.second, self.rate = nn.Parameter(torch.ones(2, 5)), nn.Parameter(torch.ones(5))
        self.slopes = nn.PReLU(5)

    def forward(self, tokens):
        x = self.table[tokens].mean(1) @ self.first + self.shift
        x = self.slopes(x) * functional.softplus(self.rate)
        return x @ self.second.T


class Looking(nn.Module):
    """The attention of torch, places in order and one of them never looked at."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        unseen = torch.zeros(x.shape[:2], dtype=torch.bool)
        unseen[:, 1] = True
        found, shares = self.inner(x, x, x, attn_mask=later, key_padding_mask=unseen)
        return self.head((found + shares @ x).mean(1))


class Decoder(nn.Module):
    """Attention to something else than oneself, packed and with parts of other sizes."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerDecoderLayer(4, 2, 6, batch_first=True)
        self.other = nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.block(x, x.flip(1)[:, :3] ** 2)
        return self.head((x + self.other(x, x[:, :4, :3], x[:, :4, 1:3])[0]).mean(1))


class Recurrent(nn.Module):
    """A layer over time, an average with its last state, and a head."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 2)

    def forward(self, x):
        outputs, last = self.inner(x if self.inner.batch_first else x.transpose(0, 1))
        mean = outputs.mean(1 if self.inner.batch_first else 0)
        last = last[0] if isinstance(last, tuple) else last
        return self.head(mean + last[-1].repeat(1, mean.shape[1] // last.shape[2]))


def _conv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2, dilation=2),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        lambda n: torch.randn(n, 4),
    ),
    "convolutions": (_conv, lambda n: torch.randn(n, 2, 8, 8)),
    "convolution over time": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same"),
            nn.Tanh(),
            nn.InstanceNorm1d(4, affine=True),
            nn.Flatten(),
            nn.Linear(32, 2),
        ),
        lambda n: torch.randn(n, 2, 8),
    ),
    "convolution in space": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)),
        lambda n: torch.randn(n, 1, 3, 3, 3),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.Tanh(),
            nn.Conv2d(4, 2, 3),
            nn.Flatten(),
            nn.Linear(72, 2),
        ),
        lambda n: torch.randn(n, 2, 4, 4),
    ),
    "tokens": (
        lambda: nn.Sequential(
            nn.Embedding(7, 6, padding_idx=0),
            nn.LayerNorm(6),
            nn.Linear(6, 6),
            nn.GELU(),
            nn.RMSNorm((5, 6)),
            nn.Flatten(),
            nn.Linear(30, 2),
        ),
        lambda n: torch.randint(0, 7, (n, 5)),
    ),
    "attention": (Attention, lambda n: torch.randn(n, 5, 4)),
    "torch attention": (Looking, lambda n: torch.randn(n, 5, 4)),
    "encoder layer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), nn.Flatten(), nn.Linear(20, 2)
        ),
        lambda n: torch.randn(n, 5, 4),
    ),
    "decoder": (Decoder, lambda n: torch.randn(n, 5, 4)),
    "lstm": (
        lambda: Recurrent(nn.LSTM(4, 3, batch_first=True, bidirectional=True), 6),
        lambda n: torch.randn(n, 5, 4),
    ),
    "gru": (lambda: Recurrent(nn.GRU(4, 3, num_layers=2), 3), lambda n: torch.randn(n, 5, 4)),
    "recurrent": (
        lambda: nn.Sequential(
            Recurrent(nn.RNN(4, 3, bias=False), 3),
            nn.Unflatten(1, (1, 2)),
            Recurrent(nn.RNN(2, 3, nonlinearity="relu", batch_first=True), 3),
        ),
        lambda n: torch.randn(n, 5, 4),
    ),
    "vision": (Vision, lambda n: torch.randn(n, 1, 4, 4)),
    "language": (Language, lambda n: torch.randint(0, 7, (n, 5))),
    "by hand": (ByHand, lambda n: torch.randint(0, 7, (n, 4))),
    "twice": (Twice, lambda n: torch.randn(n, 4)),
    "tied": (Tied, lambda n: torch.randint(0, 7, (n, 5))),
}


def build(name, rows=5):
    """A network in general position, and inputs for it."""
    factory, inputs = NETWORKS[name]
    module = factory().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.7)
    return module, inputs(rows)


def brute_jacobian(network, layout, inputs):
    """``(n, c, p)``, by automatic differentiation of everything."""

    def apply(given):
        return network.apply({**network.weights, **given}, inputs)

    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no rule for this
        found = torch.func.jacrev(apply)(layout.restrict(network.weights))
    lead = next(iter(found.values())).shape[:2]
    return torch.cat([found[name].reshape(*lead, -1) for name in layout.names], dim=-1)


def brute_curvature(network, layout, inputs, likelihood, outputs=None):
    """``Σ Jᵀ B J``, by its definition."""
    jacobian = brute_jacobian(network, layout, inputs)
    at = network.apply(network.weights, inputs) if outputs is None else outputs
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, likelihood.hessian(at), jacobian)


def problem_of(module, inputs, likelihood=None, batch_size=3):
    """A problem whose targets do not matter."""
    batches = as_batches((inputs, torch.zeros(len(inputs))), batch_size=batch_size)
    return Problem(functionalise(module), likelihood or Categorical(), GaussianPrior(), batches)


def measure(recipe, problem, **options):
    """A curvature over all parameters, as a matrix."""
    found = recipe.build(problem, problem.network.weights, problem.network.layout, **options)
    return dense(found.operator, like=torch.zeros(()))
