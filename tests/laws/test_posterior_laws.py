"""Every method: shapes, layout, bitwise determinism, vmap, files; the module stays as it was."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.utils.data import DataLoader, TensorDataset

import coset
from coset import CosetError, Laplace, Problem
from methods import LAPLACES, METHODS

NORMALISED = [name for name in METHODS if name != "multi-Laplace"]  # it refuses, see below


def plain():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2))


def normalised():
    return nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 2)
    )


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def fit_anew(name, build=plain, seed=0):
    torch.manual_seed(0)
    method = (METHODS | LAPLACES)[name]
    return coset.fit(build(), data(), method=method, generator=torch.Generator().manual_seed(seed))


fitted = functools.cache(fit_anew)  # many laws look at one fit


BOTH = [(plain, name) for name in METHODS] + [(normalised, name) for name in NORMALISED]


@pytest.mark.parametrize(("build", "name"), BOTH)
def test_draws_are_stacks_of_the_network(name, build):
    predictor = fitted(name, build)
    network = predictor.network
    drawn = predictor.posterior.sample(5, generator=torch.Generator().manual_seed(1))
    for key, tensor in network.weights.items():
        assert drawn[key].shape == (5, *tensor.shape)
        assert drawn[key].dtype == tensor.dtype
        assert not drawn[key].requires_grad
        assert drawn[key].isfinite().all()
    outputs = vmap(network.apply, in_dims=(0, None))(drawn, data()[0])
    assert outputs.shape == (5, 24, 2)
    assert set(predictor.posterior.layout.names) == set(network.weights)


@pytest.mark.parametrize("build", [plain, normalised])
@pytest.mark.parametrize("name", LAPLACES)
def test_draws_of_laplace_are_weights_of_the_whole_network(name, build):
    """What a subset leaves out and batch-norm statistics too, as symmetries and files want them."""
    predictor = fitted(name, build)
    module = build().eval()
    group = coset.discover(module, data()[0])
    drawn = predictor.posterior.sample(3, generator=torch.Generator().manual_seed(1))
    assert set(drawn) == set(coset.weights_of(module))
    assert coset.canonicalise(group, drawn).keys() == drawn.keys()
    one = coset.assign(module, coset.unstack(drawn)[0])
    with torch.no_grad():
        outputs = vmap(predictor.network.apply, in_dims=(0, None))(drawn, data()[0])
        torch.testing.assert_close(outputs[0], one(data()[0]))


@pytest.mark.parametrize("own", [True, False], ids=["own", "given"])
@pytest.mark.parametrize(("build", "name"), BOTH)
def test_frozen_parameters_stay(name, build, own):
    torch.manual_seed(0)
    module, (inputs, targets) = build(), data()
    module[0].requires_grad_(False)
    start = None
    if not own:
        start = {key: tensor + 0.05 for key, tensor in coset.weights_of(module).items()}
    predictor = coset.fit(module, (inputs, targets), method=METHODS[name], start=start)
    drawn = predictor.posterior.sample(3, generator=torch.Generator().manual_seed(1))
    fixed = start or coset.weights_of(module)
    for key in ("0.weight", "0.bias"):
        assert torch.equal(drawn[key], fixed[key].expand_as(drawn[key]))
    last = f"{len(module) - 1}.weight"
    assert not torch.equal(drawn[last][0], fixed[last])


@pytest.mark.parametrize("name", LAPLACES)
def test_a_network_with_frozen_parameters_is_fitted_like_a_part_of_it(name):
    module = plain()
    whole = coset.fit(module, data(), method=Laplace(subset=("3.*",)))
    module[0].requires_grad_(False)
    part = coset.fit(module, data())
    assert part.log_evidence == whole.log_evidence
    predictor = coset.fit(module, data(), method=LAPLACES[name])
    assert set(predictor.posterior.layout.names) == {"3.weight", "3.bias"}
    assert predictor(data()[0]).mean.shape == (24, 2)


@pytest.mark.parametrize("name", NORMALISED)
def test_a_single_example_left_over_of_the_batches_is_no_batch(name):
    inputs, targets = (part[:9] for part in data())
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4)
    predictor = coset.fit(normalised(), loader, method=METHODS[name])
    assert predictor(inputs).mean.isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_equal_seeds_are_bitwise_equal(name):
    first, again, other = (fit_anew(name, seed=seed) for seed in (0, 0, 1))
    inputs = data()[0]
    assert torch.equal(first(inputs).members, again(inputs).members)
    assert not torch.equal(first(inputs).members, other(inputs).members)


@pytest.mark.parametrize(("build", "name"), BOTH)
def test_files_give_the_same_predictions(name, build, tmp_path):
    predictor = fitted(name, build)
    predictor.save(tmp_path / "posterior.safetensors")
    again = coset.load(tmp_path / "posterior.safetensors", build())
    inputs = data()[0]
    assert torch.equal(predictor(inputs).members, again(inputs).members)
    assert again.posterior.layout == predictor.posterior.layout  # flat vectors mean the same
    assert repr(again) == repr(predictor)


@pytest.mark.parametrize("name", METHODS)
def test_the_module_and_torchs_randomness_stay_as_they_were(name):
    module = plain()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    coset.fit(module, data(), method=METHODS[name])
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


class Noisy(nn.Module):
    """Draws from torch's own generator while it trains."""

    def __init__(self):
        super().__init__()
        self.inner = normalised()

    def forward(self, inputs):
        return self.inner(inputs + 0.1 * torch.randn_like(inputs) if self.training else inputs)


