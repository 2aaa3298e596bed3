import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coset
from coset import (
    SGD,
    SGHMC,
    Adam,
    Categorical,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    GaussianPrior,
    Laplace,
    Linearised,
    MaximumAPosteriori,
    Mixture,
    MonteCarlo,
    MonteCarloFisher,
    PointMass,
    Samples,
    fit,
    functionalise,
    load,
    stack,
    weights_of,
)
from coset.predictor import Predictor
from coset.store import load_record, save_record

QUICK = MaximumAPosteriori(epochs=3)


def module():
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture
def data():
    inputs = torch.randn(40, 2)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 1).long()


@pytest.fixture
def ensemble(data):
    return fit(module(), data, method=DeepEnsemble(members=3, base=QUICK))


def test_three_lines_are_enough(data):
    predictor = fit(module(), data, method=MaximumAPosteriori(epochs=200))
    predictions = predictor(data[0])
    assert predictions.mean.shape == (40, 3)
    assert (predictions.mean.argmax(1) == data[1]).float().mean() > 0.8


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", [None, QUICK, SGHMC(burn_in=2, draws=2, chains=1, thinning=1)])
def test_torchs_modes_without_gradients_change_nothing(data, mode, method):
    """Neither of what is fitted nor of what is predicted, by tensors made there or before."""
    expected = fit(trained := module().eval(), data, method=method)
    inputs, targets = data
    with mode():
        found = fit(trained, (inputs.clone(), targets.clone()), method=method)
        predictions = found(inputs.clone())
        again = expected(inputs.clone())
        scores = coset.evaluate(found, TensorDataset(inputs, targets), metrics=["accuracy"])
    for each in (predictions, again, found(inputs)):
        assert torch.equal(each.mean, expected(inputs).mean)
    assert scores == coset.evaluate(expected, data, metrics=["accuracy"])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_joint_and_updated_predictions_in_torchs_modes_without_gradients(data, mode):
    predictor, (inputs, targets) = fit(module().eval(), data), data
    with mode():
        joint = predictor.joint(inputs[:4].clone()).covariance
        updated = predictor.update((inputs[:9].clone(), targets[:9].clone()))(inputs).variance
    assert torch.equal(joint, predictor.joint(inputs[:4]).covariance)
    assert torch.equal(updated, predictor.update((inputs[:9], targets[:9]))(inputs).variance)


def test_fitting_does_not_change_the_module(data):
    given = module()
    before = copy.deepcopy(given.state_dict())
    fit(given, data, method=QUICK)
    assert given.training
    assert all(torch.equal(before[name], tensor) for name, tensor in given.state_dict().items())


