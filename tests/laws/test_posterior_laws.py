"""Every method: shapes, layout, bitwise determinism, vmap, files; the module stays as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.func import vmap

import coset
from coset import (
    HMC,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    CosetError,
    DeepEnsemble,
    Laplace,
    LastLayer,
    MaximumAPosteriori,
    MCDropout,
    MeanField,
    MultiMode,
    RebasedGaussian,
)

BASE = MaximumAPosteriori(epochs=3)
METHODS = {
    "map": BASE,
    "ensemble": DeepEnsemble(2, BASE),
    "dropout": MCDropout(BASE),
    "dropout by example": MCDropout(BASE, per_example=True),
    "mean field": MeanField(epochs=3),
    "mean field from a training": MeanField(epochs=3, base=BASE),
    "mean field, flipout": MeanField(epochs=3, estimator="flipout"),
    "mean field, shared": MeanField(epochs=3, estimator="shared"),
    "SWAG": SWAG(rank=3, base=BASE, epochs=4),
    "diagonal SWAG": SWAG(rank=0, base=BASE, epochs=4),
    "SGHMC": SGHMC(burn_in=4, draws=3, thinning=1, chains=2),
    "SGLD": SGLD(burn_in=4, draws=3, thinning=1, chains=2),
    "HMC": HMC(warmup=20, draws=3, chains=2, max_steps=4),
    "NUTS": NUTS(warmup=20, draws=3, chains=2, max_depth=3),
    "multi-SWAG": MultiMode(SWAG(rank=2, base=BASE, epochs=4), 2),
    "multi-dropout": MultiMode(MCDropout(BASE), 2),
    "multi-mean-field": MultiMode(MeanField(epochs=3), 2),
    "multi-mean-field by evidence": MultiMode(MeanField(epochs=3), 2, by_evidence=True),
    "multi-ensemble": MultiMode(DeepEnsemble(2, BASE), 2),
    "multi-map": MultiMode(BASE, 2),
    "multi-HMC": MultiMode(HMC(warmup=20, draws=3, chains=1, max_steps=4), 2),
    "multi-NUTS": MultiMode(NUTS(warmup=20, draws=3, chains=1, max_depth=3), 2),
    "multi-SGHMC": MultiMode(SGHMC(burn_in=4, draws=3, thinning=1, chains=1), 2),
    "multi-SGLD": MultiMode(SGLD(burn_in=4, draws=3, thinning=1, chains=1), 2),
    "multi-rebased": MultiMode(RebasedGaussian(DeepEnsemble(3, BASE)), 2),
    "rebased": RebasedGaussian(DeepEnsemble(3, BASE)),
    "rebased to the first": RebasedGaussian(DeepEnsemble(3, BASE), reference="first"),
    "rebased by outputs": RebasedGaussian(DeepEnsemble(3, BASE), by_outputs=True),
    "rebased for density": RebasedGaussian(DeepEnsemble(3, BASE), reference="gaussian"),
    "rebased, low rank": RebasedGaussian(DeepEnsemble(3, BASE), rank=2),
    "rebased, unit by unit": RebasedGaussian(DeepEnsemble(3, BASE), per_unit=True),
    "not rebased": RebasedGaussian(DeepEnsemble(3, BASE), align=None),
    "rebased dropout": RebasedGaussian(MCDropout(BASE), samples=4),
    "rebased mean field": RebasedGaussian(MeanField(epochs=3), samples=4),
    "rebased last layer": RebasedGaussian(Laplace(subset=LastLayer()), samples=4),
    "SWAG of rank one": SWAG(rank=1, base=BASE, epochs=3),
    "multi-Laplace": MultiMode(Laplace(), 2, base=BASE),
}

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


def fitted(method, build=plain, seed=0):
    torch.manual_seed(0)
    return coset.fit(build(), data(), method=method, generator=torch.Generator().manual_seed(seed))


BOTH = [(plain, name) for name in METHODS] + [(normalised, name) for name in NORMALISED]


@pytest.mark.parametrize(("build", "name"), BOTH)
def test_draws_are_stacks_of_the_network(name, build):
    predictor = fitted(METHODS[name], build)
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


@pytest.mark.parametrize("name", METHODS)
def test_equal_seeds_are_bitwise_equal(name):
    first, again, other = (fitted(METHODS[name], seed=seed) for seed in (0, 0, 1))
    inputs = data()[0]
    assert torch.equal(first(inputs).members, again(inputs).members)
    assert not torch.equal(first(inputs).members, other(inputs).members)


@pytest.mark.parametrize(("build", "name"), BOTH)
def test_files_give_the_same_predictions(name, build, tmp_path):
    predictor = fitted(METHODS[name], build)
    predictor.save(tmp_path / "posterior.safetensors")
    again = coset.load(tmp_path / "posterior.safetensors", build())
    inputs = data()[0]
    assert torch.equal(predictor(inputs).members, again(inputs).members)


@pytest.mark.parametrize("name", METHODS)
def test_the_module_and_torchs_randomness_stay_as_they_were(name):
    module = plain()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    coset.fit(module, data(), method=METHODS[name])
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", METHODS)
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
    posterior = fitted(METHODS[name]).posterior
    with pytest.raises(CosetError, match="needed at least one"):
        posterior.sample(0, generator=torch.Generator())


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
    assert len(fitted(METHODS["multi-SWAG"]).posterior.components) == 2


def test_modes_of_laplace_keep_their_own_statistics(generator):
    posterior = fitted(METHODS["multi-Laplace"], normalised).posterior
    names = {name for part in posterior.components for name in part.fixed}
    assert any(name.endswith("running_mean") for name in names)
    drawn = posterior.sample(2, generator=generator)  # one of each mode
    assert all(not torch.equal(drawn[name][0], drawn[name][1]) for name in names)
