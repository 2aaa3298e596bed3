from types import SimpleNamespace

import pytest
import torch
from metric_cases import ensemble
from torch.utils.data import DataLoader, TensorDataset

import coset.metrics as metrics
from coset.bayes import Bernoulli, Categorical, GaussianNoise, HeteroscedasticGaussian
from coset.errors import CosetError
from coset.metrics import Metric, evaluate
from coset.posterior.predict import Predictions


def answer(members, variance=None):
    return SimpleNamespace(mean=members.mean(0), members=members, variance=variance)


class Table:
    """A predictor that looks the members up: its inputs are row numbers."""

    def __init__(self, members, variance=None):
        self.members, self.variance, self.rows = members, variance, 0

    def __call__(self, inputs):
        self.rows += len(inputs)
        variance = None if self.variance is None else self.variance[inputs]
        return answer(self.members[:, inputs], variance)


@pytest.fixture
def classifier(generator):
    """700 inputs, 200 outliers behind them, so that there is more than one batch."""
    table = Table(ensemble(3, 900, 4, generator=generator))
    return table, torch.arange(700), torch.randint(4, (700,), generator=generator)


EXPECTED = {
    "accuracy",
    "negative_log_likelihood",
    "brier",
    "expected_calibration_error",
    "adaptive_calibration_error",
    "classwise_calibration_error",
    "area_under_risk_coverage",
    "entropy",
    "mutual_information",
    "disagreement",
}
DETECTION = {"auroc", "aupr", "fpr_at_95"}


def test_classification_is_what_the_functions_say(classifier):
    table, inputs, y = classifier
    record = evaluate(table, (inputs, y), outliers=torch.arange(700, 900))
    assert set(record) == EXPECTED | DETECTION
    assert all(type(value) is float for value in record.values())
    members = table.members[:, :700]
    p = members.mean(0)
    for name in EXPECTED - {"entropy", "mutual_information", "disagreement"}:
        assert record[name] == pytest.approx(float(getattr(metrics, name)(p, y)), abs=1e-12)
    assert record["entropy"] == pytest.approx(float(metrics.entropy(p).mean()), abs=1e-12)
    for name in ("mutual_information", "disagreement"):
        value = getattr(metrics, name)(members).mean()
        assert record[name] == pytest.approx(float(value), abs=1e-12)
    scores = metrics.maximum_probability_score(p)
    outliers = metrics.maximum_probability_score(table.members[:, 700:].mean(0))
    for name in DETECTION:
        assert record[name] == pytest.approx(float(getattr(metrics, name)(scores, outliers)))


def test_every_input_is_predicted_once(classifier):
    table, inputs, y = classifier
    evaluate(table, (inputs, y), outliers=torch.arange(700, 900), standard_error=3)
    assert table.rows == 900


def test_without_outliers_there_is_no_detection(classifier):
    table, inputs, y = classifier
    assert set(evaluate(table, (inputs, y))) == EXPECTED


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=99),
        lambda x, y: [(x[:9], y[:9]), (x[9:], y[9:])],
    ],
)
def test_data_come_in_many_forms(classifier, form):
    table, inputs, y = classifier
    outliers = form(torch.arange(700, 900), y[:200])
    record = evaluate(table, form(inputs, y), outliers=outliers)
    assert record == pytest.approx(
        evaluate(table, (inputs, y), outliers=torch.arange(700, 900)), abs=1e-12
    )


def test_arrays_and_batches_as_a_loader_yields_them(classifier):
    table, inputs, y = classifier
    others = torch.arange(700, 900)
    expected = evaluate(table, (inputs, y), outliers=others)
    batch = next(iter(DataLoader(TensorDataset(inputs, y), batch_size=700)))
    assert evaluate(table, batch, outliers=others.numpy()) == expected
    halves = [others[:100].numpy(), others[100:].numpy()]
    assert evaluate(table, [inputs.numpy(), y.numpy()], outliers=halves) == expected