def test_equal_calls_give_equal_results(data):
    given = module()
    first, second = (fit(given, data, method=QUICK)(data[0]).mean for _ in range(2))
    assert torch.equal(first, second)
    other = fit(given, data, method=QUICK, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(other(data[0]).mean, first)


class Random(nn.Module):
    """Draws from torch's own generator in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, inputs):
        return self.inner(inputs + torch.randn_like(inputs))


@pytest.mark.parametrize("method", [QUICK, DeepEnsemble(2, QUICK), coset.Laplace()], ids=repr)
@pytest.mark.parametrize("rule", [MonteCarlo(4), None], ids=repr)
def test_networks_that_draw_by_themselves_predict_by_the_generator(data, method, rule):
    predictor = fit(Random(), data, method=method)

    def found(seed):
        generator = torch.Generator().manual_seed(seed)
        return [predictor(data[0], rule=rule, generator=generator).mean for _ in range(2)]

    state = torch.get_rng_state()
    first = found(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert all(map(torch.equal, found(3), first))
    assert not torch.equal(*first)
    assert torch.equal(predictor(data[0], rule=rule).mean, predictor(data[0], rule=rule).mean)


def test_networks_that_draw_by_themselves_leave_torchs_randomness_alone(data):
    predictor = fit(Random(), data, method=coset.Laplace(tuning=None))
    state = torch.get_rng_state()
    first = predictor.joint(data[0][:5]).matrix, predictor.update(data)(data[0]).mean
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    again = predictor.joint(data[0][:5]).matrix, predictor.update(data)(data[0]).mean
    assert all(map(torch.equal, again, first))


def test_data_may_come_as_a_loader(data):
    given = module()
    loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)
    a, b = (fit(given, form, method=QUICK)(data[0]).mean for form in (data, loader))
    torch.testing.assert_close(a, b)


def test_inputs_may_be_arrays(data):
    predictor = fit(module(), data)
    inputs = data[0][:4]
    assert torch.equal(predictor(inputs.numpy()).mean, predictor(inputs).mean)
    assert torch.equal(predictor.joint(inputs.numpy()).mean, predictor.joint(inputs).mean)


def test_training_may_begin_from_given_weights(data):
    given = module()
    still = MaximumAPosteriori(SGD(1e-12), epochs=1)
    posterior = fit(given, data, method=still, start=weights_of(given)).posterior
    torch.testing.assert_close(posterior.weights["0.weight"], given[0].weight.detach())
    fresh = fit(given, data, method=still).posterior
    assert not torch.allclose(fresh.weights["0.weight"], given[0].weight)


def test_progress_ends_at_one(data):
    seen = []
    fit(module(), data, method=QUICK, progress=lambda fraction, line: seen.append(fraction))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_learnt_noise_reaches_the_predictions():
    inputs = torch.randn(200, 1)
    targets = 2 * inputs + 0.3 * torch.randn(200, 1)
    method = MaximumAPosteriori(Adam(0.05), epochs=100)
    predictor = fit(nn.Linear(1, 1), (inputs, targets), method=method, likelihood=GaussianNoise())
    assert isinstance(predictor.likelihood, GaussianNoise)
    assert predictor.likelihood.std == pytest.approx(0.3, rel=0.2)
    variance = predictor(inputs).variance
    torch.testing.assert_close(variance, torch.full_like(variance, predictor.likelihood.std**2))


def test_a_call_may_take_another_rule(ensemble, data):
    asked = []

    def rule(posterior, network, likelihood, inputs, *, generator):
        asked.append(generator.initial_seed())
        return MonteCarlo()(posterior, network, likelihood, inputs, generator=generator)

    ensemble(data[0], rule=rule)
    ensemble(data[0], rule=rule, generator=torch.Generator().manual_seed(5))
    assert asked == [0, 5]


def test_log_evidence_is_that_of_the_report(ensemble):
    assert ensemble.log_evidence is None
    report = replace(ensemble.posterior.report, log_evidence=-3.5)
    posterior = replace(ensemble.posterior, report=report)
    assert replace(ensemble, posterior=posterior).log_evidence == -3.5


def test_bad_data_is_refused_before_training(data):
    with pytest.raises(CosetError, match="labels from 1 to 3"):
        fit(module(), (data[0], data[1] + 1))
    with pytest.raises(CosetError, match=r"shape \(40, 1\)"):
        fit(module(), (data[0][:, :1], data[1]))
    with pytest.raises(CosetError, match="same number of rows"):
        fit(module(), (data[0], data[1][:3]))


@pytest.mark.parametrize(
    ("given", "method", "words"),
    [
        ("net", None, "got a str as the module"),
        (nn.Linear(2, 3), DeepEnsemble, r"write method=DeepEnsemble\(\)"),
        (nn.Linear(2, 3), "laplace", "got method='laplace'"),
    ],
)
def test_slips_of_the_pen_are_named(data, given, method, words):
    with pytest.raises(CosetError, match=words):
        fit(given, data, method=method)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"likelihood": "gaussian"}, "got likelihood='gaussian'; needed Likelihood"),
        ({"likelihood": Categorical}, r"the class Categorical .* likelihood=Categorical\(\)"),
        ({"prior": 1.0}, r"got prior=1\.0; .* write prior=GaussianPrior\(…\)"),
        ({"prior": 0.0}, r"got prior=0\.0; needed GaussianPrior or None"),
        (
            {"progress": 3},
            "got progress=3; needed a function of 2 arguments, .* or True, False, None",
        ),
        ({"progress": lambda done: None}, "needed a function of 2 arguments"),
    ],
)
def test_wrong_kinds_are_named_before_data_are_read(settings, words):
    with pytest.raises(CosetError, match=words):
        fit(module(), "no data", **settings)


@pytest.mark.parametrize("rule", ["linearised", coset.Probit(), MonteCarlo, 3], ids=repr)
def test_what_is_no_rule_is_named(data, ensemble, rule):
    with pytest.raises(CosetError, match=r"got .*; needed PredictionRule or None"):
        ensemble(data[0], rule=rule)


def test_a_seed_in_the_place_of_a_generator_is_named(data, ensemble):
    with pytest.raises(CosetError, match=r"got generator=3.*torch\.Generator\(\)\.manual_seed"):
        fit(module(), data, generator=3)
    with pytest.raises(CosetError, match="got generator=3"):
        ensemble(data[0], generator=3)


@pytest.mark.parametrize("rule", [MonteCarlo(), Linearised()])
def test_inputs_that_the_network_refuses_are_named(data, rule):
    predictor = fit(nn.Linear(2, 3), data)
    with pytest.raises(CosetError, match=r"inputs of shape \(4, 7\).* the network refused them"):
        predictor(torch.zeros(4, 7), rule=rule)
    with pytest.raises(CosetError, match=r"inputs\[None\] for a single one"):
        predictor(torch.zeros(2), rule=rule)


def test_a_method_of_ones_own_will_do(data):
    class Fixed:
        def fit(self, problem, *, start=None, generator):
            return PointMass(problem.network.weights)

    for progress in (None, lambda done, line: None):  # it need not tell any
        predictor = fit(module(), data, method=Fixed(), progress=progress)
        assert isinstance(predictor.posterior, PointMass)


def saved(predictor, tmp_path):
    path = tmp_path / "predictor.safetensors"
    predictor.save(path)
    return path


def test_a_saved_predictor_predicts_the_same(ensemble, data, tmp_path):
    path = saved(ensemble, tmp_path)
    again = load(path, module())
    before, after = ensemble(data[0]), again(data[0])
    assert torch.equal(before.members, after.members)
    assert torch.equal(before.variance, after.variance)
    assert again.likelihood == Categorical()
    assert again.prior == ensemble.prior
    assert again.posterior.report.diagnostics == ensemble.posterior.report.diagnostics


def test_a_posterior_over_a_part_brings_the_rest_along(data, tmp_path):
    given = module()
    network = functionalise(given)
    heads = [{"3.bias": torch.randn(3)} for _ in range(4)]
    predictor = Predictor(network, Samples(stack(heads)), Categorical())
    again = load(saved(predictor, tmp_path), module())
    assert torch.equal(predictor(data[0]).members, again(data[0]).members)
    assert torch.equal(again.network.weights["0.weight"], given[0].weight)


class Routed(nn.Module):
    """Reads its inputs in an order, and through a mask, that are drawn when it is built."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("order", torch.randperm(40))
        self.register_buffer("mask", torch.rand(40) < 0.5)

    def forward(self, inputs):
        repeated = inputs.repeat(1, 20)[:, self.order] * self.mask
        return self.layer(repeated.unflatten(1, (2, 20)).mean(2))


@pytest.mark.parametrize("method", [QUICK, coset.Laplace()], ids=["trains", "stays"])
def test_buffers_of_whole_numbers_come_back(method, data, tmp_path):
    predictor = fit(Routed(), data, method=method)
    again = load(saved(predictor, tmp_path), Routed())
    assert torch.equal(predictor(data[0]).members, again(data[0]).members)
    tensors, facts = load_record(tmp_path / "predictor.safetensors")
    shorter = {**tensors, "network.order": tensors["network.order"][:30]}
    save_record(tmp_path / "predictor.safetensors", shorter, facts)
    with pytest.raises(CosetError, match=r"'order' of shape \(30,\); needed \(40,\)"):
        load(tmp_path / "predictor.safetensors", Routed())


def test_mixtures_noise_priors_and_rules_come_back(tmp_path):
    network = functionalise(nn.Linear(2, 2))
    point = PointMass(network.weights)
    predictor = Predictor(
        network,
        Mixture((point, Mixture((point, point))), torch.tensor([0.3, 0.7]).log()),
        GaussianNoise(torch.tensor([0.1, 0.2])),
        GaussianPrior({"weight": torch.tensor([[1.0], [2.0]]), "bias": 3.0}),
        MonteCarlo(draws=5),
    )
    again = load(saved(predictor, tmp_path), nn.Linear(2, 2))
    inputs = torch.randn(3, 2)
    assert torch.equal(predictor(inputs).variance, again(inputs).variance)
    assert again.rule == MonteCarlo(draws=5)
    assert torch.equal(again.prior.precision["weight"], predictor.prior.precision["weight"])
    assert len(again.posterior.components) == 2


def test_loading_does_not_change_the_module(ensemble, tmp_path):
    given = module()
    before = copy.deepcopy(given.state_dict())
    load(saved(ensemble, tmp_path), given)
    assert all(torch.equal(before[name], tensor) for name, tensor in given.state_dict().items())


def test_another_architecture_is_refused_by_name_and_shape(ensemble, tmp_path):
    path = saved(ensemble, tmp_path)
    wider = nn.Sequential(nn.Linear(2, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
    with pytest.raises(CosetError, match=r"'0\.weight' of shape \(6, 2\)"):
        load(path, wider)
    with pytest.raises(CosetError, match=r"unknown '1\.weight'"):
        load(path, nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)))
    deeper = nn.Sequential(*module(), nn.Linear(3, 3))
    with pytest.raises(CosetError, match=r"no '4\.weight'"):
        load(path, deeper)


def test_a_flipped_byte_anywhere_is_noticed(tmp_path):
    network = functionalise(nn.Linear(1, 1))
    path = saved(Predictor(network, PointMass(network.weights), Categorical()), tmp_path)
    content = path.read_bytes()
    for position in range(0, len(content), 5):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CosetError):
            load(path, nn.Linear(1, 1))


