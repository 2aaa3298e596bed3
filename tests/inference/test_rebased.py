"""The compact representation, on samples that are one network moved along its orbit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coset import (
    HMC,
    SGLD,
    SWAG,
    CosetError,
    Cyclical,
    DeepEnsemble,
    MaximumAPosteriori,
    MeanField,
    MultiMode,
    RebasedGaussian,
    discover,
)
from coset.alignment.by_weights import ByWeights
from coset.bayes import Categorical, GaussianPrior, Problem, as_batches
from coset.inference.compacting import (
    Places,
    by_likelihood,
    find_places,
    low_rank,
    moved,
    unit_blocks,
)
from coset.inference.diagnostics import effective_sample_size, r_hat
from coset.inference.foresight import expected_members
from coset.posterior.families import FitReport, Mixture, Samples
from coset.weights import functionalise, stack, unstack, weights_of


@pytest.fixture
def net(double):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.fixture
def problem(net):
    inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    data = as_batches((inputs, (inputs[:, 0] > 0).long()))
    return Problem(functionalise(net), Categorical(), GaussianPrior(1.0), data)


@pytest.fixture
def scrambled(net, generator):
    """Forty noisy copies of one network, each moved by a random element of its group."""
    group, centre = discover(net, torch.zeros(1, 3)), weights_of(net)
    members = []
    for _ in range(40):
        noisy = {
            name: w + 0.01 * torch.randn(w.shape, generator=generator) for name, w in centre.items()
        }
        members.append(group.act(group.sample(generator=generator), noisy))
    return group, centre, stack(members)


def test_alignment_recovers_the_cloud(problem, scrambled, generator):
    group, _, members = scrambled
    separate = unstack(members)
    places = find_places(
        group, separate, by=ByWeights(), to_mean=True, rounds=100, generator=generator
    )
    assert places.settled
    aligned = list(moved(group, places, separate))
    spread = problem.network.layout.flatten(stack(aligned)).std(0)
    # 40 samples: a standard deviation is off by a factor 1 ± 4 / √80 at most (61 weights, 4σ)
    assert float(spread.max()) < 0.01 * 1.5
    functions = problem.network.apply
    inputs = problem.train.inputs
    for before, after in zip(separate, aligned, strict=True):
        torch.testing.assert_close(functions(before, inputs), functions(after, inputs))


def test_the_highest_density_tells_units_apart_by_their_spread(net, generator):
    """Where units differ only in how certain their weights are, means and distances say nothing.

    Two units of mean zero, one with a deviation of 0.1, one of 2; half of the samples have them
    exchanged.  The density finds out which is which, and every round raises it.
    """
    small = nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 8))
    group = discover(small, torch.zeros(1, 8))
    stds = torch.tensor([0.1, 2.0])
    members = []
    for k in range(60):
        noise = {n: torch.randn(w.shape, generator=generator) for n, w in weights_of(small).items()}
        noise["0.weight"] *= stds[:, None]
        noise["0.bias"] *= stds
        noise["2.weight"] *= stds
        swapped = {
            "0.weight": noise["0.weight"].flip(0),
            "0.bias": noise["0.bias"].flip(0),
            "2.weight": noise["2.weight"].flip(1),
            "2.bias": noise["2.bias"],
        }
        members.append(noise if k % 3 else swapped)
    begin = Places(tuple(group.identity() for _ in members))
    places = by_likelihood(group, members, begin, rounds=20, generator=generator)
    assert places.settled
    sizes = torch.stack([w["0.weight"].std(1) for w in moved(group, places, members)])
    assert bool((sizes[:, 0] < sizes[:, 1]).all()) or bool((sizes[:, 0] > sizes[:, 1]).all())


@pytest.mark.parametrize("settings", [{"reference": "gaussian"}, {"by_outputs": True}])
def test_other_ways_recover_the_cloud_too(settings, problem, scrambled, generator):
    _, centre, members = scrambled
    fitted = RebasedGaussian(**settings).compact(problem, Samples(members), generator=generator)
    assert not fitted.report.warnings
    truth = problem.network.apply(centre, problem.train.inputs)
    found = problem.network.apply(fitted.mean, problem.train.inputs)
    assert float((found - truth).abs().max()) < 0.05
    assert float(max(std.max() for std in fitted.std.values())) < 0.01 * 1.5


def test_without_alignment_the_gaussian_is_that_of_the_scrambled_samples(problem, scrambled):
    _, _, members = scrambled
    method = RebasedGaussian(align=None)
    fitted = method.compact(problem, Samples(members), generator=torch.Generator())
    for name, tensor in members.items():
        torch.testing.assert_close(fitted.mean[name], tensor.mean(0))
        torch.testing.assert_close(fitted.std[name], tensor.std(0))


def test_rebased_predictions_are_those_of_the_network(problem, scrambled, generator):
    _, centre, members = scrambled
    inputs = problem.train.inputs
    truth = problem.network.apply(centre, inputs)

    def error(method):
        fitted = method.compact(problem, Samples(members), generator=generator)
        return float((problem.network.apply(fitted.mean, inputs) - truth).abs().max())

    assert error(RebasedGaussian()) < 0.05
    assert error(RebasedGaussian(reference="first")) < 0.05
    assert error(RebasedGaussian(align=None)) > 0.1


def test_full_rank_is_the_sample_covariance(generator):
    samples = {"a": torch.randn(7, 2, 2, generator=generator).double()}
    flat = samples["a"].flatten(1)
    fitted = low_rank(samples, 6, {}, FitReport())
    factors, std = fitted.factors["a"].flatten(1), fitted.std["a"].flatten()
    torch.testing.assert_close(factors.T @ factors + std.square().diag(), flat.T.cov())
    some = low_rank(samples, 2, {}, FitReport())
    factors, std = some.factors["a"].flatten(1), some.std["a"].flatten()
    torch.testing.assert_close(factors.square().sum(0) + std.square(), flat.var(0))


def test_unit_blocks_have_the_covariance_of_each_unit(generator):
    samples = {
        "layer.weight": torch.randn(30, 2, 3, generator=generator).double(),
        "layer.bias": torch.randn(30, 2, generator=generator).double(),
    }
    blocks = unit_blocks(samples, {}, FitReport())
    drawn = blocks.sample(40_000, generator=generator)
    for unit in range(2):
        rows, wanted = (
            torch.cat([d["layer.weight"][:, unit], d["layer.bias"][:, unit, None]], 1)
            for d in (drawn, samples)
        )
        # entries have standard errors of about 1.5 / √40000 = 0.0075: five of them
        assert float((rows.T.cov() - wanted.T.cov()).abs().max()) < 0.04
    between = torch.cat([drawn["layer.weight"][:, 0, :1], drawn["layer.weight"][:, 1, :1]], 1)
    assert abs(float(between.T.corrcoef()[0, 1])) < 5 / 40_000**0.5


def test_samples_one_at_a_time_give_the_same_gaussian(problem, scrambled):
    _, _, members = scrambled
    method = RebasedGaussian()
    whole = method.compact(problem, Samples(members), generator=torch.Generator().manual_seed(0))
    read = method.compact_stream(
        problem, unstack(members), generator=torch.Generator().manual_seed(0)
    )
    for name in whole.mean:
        torch.testing.assert_close(whole.mean[name], read.mean[name])
        torch.testing.assert_close(whole.std[name], read.std[name])


def test_samples_one_at_a_time_without_alignment(problem, scrambled):
    _, _, members = scrambled
    method = RebasedGaussian(align=None)
    read = method.compact_stream(problem, unstack(members), generator=torch.Generator())
    for name, tensor in members.items():
        torch.testing.assert_close(read.mean[name], tensor.mean(0))
        torch.testing.assert_close(read.std[name], tensor.std(0))


def chains_of(count, stack):
    return Samples(stack, report=FitReport(diagnostics={"chains": float(count)}))


def test_chains_are_measured_after_alignment(problem, scrambled):
    """Forty independent samples as four chains, from one run and from two modes of two chains."""
    group, _, members = scrambled
    halves = [{name: w[part] for name, w in members.items()} for part in (slice(20), slice(20, 40))]
    places = find_places(
        group,
        unstack(members),
        by=ByWeights(),
        to_mean=True,
        rounds=100,
        generator=torch.Generator().manual_seed(0),
    )
    aligned = problem.network.layout.flatten(stack(list(moved(group, places, unstack(members)))))
    by_chain = aligned.unflatten(0, (4, 10)).transpose(0, 1)
    for posterior in (chains_of(4, members), Mixture(tuple(chains_of(2, half) for half in halves))):
        fitted = RebasedGaussian().compact(
            problem, posterior, generator=torch.Generator().manual_seed(0)
        )
        found = fitted.report.diagnostics
        assert found["chains"] == 4
        assert found["r_hat_aligned_weights"] == pytest.approx(float(r_hat(by_chain).max()))
        wanted = float(effective_sample_size(by_chain).min())
        assert found["effective_draws_aligned_weights"] == pytest.approx(wanted)
    weighed = Mixture(posterior.components, torch.tensor([0.0, 1.0]))  # drawn, so no chains
    fitted = RebasedGaussian().compact(problem, weighed, generator=torch.Generator().manual_seed(0))
    assert "r_hat_aligned_weights" not in fitted.report.diagnostics


def test_chains_that_differ_after_alignment_are_reported(problem, scrambled):
    _, _, members = scrambled
    apart = {name: w.clone() for name, w in members.items()}
    last = list(apart)[-1]
    apart[last][:20] += 5  # two chains here, two there, which no permutation brings together
    fitted = RebasedGaussian().compact(
        problem, chains_of(4, apart), generator=torch.Generator().manual_seed(0)
    )
    assert any("after alignment" in warning for warning in fitted.report.warnings)


def test_label_switches_stop_at_the_ends_of_chains(problem, scrambled, generator):
    group, centre, _ = scrambled
    swap = group.identity()
    first = group.permutations[0].name
    table = swap.permutations[first].clone()
    table[[0, 1]] = table[[1, 0]]
    swap.permutations[first].copy_(table)
    moved_centre = group.act(swap, centre)
    # chains of four: one stays, one is elsewhere all the time, one changes after its second state
    members = stack([*[centre] * 4, *[moved_centre] * 4, *[centre] * 2, *[moved_centre] * 2])
    posterior = chains_of(3, members)
    counts = RebasedGaussian().label_switching(problem, posterior, generator=generator)
    assert counts.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    fitted = RebasedGaussian().compact(problem, posterior, generator=generator)
    found = fitted.report.diagnostics["transpositions_between_neighbours"]
    assert found == pytest.approx(1 / 9)
    one_run = RebasedGaussian().label_switching(problem, Samples(members), generator=generator)
    assert one_run.tolist() == [[0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0]]
    with pytest.raises(CosetError, match="align=None"):
        RebasedGaussian(align=None).label_switching(problem, posterior, generator=generator)


def test_reports_say_how_units_changed_places(problem, scrambled, generator):
    _, _, members = scrambled
    fitted = RebasedGaussian().compact(problem, Samples(members), generator=generator)
    # random permutations of 6 and of 5: n - H_n = 3.55 and 2.72 transpositions on average
    assert 4 < fitted.report.diagnostics["transpositions"] < 8.5
    assert 4 < fitted.report.diagnostics["transpositions_between_neighbours"] < 8.5


@pytest.mark.parametrize("align", [None, ByWeights()])
def test_the_evidence_of_the_inner_posterior_is_not_that_of_the_gaussian(problem, align):
    inner = MeanField(epochs=1)
    method = RebasedGaussian(inner, samples=4, align=align)
    report = method.fit(problem, generator=torch.Generator().manual_seed(0)).report
    assert report.log_evidence is None
    assert "evidence_bound" not in report.diagnostics
    assert "divergence" in report.diagnostics


BASE = MaximumAPosteriori(epochs=1)
VAIN = {
    "ensemble": (DeepEnsemble(3, BASE), 9, "3 samples for a rank of 9"),
    "one network": (BASE, 0, "1 samples for a rank of 0"),
    "chains": (HMC(draws=3, chains=2), 7, "6 samples for a rank of 7"),
    "cycles": (SGLD(schedule=Cyclical(2, 10, 0.5, 2), chains=1), 5, "4 samples for a rank of 5"),
    "modes": (MultiMode(DeepEnsemble(2, BASE), 2), 5, "4 samples for a rank of 5"),
    "a density": (MeanField(epochs=1), 101, "100 samples for a rank of 101"),
    "SWAG": (SWAG(rank=2, base=BASE, epochs=2), 101, "100 samples for a rank of 101"),
    "modes of a density": (MultiMode(MeanField(epochs=1), 2), 101, "100 samples for a rank of 101"),
}


@pytest.mark.parametrize("name", VAIN)
def test_more_rank_than_samples_is_refused_before_the_inner_method_runs(name, problem):
    inner, rank, words = VAIN[name]
    told = []
    with pytest.raises(CosetError, match=words):
        RebasedGaussian(inner, rank).fit(
            problem, generator=torch.Generator(), progress=lambda *line: told.append(line)
        )
    assert not told


def test_draws_of_normalised_networks_are_counted():
    method = SWAG(rank=2, base=BASE, epochs=2, members=7)
    assert expected_members(method, normalised=True) == 7
    assert expected_members(MultiMode(method, 3), normalised=True) == 21
    assert expected_members(RebasedGaussian()) is None


class Own:
    """A method that tells no progress."""

    def fit(self, problem, *, start=None, generator):
        return DeepEnsemble(3, BASE).fit(problem, generator=generator)


def test_a_method_of_ones_own_need_not_tell_its_progress(problem):
    generator = torch.Generator().manual_seed(0)
    method = RebasedGaussian(Own(), 2)
    assert method.fit(problem, generator=generator, progress=print).rank == 2


def test_more_rank_than_samples_of_a_method_of_ones_own_is_refused(problem):
    with pytest.raises(CosetError, match="3 samples for a rank of 4"):
        RebasedGaussian(Own(), 4).fit(problem, generator=torch.Generator())


def test_a_network_that_cannot_be_traced_is_refused_before_the_inner_method_runs(problem):
    class Untraceable(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            return outputs if float(outputs.detach().sum()) != 0.5 else -outputs

    told = []
    other = replace(problem, network=functionalise(Untraceable(3, 2)))
    with pytest.raises(CosetError):
        RebasedGaussian(DeepEnsemble(3, BASE)).fit(
            other, generator=torch.Generator(), progress=lambda *line: told.append(line)
        )
    assert not told


@pytest.mark.parametrize(
    "settings",
    [
        {"rank": -1},
        {"rounds": 0},
        {"reference": "last"},
        {"rank": 2, "per_unit": True},
        {"by_outputs": True, "align": None},
        {"inner": DeepEnsemble},
        {"inner": "ensemble"},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(CosetError):
        RebasedGaussian(**settings)