def test_torchs_own_randomness_stays_as_it_was(classifier):
    table, inputs, y = classifier
    state = torch.get_rng_state()
    evaluate(table, TensorDataset(inputs, y), outliers=TensorDataset(torch.arange(700, 900)))
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_of_members_count(generator):
    """Members of a mixture that weigh nothing neither predict nor contradict."""
    members = ensemble(3, 40, 4, generator=generator)
    log_weights = torch.tensor([0.7, 0.2, 0.1]).log()

    def predictor(inputs):
        return Predictions(members[:, inputs], log_weights=log_weights)

    y = torch.randint(4, (40,), generator=generator)
    record = evaluate(predictor, (torch.arange(40), y))
    mean = torch.einsum("m,mnc->nc", log_weights.exp().double(), members)
    assert record["negative_log_likelihood"] == pytest.approx(
        float(metrics.negative_log_likelihood(mean, y)), rel=1e-6
    )
    own = torch.einsum("m,mn->n", log_weights.exp().double(), entropies(members))
    assert record["mutual_information"] == pytest.approx(
        float((entropies(mean) - own).mean()), rel=1e-5
    )
    assert record["disagreement"] == pytest.approx(
        float(metrics.disagreement(members, log_weights)), rel=1e-6
    )


def entropies(probabilities):
    return -(probabilities * probabilities.log()).sum(-1)


def test_chosen_metrics_and_rows_of_ones_own(classifier):
    table, inputs, y = classifier
    top_two = Metric(
        "top_two",
        lambda p, labels: (p.topk(2).indices == labels.unsqueeze(1)).any(1).double().mean(),
        ("probabilities", "labels"),
        "high",
    )
    record = evaluate(table, (inputs, y), metrics=["brier", top_two])
    assert list(record) == ["brier", "top_two"]
    assert record["top_two"] == pytest.approx(0.5, abs=0.1)


def test_another_score(classifier):
    table, inputs, y = classifier
    record = evaluate(
        table,
        (inputs, y),
        outliers=torch.arange(700, 900),
        metrics=["auroc"],
        score=lambda predictions: metrics.mutual_information(predictions.members),
    )
    members = table.members
    expected = metrics.auroc(
        metrics.mutual_information(members[:, :700]), metrics.mutual_information(members[:, 700:])
    )
    assert record["auroc"] == pytest.approx(float(expected))


def test_one_member_has_everything_but_pairs(classifier):
    table, inputs, y = classifier
    record = evaluate(Table(table.members[:1]), (inputs, y))
    assert set(record) == EXPECTED - {"disagreement"}
    assert record["mutual_information"] == pytest.approx(0, abs=1e-12)


def test_one_output_is_the_probability_of_yes(generator):
    p = torch.rand(2, 50, 1, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (50, 1), generator=generator)
    both = torch.cat([1 - p, p], 2)
    record = evaluate(Table(p), (torch.arange(50), y), outliers=torch.arange(9))
    expected = evaluate(Table(both), (torch.arange(50), y[:, 0]), outliers=torch.arange(9))
    assert record == pytest.approx(expected, abs=1e-12)