def test_other_records_are_refused(ensemble, tmp_path):
    path = saved(ensemble, tmp_path)
    tensors, facts = load_record(path)
    for changes, message in (
        ({"format": 99}, "format 99"),
        ({"kind": "run"}, "'run'"),
        ({"posterior": {"family": "PointMass", "fields": {"weights": 3}}}, "whose weights is 3"),
        ({"posterior": {"family": "Popen", "fields": {}}}, "Popen"),
        ({"network": {}}, "no '"),
    ):
        save_record(path, tensors, {**facts, **changes})
        with pytest.raises(CosetError, match=message):
            load(path, module())


def test_a_refused_save_leaves_nothing(ensemble, tmp_path):
    class Own(Categorical):
        pass

    with pytest.raises(CosetError, match="likelihood of type Own"):
        replace(ensemble, likelihood=Own()).save(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CosetError, match="to exist"):
        ensemble.save(tmp_path / "missing" / "x.safetensors")


def test_the_file_says_who_wrote_it(ensemble, tmp_path):
    _, facts = load_record(saved(ensemble, tmp_path))
    assert facts["coset"] == coset.__version__
    assert facts["format"] == 1


@pytest.mark.parametrize("method", [QUICK, coset.Laplace()], ids=["trains", "stays"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda start: "weights", "got start='weights'; needed a dictionary or None"),
        (lambda start: {n: w.numpy() for n, w in start.items()}, "of type ndarray; needed tensors"),
        (lambda start: {n: w.double() for n, w in start.items()}, r"float64; needed torch.float32"),
        (lambda start: dict.fromkeys(start), "of type NoneType; needed tensors"),
    ],
    ids=["word", "arrays", "doubles", "nothing"],
)
def test_weights_to_start_from_are_tensors_of_the_type_of_the_network(data, method, change, words):
    with pytest.raises(CosetError, match=words):
        fit(module(), data, method=method, start=change(weights_of(module())))