@pytest.mark.parametrize("name", NORMALISED)
def test_networks_that_draw_while_they_train_draw_by_the_seed(name):
    torch.manual_seed(0)
    problem, found = Problem.of(Noisy(), data()), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        posterior = METHODS[name].fit(problem, generator=torch.Generator().manual_seed(0))
        assert torch.equal(torch.get_rng_state(), state)
        found.append(posterior.sample(2, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(tensor, found[1][key]) for key, tensor in found[0].items())


def test_data_that_are_read_at_random_are_read_by_the_seed():
    inputs, targets = data()

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return len(targets)

        def __getitem__(self, row):
            return inputs[row] + 0.1 * torch.randn(3), targets[row]

    found = []
    for seed in (1, 2):
        torch.manual_seed(0)
        module = plain()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(coset.fit(module, Augmented())(inputs).mean)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*found)


# Samplers learn it by 2,000 steps of training first, all by the same code: one row in make test.
LEARN_FIRST = ["NUTS", "SGHMC", "SGLD", "multi-HMC", "multi-NUTS", "multi-SGHMC", "multi-SGLD"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LEARN_FIRST)) for name in METHODS],
)
def test_noise_to_be_learnt_is_learnt(name):
    inputs, _ = data()
    predictor = coset.fit(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 1)),
        (inputs, inputs[:, :1] + 0.1),
        method=METHODS[name],
        likelihood=coset.GaussianNoise(),
    )
    assert predictor.likelihood.std > 0
    assert predictor(inputs).variance.isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_asking_for_no_draws_is_refused(name):
    posterior = fitted(name).posterior
    with pytest.raises(CosetError, match="draws=0"):
        posterior.sample(0, generator=torch.Generator())


@pytest.mark.parametrize("name", METHODS)
def test_tiny_numbers_are_numbers_again_after_a_fit(name):
    """While a fit runs they may count as zero, for speed."""
    fitted(name)
    assert (torch.tensor([1e-40]) * 1).item() > 0


@pytest.mark.parametrize("name", METHODS)
def test_inputs_that_are_not_finite_are_refused_before_any_work(name):
    inputs, targets = data()
    inputs[7, 1] = torch.nan
    told = []
    with pytest.raises(CosetError, match="inputs that are not finite, in example 7"):
        coset.fit(
            plain(),
            (inputs, targets),
            method=METHODS[name],
            progress=lambda *line: told.append(line),
        )
    assert not told


def test_mixtures_have_one_component_a_mode():
    assert len(fitted("multi-SWAG").posterior.components) == 2


def test_modes_of_laplace_keep_their_own_statistics(generator):
    posterior = fitted("multi-Laplace", normalised).posterior
    names = {name for part in posterior.components for name in part.fixed}
    assert any(name.endswith("running_mean") for name in names)
    drawn = posterior.sample(2, generator=generator)  # one of each mode
    assert all(not torch.equal(drawn[name][0], drawn[name][1]) for name in names)