def test_bernoulli_outputs_are_questions_of_their_own(generator):
    """Three outputs an input, targets of any dtype, also as maps of pixels."""
    p = torch.rand(2, 30, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (30, 3), generator=generator)
    table = Table(p)
    table.likelihood = Bernoulli()
    record = evaluate(table, (torch.arange(30), y.double()), outliers=torch.arange(9))
    both = torch.stack([1 - p, p], -1).flatten(1, 2)
    expected = evaluate(Table(both), (torch.arange(90), y.flatten()))
    assert {name: record[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    table = Table(p.unsqueeze(-1))
    table.likelihood = Bernoulli()
    maps = evaluate(table, (torch.arange(30), y.unsqueeze(-1)))
    assert maps["brier"] == pytest.approx(record["brier"], abs=1e-12)
    with pytest.raises(CosetError, match="other than 0 and 1"):
        evaluate(table, (torch.arange(30), 2 * y.unsqueeze(-1)))


def test_standard_errors_come_as_extra_keys(classifier):
    """That of the accuracy is √(a (1 − a) / n), to a quarter with 100 resamples."""
    table, inputs, y = classifier
    outliers = torch.arange(700, 900)
    record = evaluate(table, (inputs, y), outliers=outliers, standard_error=100)
    names = EXPECTED | DETECTION
    assert set(record) == names | {f"{name}_standard_error" for name in names}
    a = record["accuracy"]
    expected = (a * (1 - a) / 700) ** 0.5
    assert record["accuracy_standard_error"] == pytest.approx(expected, rel=0.35)
    assert all(record[f"{name}_standard_error"] > 0 for name in names)
    assert record == evaluate(table, (inputs, y), outliers=outliers, standard_error=100)


@pytest.fixture
def regressor(generator):
    members = torch.randn(4, 600, 1, generator=generator, dtype=torch.float64)
    variance = torch.rand(600, 1, generator=generator, dtype=torch.float64) + 0.5
    y = members.mean(0) + torch.randn(600, 1, generator=generator, dtype=torch.float64)
    return Table(members, variance), torch.arange(600), y


REGRESSION = {
    "gaussian_negative_log_likelihood",
    "continuous_ranked_probability_score",
    "interval_coverage",
    "quantile_calibration_error",
}


def test_regression_is_what_the_functions_say(regressor):
    table, inputs, y = regressor
    record = evaluate(table, (inputs, y), outliers=inputs[:50], standard_error=3)
    mean = table.members.mean(0)
    for name in REGRESSION:
        value = float(getattr(metrics, name)(mean, table.variance, y))
        assert record[name] == pytest.approx(value, abs=1e-12)
    error = metrics.root_mean_squared_error(mean, y)
    assert record["root_mean_squared_error"] == pytest.approx(float(error), abs=1e-12)
    expected = metrics.auroc(table.variance[:, 0], table.variance[:50, 0])
    assert record["auroc"] == pytest.approx(float(expected))
    assert record == evaluate(table, (inputs, y[:, 0]), outliers=inputs[:50], standard_error=3)


@pytest.mark.parametrize("likelihood", [GaussianNoise(1.0), HeteroscedasticGaussian()])
def test_counts_are_numbers_where_the_noise_is_gaussian(generator, likelihood):
    """Zeros and ones too: they had been taken for classes of a mean that was no probability."""
    mean = torch.rand(3, 8, 1, generator=generator, dtype=torch.float64)
    table = Table(mean, torch.ones(8, 1, dtype=torch.float64))
    table.likelihood = likelihood
    y = torch.randint(2, (8,), generator=generator)
    record = evaluate(table, (torch.arange(8), y))
    assert record == evaluate(table, (torch.arange(8), y.double()))
    assert "interval_coverage" in record


def test_regression_without_variance_has_errors_only(regressor):
    table, inputs, y = regressor
    assert set(evaluate(Table(table.members), (inputs, y))) == {"root_mean_squared_error"}
    with pytest.raises(CosetError, match="no variance"):
        evaluate(Table(table.members), (inputs, y), outliers=inputs)


@pytest.fixture
def segmenter(generator):
    logits = torch.randn(3, 20, 4, 5, 6, generator=generator, dtype=torch.float64)
    return Table(logits.softmax(2)), torch.randint(4, (20, 5, 6), generator=generator)


def test_dense_tasks_count_every_pixel(segmenter):
    table, y = segmenter
    inputs = torch.arange(20)
    record = evaluate(table, (inputs, y), outliers=inputs[:4], standard_error=20)
    p = table.members.mean(0)
    rows, labels = p.movedim(1, -1).flatten(0, 2), y.flatten()
    for name in ("accuracy", "brier", "expected_calibration_error"):
        value = float(getattr(metrics, name)(rows, labels))
        assert record[name] == pytest.approx(value, abs=1e-12)
    overlap = metrics.mean_intersection_over_union(p, y)
    assert record["mean_intersection_over_union"] == pytest.approx(float(overlap), abs=1e-7)
    pixels = table.members.movedim(2, -1).flatten(1, 3)
    value = metrics.mutual_information(pixels).mean()
    assert record["mutual_information"] == pytest.approx(float(value), abs=1e-12)
    assert record["mean_intersection_over_union_standard_error"] > 0
    for name in ("adaptive_calibration_error", "area_under_risk_coverage"):
        running = metrics.Running(name)
        running.update(rows, labels)
        exact = float(getattr(metrics, name)(rows, labels))
        assert abs(record[name] - exact) <= float(running.bound())
    assert 0 <= record["auroc"] <= 1


def test_one_class_is_no_question():
    """Of a likelihood of classes; one probability alone is that of yes."""

    def predictor(inputs):
        return answer(torch.ones(1, len(inputs), 1))

    predictor.likelihood = Categorical()
    record = evaluate(predictor, (torch.arange(5), torch.zeros(5, dtype=torch.long)))
    assert record["accuracy"] == 1
    assert record["negative_log_likelihood"] == 0


def test_pixels_of_one_output_may_come_without_its_axis(generator):
    members = torch.randn(3, 6, 1, 4, 5, generator=generator)
    table = Table(members, torch.rand(6, 1, 4, 5, generator=generator) + 0.1)
    targets = torch.randn(6, 1, 4, 5, generator=generator)
    record = evaluate(table, (torch.arange(6), targets[:, 0]))
    assert record == evaluate(table, (torch.arange(6), targets))


def test_dense_tasks_refuse_metrics_that_need_all_pixels(segmenter):
    table, y = segmenter
    own = metrics.Metric("own", metrics.accuracy, ("probabilities", "labels"), "high")
    with pytest.raises(CosetError, match="all pixels at once"):
        evaluate(table, (torch.arange(20), y), metrics=[own])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: {"metrics": ["accuracyy"]}, "no metric 'accuracyy'"),
        (lambda x, y: {"metrics": "accuracy"}, "needed a list of names"),
        (lambda x, y: {"metrics": [metrics.accuracy]}, "no metric <function accuracy"),
        (lambda x, y: {"metrics": ["auroc"]}, "auroc reads inlier_scores.*give outliers"),
        (lambda x, y: {"metrics": ["agreement"]}, "reads reference.*call the function itself"),
        (lambda x, y: {"metrics": ["interval_coverage"]}, "reads mean, variance"),
        (lambda x, y: {"test": (x, y[:5])}, "targets of shape"),
        (lambda x, y: {"test": (x[:0], y[:0])}, "empty data set"),
        (lambda x, y: {"test": []}, "test is empty"),
        (lambda x, y: {"test": x}, "inputs only"),
        (lambda x, y: {"test": (x, y, y)}, "got 3 parts"),
        (lambda x, y: {"test": [{"x": x}]}, "got a dictionary of x as inputs"),
        (lambda x, y: {"test": (x, y + 1)}, "needed class indices"),
        (lambda x, y: {"outliers": x[:0]}, "outliers is empty"),
        (lambda x, y: {"outliers": x, "score": "entropy"}, "got score='entropy'"),
    ],
)
def test_bad_calls_say_which(classifier, change, says):
    table, inputs, y = classifier
    with pytest.raises(CosetError, match=says):
        evaluate(table, **{"test": (inputs, y), **change(inputs, y)})


@pytest.mark.parametrize("predictor", [torch.nn.Linear(4, 2), None])
def test_what_does_not_predict_is_named(predictor):
    with pytest.raises(CosetError, match="needed predictions with mean, members and variance"):
        evaluate(predictor, (torch.zeros(3, 4), torch.tensor([0, 1, 1])))


def test_logits_are_refused(classifier):
    table, inputs, y = classifier
    with pytest.raises(CosetError, match="logits"):
        evaluate(Table(table.members.log()), (inputs, y))


def test_a_closed_form_has_no_mutual_information():
    """One member next to a covariance is an average: zero would be a lie."""

    def closed(inputs):
        mean = torch.stack([inputs, 1 - inputs], 1)
        covariance = torch.eye(2).expand(len(inputs), 2, 2)
        return SimpleNamespace(mean=mean, members=mean[None], variance=None, covariance=covariance)

    test = torch.tensor([0.9, 0.2, 0.6]), torch.tensor([0, 1, 1])
    found = evaluate(closed, test)
    assert "accuracy" in found
    assert "mutual_information" not in found
    with pytest.raises(CosetError, match="MonteCarlo"):
        evaluate(closed, test, metrics=["mutual_information"])