def test_a_file_is_read_into_a_module_of_its_type(ensemble, tmp_path):
    path = saved(ensemble, tmp_path)
    with pytest.raises(
        CosetError, match=r"of type torch.float32; needed torch.float64, as the module"
    ):
        load(path, module().double())
    tensors, facts = load_record(path)
    del facts["types"]  # as earlier versions wrote them
    save_record(path, tensors, facts)
    load(path, module())


def test_what_is_no_path_and_no_module_is_named(ensemble, tmp_path):
    with pytest.raises(CosetError, match="got path=None; needed a text or PathLike"):
        ensemble.save(None)
    with pytest.raises(CosetError, match="got path=None; needed a text or PathLike"):
        load(None, module())
    with pytest.raises(CosetError, match="got the class Linear as the module"):
        load(saved(ensemble, tmp_path), nn.Linear)


def test_inputs_that_are_not_finite_are_named(data):
    predictor = fit(module(), data)
    inputs = data[0].clone()
    inputs[3, 1] = torch.nan
    for call in (predictor, predictor.joint):
        with pytest.raises(CosetError, match="got inputs that are not finite, in example 3;"):
            call(inputs)


def test_inputs_of_another_precision_are_told_which_one_is_needed(ensemble, data):
    for predictor in (ensemble, fit(module(), data)):
        with pytest.raises(CosetError, match=r"the weights are torch.float32: give inputs of that"):
            predictor(data[0].double())


@pytest.mark.parametrize("size", [9, 10])
def test_outputs_with_many_pixels_are_predicted_by_samples_and_it_is_said(size):
    """Three classes: 243 outputs are still exact; 300 are not."""
    torch.manual_seed(0)
    pictures, labels = torch.randn(2, 1, size, size), torch.randint(3, (2, size, size))
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))
    method = Laplace(MonteCarloFisher(), tuning=None)
    predictor = fit(net, (pictures, labels), method=method)
    told = [note for note in predictor.posterior.report.warnings if "64 samples" in note]
    assert len(told) == (size == 10)
    assert predictor.rule.samples == (64 if size == 10 else None)
    if size == 10:
        exact = replace(predictor.rule, samples=None)
        ratio = predictor(pictures).variance / predictor(pictures, rule=exact).variance
        # five standard deviations of one ratio, as if all were the same: one alarm in a million
        assert abs(float(ratio.mean()) - 1) < 5 * (2 / 64) ** 0.5
        assert (ratio > 0).all()
        assert ratio.std() < 0.5
