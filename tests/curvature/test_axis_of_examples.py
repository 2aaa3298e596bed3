"""The axis of the examples is found, or a tensor is named: whatever else has the same size."""

import pytest
import torch
from curvature_networks import brute_jacobian
from torch import Tensor, nn
from torch.nn import functional

from coset import functionalise
from coset.curvature.capture import record
from coset.curvature.rows import gradient_rows

pytestmark = pytest.mark.usefixtures("double")


class Body(nn.Module):
    """A function of three positions with four features, and of parameters of any kind."""

    def __init__(self, body):
        super().__init__()
        self.body, self.layer, self.head = body, nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale, self.token = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1, 1, 4))
        self.pairs, self.places = nn.Parameter(torch.ones(3, 3)), nn.Embedding(3, 4)
        self.time, self.begin = nn.GRU(4, 4), nn.Parameter(torch.ones(1, 1, 4))
        self.gain, self.norm = nn.Parameter(torch.ones(())), nn.LayerNorm(4)
        self.other = nn.LayerNorm(4)
        self.other.weight = self.norm.weight

    def forward(self, x):
        return self.head(self.body(self, x))


def _one_by_one(net, x):
    return torch.stack([(torch.arange(3.0)[:, None] * net.layer(one).tanh()).sum(0) for one in x])


def _heads_in_front(net, x):
    parts = net.layer(x).unflatten(-1, (2, 2)).transpose(1, 2).flatten(0, 1)
    shares = (parts @ parts.mT + net.pairs).softmax(-1)
    return (shares @ parts).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)[:, 0]


def _windows(net, x):
    windows = net.layer(x.repeat(1, 2, 1).reshape(-1, 2, 4)) * net.scale
    return windows.reshape(len(x), 6, 4).tanh()[:, 1]


def _constants(net, x):
    return (net.scale * torch.ones(3, 1) * x).sum(1)


def _positions_alone(net, x):
    return (x + net.layer(net.token[0].expand(3, 4))).tanh().mean(1)


def _of_one_axis(net, x):
    return (x @ net.layer(net.scale)[:, None] * x)[:, 0]


def _counted_positions(net, x):
    return (x + net.places(torch.arange(3).unsqueeze(0))).tanh()[:, 1]


def _sequences_in_front(net, x):
    token = net.token.expand(1, len(x), 4)
    return (torch.cat([token, x.transpose(0, 1)]) * net.scale + net.begin).tanh().sum(0)


def _examples_behind(net, x):
    columns = x.permute(1, 2, 0) * net.scale[:, None] + net.pairs[:, :1, None]
    return net.layer(net.norm(columns.permute(0, 2, 1))).tanh().sum(0)


def _begin(net, x):
    return net.time(x.transpose(0, 1), net.begin.repeat(1, len(x), 1))[0][-1]


def _copies(net, x):
    wide = net.scale.expand_as(x) * x + net.token.repeat(len(x), 3, 1)
    return (wide + net.gain.expand(len(x), 1, 1)).tanh().mean(1)


def _norms_with_one_scale(net, x):
    return net.other(net.norm(x).tanh())[:, 0]


def _a_branch_that_ends(net, x):
    net.layer(x)
    return (x * net.scale).mean(1)


def _complex(net, x):
    turned = torch.fft.rfft(x) * torch.view_as_complex(net.pairs[:, :2].clone().unsqueeze(1))
    return torch.fft.irfft(turned, n=4)[:, 2]


FOLLOWED = {
    body.__name__: (body, names)
    for body, names in (
        (_counted_positions, {"places.weight"}),
        (_sequences_in_front, {"token", "scale", "begin"}),
        (_examples_behind, {"scale", "pairs", "layer.weight", "layer.bias", "norm.weight"}),
        (_begin, {"begin", "time.weight_hh_l0"}),
        (_copies, {"scale", "token", "gain"}),
        (_norms_with_one_scale, {"norm.weight", "norm.bias", "other.bias"}),
        (_a_branch_that_ends, {"scale"}),
        (_complex, {"pairs"}),
    )
}


def _set_items(net, x):
    held = torch.zeros_like(x)
    held[:] = net.scale
    return (x * held + net.scale).mean(1)


def _write_in_place(net, x):
    twice = net.scale * 2
    twice.mul_(3)
    return (x * twice).mean(1)


def _write_into_a_view(net, x):
    held = net.scale.clone()
    held[:2].mul_(5)
    return (x * held).mean(1)


def _write_without_gradient(net, x):
    with torch.no_grad():
        fixed = x * net.scale
    return (fixed * net.scale).mean(1)


def _both_ways(net, x):
    return (net.layer(x).tanh() @ net.layer.weight).mean(1)


def _scale_and_shift(net, x):
    return functional.layer_norm(x, (4,), net.scale, net.scale)[:, 1]


def _norm_and_bias(net, x):
    return (net.norm(x).tanh() + net.norm.bias).mean(1)


def _learnt_mask(net, x):
    inner = net.layer.weight, net.layer.bias
    found = functional.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3, 4, 2, inner[0].repeat(3, 1).detach(), None, None, None, False,
        0.0, *inner, training=False, attn_mask=net.pairs,
    )  # fmt: skip
    return found[0].mean(0) + net.pairs.sum()


def _added(x: Tensor, y: Tensor) -> Tensor:
    return x + y


ADDED = torch.jit.script(_added)


def _scripted(net, x):
    return ADDED(x.tanh(), net.scale[None] * 2).mean(1) * net.scale


NAMED = {
    body.__name__: (body, names)
    for body, names in (
        (_one_by_one, {"layer.weight", "layer.bias"}),
        (_heads_in_front, {"pairs"}),
        (_windows, {"layer.weight", "layer.bias", "scale"}),
        (_constants, {"scale"}),
        (_positions_alone, {"layer.weight", "layer.bias", "token"}),
        (_of_one_axis, {"layer.weight", "layer.bias", "scale"}),
        (_set_items, {"scale"}),
        (_write_in_place, {"scale"}),
        (_write_into_a_view, {"scale"}),
        (_write_without_gradient, {"scale"}),
        (_both_ways, {"layer.weight"}),
        (_scale_and_shift, {"scale"}),
        (_norm_and_bias, {"norm.bias"}),
        (_learnt_mask, {"pairs"}),
        (_scripted, {"scale"}),
    )
}


def _recorded(body, names, rows):
    torch.manual_seed(0)
    module = Body(body).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.7)
    network, inputs = functionalise(module), torch.randn(rows, 3, 4)
    layout = network.layout.select(*sorted(names), "head*")
    found = gradient_rows(network, network.weights, layout, inputs)
    torch.testing.assert_close(found, brute_jacobian(network, layout, inputs))
    return record(network, network.weights, layout, inputs).foreign


@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name, rows):
    assert not _recorded(*FOLLOWED[name], rows)


@pytest.mark.parametrize("rows", range(1, 7))
@pytest.mark.parametrize("name", NAMED)
def test_named(name, rows):
    body, names = NAMED[name]
    assert names <= set(_recorded(body, names, rows)) <= {*names, "head.weight", "head.bias"}


def test_what_a_network_makes_in_its_first_call():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.angles = nn.Linear(4, 2), None

        def forward(self, x):
            if self.angles is None:
                self.angles = torch.arange(3.0)[:, None].sin()
            return self.layer((x * self.angles).mean(1))

    network, inputs = functionalise(Keeping()), torch.randn(5, 3, 4)
    assert not record(network, network.weights, network.layout, inputs).foreign
