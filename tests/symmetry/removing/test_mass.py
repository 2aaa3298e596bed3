"""The smallest mass against other solvers, and what must hold there."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.symmetry.discovered import discovered, distance, repeated, seeded
from torch import Tensor, nn
from torch.func import functional_call

from coset.errors import CosetError
from coset.symmetry.discover import discover
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.removing.mass import mass_profile, minimise_mass
from coset.vocabulary import Weights
from coset.weights.network import weights_of
from coset.weights.stacking import stack, unstack

BALANCED = [
    "relu_mlp",
    "leaky_relu_mlp",
    "squared_relu",
    "maxout",
    "shared_linear",
    "two_heads",
    "residual_stream",
    "cumulative_sum",
    "unet_with_skip",
    "depthwise",
    "shufflenet_v2",
    "group_norm_convnet",
    "attention_grouped_queries",
    "encoder_norm_first",
    "convnext",
    "family_optunet",
    "family_fixup_resnet",
    "family_unet",
    "gpt2",
    "llama_tied",
]
NORMALISED = ["batch_norm_convnet", "vgg_batch_norm", "family_resnet_batch_relu", "densenet"]


def is_weight(name: str) -> bool:
    last = name.rpartition(".")[2]
    return not any(word in last for word in ("bias", "running_", "threshold"))


def by_descent(group: SymmetryGroup, weights: Weights, *, include_bias: bool = False) -> float:
    """L-BFGS on the mass, written once more entry by entry and differentiated by autograd."""
    factors = [f for f in group.scalings if f.domain != "sign"]
    shapes = [group.tables.shape(f) for f in factors]
    sizes = [math.prod(shape) for shape in shapes]
    counted = [n for n in group.shapes if is_weight(n) or (include_bias and "running" not in n)]

    def mass(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(flat).requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        pieces = dict(zip([f.name for f in factors], logs.split(sizes), strict=True))
        for name in counted:
            tensor = weights[name]
            exponent = torch.zeros_like(tensor)
            for factor, shape in zip(factors, shapes, strict=True):
                for site in factor.sites:
                    if site.tensor == name:
                        exponent = exponent + spread(tensor, site, pieces[factor.name], shape)
            total = total + (tensor.square() * (2 * exponent).exp()).sum()
        (gradient,) = torch.autograd.grad(total, logs)
        return float(total.detach()), gradient.numpy()

    start = np.zeros(sum(sizes))
    options = {"maxiter": 20000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    return float(minimize(mass, start, jac=True, method="L-BFGS-B", options=options).fun)


def spread(tensor: Tensor, site, logs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``power · u`` of a site on every entry of a tensor, by index arithmetic on entry numbers."""
    numbers = torch.arange(tensor.numel()).reshape(tensor.shape)
    for axis, outer, start, size in site.block:
        whole = numbers.shape[axis]
        numbers = numbers.unflatten(axis, (outer, whole // outer))
        numbers = numbers.narrow(axis + 1, start, size).flatten(axis, axis + 1)
    entries = numbers.reshape(site.view)
    index = torch.zeros(site.view, dtype=torch.long)
    for digit in (*site.parents, *site.digits):
        along = torch.arange(site.view[digit])
        along = along.reshape([-1 if d == digit else 1 for d in range(len(site.view))])
        index = index * site.view[digit] + along
    assert int(index.max()) < math.prod(shape)
    result = torch.zeros(tensor.numel(), dtype=torch.float64)
    values = site.power * logs[index.flatten()]
    return result.index_add(0, entries.flatten(), values).reshape(tensor.shape)


@pytest.mark.parametrize("include_bias", [False, True], ids=["weights", "biases"])
@pytest.mark.parametrize("name", BALANCED)
def test_minimum_is_that_of_quasi_newton(name: str, include_bias: bool) -> None:
    found = discovered(name)
    minimum = minimise_mass(found.group, found.double, include_bias=include_bias)
    reference = by_descent(found.group, found.double, include_bias=include_bias)
    assert float(minimum.mass) == pytest.approx(reference, rel=1e-8)
    assert float(minimum.mass) <= float(minimum.initial_mass) * (1 + 1e-15)
    assert float(minimum.residual) < 1e-11


@pytest.mark.parametrize("name", BALANCED)
def test_minimum_does_not_depend_on_the_start(name: str) -> None:
    found = discovered(name)
    group = found.group
    minimum = minimise_mass(group, found.double)
    orbit = group.act(group.sample(generator=seeded(6), members=3), repeated(found.double, 3))
    others = minimise_mass(group, orbit)
    torch.testing.assert_close(others.mass, minimum.mass.expand(3), rtol=1e-11, atol=0)
    assert (others.mass <= others.initial_mass).all()
    alone = minimise_mass(group, unstack(orbit)[1])
    assert distance(alone.weights, unstack(others.weights)[1]) < 1e-6


def chain(*widths: int) -> tuple[nn.Module, SymmetryGroup]:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    return module, discover(module, torch.zeros(1, widths[0]))


def test_balanced_at_the_minimum_and_the_same_function() -> None:
    module, group = chain(7, 12, 9, 5)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    minimum = minimise_mass(group, weights)
    first, second, last = (minimum.weights[f"{k}.weight"].square() for k in (0, 2, 4))
    torch.testing.assert_close(first.sum(1), second.sum(0), rtol=1e-9, atol=0)
    torch.testing.assert_close(second.sum(1), last.sum(0), rtol=1e-9, atol=0)
    assert float(minimum.mass) == pytest.approx(float(first.sum() + second.sum() + last.sum()))
    excess = 100 * (float(minimum.initial_mass) / float(minimum.mass) - 1)
    assert float(minimum.excess) == pytest.approx(excess)
    inputs = torch.randn(8, 7, dtype=torch.float64, generator=seeded(0))
    module = module.double()
    torch.testing.assert_close(
        functional_call(module, minimum.weights, inputs), functional_call(module, weights, inputs)
    )


@pytest.mark.parametrize("name", ["relu_mlp", "residual_stream", "maxout", "gpt2"])
def test_the_element_leads_from_the_weights_to_the_minimum(name: str) -> None:
    found = discovered(name)
    group = found.group
    minimum = minimise_mass(group, found.double)
    assert distance(group.act(minimum.element, found.double), minimum.weights) < 1e-12
    orbit = group.act(group.sample(generator=seeded(8), members=2), repeated(found.double, 2))
    both = minimise_mass(group, orbit)
    assert distance(group.act(both.element, orbit), both.weights) < 1e-12
    assert all(len(table) == 2 for table in both.element.scales.values())


def test_minimum_is_that_of_a_geometric_programme() -> None:
    cvxpy = pytest.importorskip("cvxpy")
    module, group = chain(4, 6, 5, 3)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    first, second, last = (weights[f"{k}.weight"].square().numpy() for k in (0, 2, 4))
    a, b = cvxpy.Variable(6, pos=True), cvxpy.Variable(5, pos=True)
    mass = cvxpy.sum(cvxpy.multiply(first.sum(1), a)) + cvxpy.sum(
        cvxpy.multiply(last.sum(0), b**-1)
    )
    for i in range(5):
        for j in range(6):
            mass = mass + second[i, j] * b[i] / a[j]
    problem = cvxpy.Problem(cvxpy.Minimize(mass))
    tight = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
    problem.solve(gp=True, solver="CLARABEL", **tight)
    assert float(minimise_mass(group, weights).mass) == pytest.approx(problem.value, rel=1e-8)


def test_dead_units_are_named_and_left_out() -> None:
    """Unit 2 gets nothing; unit 4 of the next layer sends nothing, and unit 0 feeds it alone."""
    module, group = chain(3, 5, 5, 2)
    weights = {name: tensor.double() for name, tensor in weights_of(module).items()}
    weights["0.weight"][2] = 0.0
    weights["4.weight"][:, 4] = 0.0
    weights["2.weight"][:4, 0] = 0.0
    minimum = minimise_mass(group, weights)
    dead = {(unit.scaling, unit.unit) for unit in minimum.dead}
    assert dead == {
        ("0.weight:scale", (2,)),
        ("0.weight:scale", (0,)),
        ("2.weight:scale", (4,)),
    }
    rows, columns = [1, 3, 4], [0, 1, 2, 3]
    smaller_module, smaller_group = chain(3, 3, 4, 2)
    smaller = {
        "0.weight": weights["0.weight"][rows],
        "0.bias": weights["0.bias"][rows],
        "2.weight": weights["2.weight"][columns][:, rows],
        "2.bias": weights["2.bias"][columns],
        "4.weight": weights["4.weight"][:, columns],
        "4.bias": weights["4.bias"],
    }
    assert smaller.keys() == weights_of(smaller_module).keys()
    expected = minimise_mass(smaller_group, smaller)
    assert float(minimum.mass) == pytest.approx(float(expected.mass), rel=1e-10)
    assert float(minimum.initial_mass) == pytest.approx(float(expected.initial_mass), rel=1e-10)
    assert all(tensor.isfinite().all() for tensor in minimum.weights.values())


@pytest.mark.parametrize("name", NORMALISED)
def test_normalised_networks_have_no_minimum(name: str) -> None:
    found = discovered(name)
    with pytest.raises(CosetError, match="exclude_normalised"):
        minimise_mass(found.group, found.double)
    minimum = minimise_mass(found.group, found.double, exclude_normalised=True)
    assert {i.tensor for i in found.group.invariances} <= set(minimum.excluded)
    assert float(minimum.residual) < 1e-11
    group = found.group
    orbit = group.act(group.sample(generator=seeded(7), members=3), repeated(found.double, 3))
    others = minimise_mass(group, orbit, exclude_normalised=True)
    torch.testing.assert_close(others.mass, minimum.mass.expand(3), rtol=1e-11, atol=0)


def test_last_norm_balances_the_head() -> None:
    """With convolutions out, what is left is γ of the last norm against the head: 2 Σ |γ| |h|."""
    found = discovered("batch_norm_convnet")
    minimum = minimise_mass(found.group, found.double, exclude_normalised=True)
    gamma, head = found.double["4.weight"].abs(), found.double["8.weight"].norm(dim=0)
    assert float(minimum.mass) == pytest.approx(float(2 * (gamma * head).sum()), rel=1e-12)
    assert set(minimum.excluded) == {"0.weight", "1.weight", "3.weight"}


class Tempered(nn.Module):
    """A number that no scale changes, as the temperature of similarities."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.temperature = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.into(x).relu()) * self.temperature.exp()
        return outputs


def test_single_numbers_count() -> None:
    """8 · 2 = 4 · 4, and nine for the temperature, which stays."""
    module = Tempered()
    given = weights_of(module)
    given["into.weight"], given["out.weight"] = torch.tensor([[8.0]]), torch.tensor([[2.0]])
    minimum = minimise_mass(discover(module, torch.zeros(1, 1)), given)
    assert [float(m) for m in (minimum.initial_mass, minimum.mass)] == pytest.approx([77.0, 41.0])
    assert minimum.weights["temperature"] == 3.0


def test_profile_of_a_zoo() -> None:
    module, group = chain(5, 8, 4, 3)
    torch.manual_seed(3)
    zoo = [weights_of(nn.Sequential(*chain_layers())) for _ in range(7)]
    profile = mass_profile(group, stack(zoo), chunk=3)
    for k, member in enumerate(zoo):
        one = minimise_mass(group, member)
        assert float(profile.mass[k]) == pytest.approx(float(one.initial_mass))
        assert float(profile.minimum[k]) == pytest.approx(float(one.mass), rel=1e-10)
        assert float(profile.excess[k]) == pytest.approx(float(one.excess), rel=1e-8)
    assert len(weights_of(module)) == len(zoo[0])


def chain_layers() -> list[nn.Module]:
    return [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)]


def test_types_and_arguments_are_kept() -> None:
    found = discovered("family_optunet")
    before = {name: tensor.clone() for name, tensor in found.weights.items()}
    minimum = minimise_mass(found.group, found.weights)
    assert distance(found.weights, before) == 0
    assert all(minimum.weights[n].dtype == t.dtype for n, t in before.items())
    assert minimum.mass.dtype == torch.float64
    assert minimum.mass.dim() == 0


def test_units_that_only_feed_each_other_are_noticed() -> None:
    """A square layer used twice: unit 0 and 1 pass values round and nothing comes in."""
    found = discovered("shared_linear")
    weights = {name: tensor.clone() for name, tensor in found.double.items()}
    weights["first.weight"][:2] = 0.0
    weights["square.weight"][:2] = 0.0
    weights["square.weight"][0, 1] = weights["square.weight"][1, 0] = 1.0
    with pytest.raises(CosetError, match="run away"):
        minimise_mass(found.group, weights)
