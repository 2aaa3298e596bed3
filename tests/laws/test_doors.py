"""What tensors cannot hold, or what holds no numbers, is refused at every door in one line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import coset
from coset import (
    Bernoulli,
    CosetError,
    DeepEnsemble,
    GaussianNoise,
    Laplace,
    MaximumAPosteriori,
    assign,
    discover,
    evaluate,
    fit,
    metrics,
    weights_of,
)
from coset.bayes import as_batches

ROWS = 20
SHORT = MaximumAPosteriori(epochs=2)


def data():
    inputs = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


def network(*last):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2), *last)


def odd(x):
    """Tensors like ``x`` that nothing can be computed with."""
    return {
        "meta": x.to("meta"),
        "sparse": x.to_sparse(),
        "rows": x.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([x[0], x[1]]),
        "jagged": torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
        "quantised": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "eight bits": x.to(torch.float8_e4m3fn),
        "onednn": x.to_mkldnn(),
    }


ODD = ("meta", "sparse", "rows", "nested", "jagged", "quantised", "eight bits", "onednn")
X, Y = data()
HALVES = torch.full((ROWS, 2), 0.5)
DOORS = {
    "inputs of fit": lambda bad: fit(network(), (bad, Y)),
    "targets of fit": lambda bad: fit(network(), (X, bad), likelihood=GaussianNoise(1.0)),
    "predictions": lambda bad: fit(network(), (X, Y), method=SHORT)(bad),
    "evaluate": lambda bad: evaluate(fit(network(), (X, Y), method=SHORT), (bad, Y)),
    "discover": lambda bad: discover(network(), bad),
    "assign": lambda bad: assign(nn.Embedding(ROWS, 2), {"weight": bad}),
    "accuracy": lambda bad: metrics.accuracy(bad, Y),
    "labels": lambda bad: metrics.accuracy(HALVES, bad),
    "brier": lambda bad: metrics.brier(bad, Y),
    "entropy": metrics.entropy,
    "auroc": lambda bad: metrics.auroc(bad, bad),
    "discrepancy": lambda bad: metrics.maximum_mean_discrepancy(bad, bad),
    "densities": lambda bad: metrics.gaussian_negative_log_likelihood(bad, X**2 + 1, X),
    "targets of densities": lambda bad: metrics.gaussian_negative_log_likelihood(X, X**2 + 1, bad),
}


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse|quantize)")  # torch's own, of such tensors
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("door", DOORS)
def test_tensors_without_numbers_are_refused(door, kind):
    with pytest.raises(CosetError) as caught:
        DOORS[door](odd(X)[kind])
    assert "\n" not in str(caught.value)
    assert "needed" in str(caught.value)


def test_all_kinds_are_gone_through():
    assert set(odd(X)) == set(ODD)


@pytest.mark.parametrize("convert", [lambda t: t + 0j, lambda t: t.numpy() + 0j])
def test_complex_targets_do_not_lose_a_part(convert):
    with pytest.raises(CosetError, match="targets of the complex type"):
        fit(nn.Linear(2, 2), (X, convert(X)), likelihood=GaussianNoise(0.3))
    with pytest.raises(CosetError, match="targets of the complex type"):
        fit(network(), (X, convert(Y)))


def test_masked_arrays_do_not_lose_their_mask():
    hidden = np.ma.masked_array(X.numpy(), mask=X.numpy() > 1)
    predictor = fit(network(), (X, Y), method=SHORT)
    for work in (
        lambda: fit(network(), (hidden, Y)),
        lambda: fit(network(), (X, hidden), likelihood=GaussianNoise(0.3)),
        lambda: predictor(hidden),
        lambda: evaluate(predictor, (hidden, Y)),
    ):
        with pytest.raises(CosetError, match=rf"{(X > 1).sum()} of whose 40 numbers are hidden"):
            work()
    whole = np.ma.masked_array(X.numpy(), mask=False)
    assert torch.equal(predictor(whole).mean, predictor(X).mean)


def test_unsigned_numbers_are_labels():
    for kind in (torch.uint16, torch.uint32):
        found = fit(network(), (X, Y.to(kind)), method=SHORT)(X)
        assert torch.equal(found.mean, fit(network(), (X, Y), method=SHORT)(X).mean)


@pytest.mark.parametrize(
    ("module", "changed", "told"),
    [
        (nn.Linear(2, 1).half(), lambda w: w.float() * 0 + 1e6, "float16.* can hold"),
        (nn.Linear(2, 1), lambda w: w.double() * 0 + 1e300, "float32.* can hold"),
        (nn.Linear(2, 1), lambda w: w + 1j, "complex64; needed numbers that torch.float32"),
    ],
)
def test_assign_loses_nothing(module, changed, told):
    before = weights_of(module)
    wrong = {**before, "bias": changed(before["bias"])}
    with pytest.raises(CosetError, match=rf"'bias' of type .*{told}"):
        assign(module, wrong)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(module).items())


def test_assign_rounds_and_keeps_infinities():
    module = nn.Linear(2, 1)
    assign(module, {"weight": torch.tensor([[1, 2]]), "bias": torch.tensor([torch.inf]).double()})
    assert module.weight.tolist() == [[1.0, 2.0]]
    assert module.bias.item() == torch.inf
    table = nn.BatchNorm1d(1)
    assign(table, {"num_batches_tracked": torch.tensor(3.0)}, partial=True)
    assert table.num_batches_tracked == 3
    with pytest.raises(CosetError, match=r"'num_batches_tracked' of type torch\.float32"):
        assign(table, {"num_batches_tracked": torch.tensor(3.5)}, partial=True)


class Plain(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return X[index], Y[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Plain()[index] for index in range(ROWS))


@pytest.mark.parametrize(
    "dataset", [TensorDataset(X, Y), Plain(), Stream()], ids=["tensors", "rows", "stream"]
)
def test_every_row_counts_whatever_drop_last_says(dataset):
    """20 rows in batches of 8: the last four are not dropped, neither by fits nor by scores."""
    loader = DataLoader(dataset, batch_size=8, drop_last=True)
    assert as_batches(loader).size == ROWS
    found = fit(network(), loader)
    assert found.log_evidence == pytest.approx(fit(network(), (X, Y)).log_evidence, rel=1e-6)
    whole, dropped = evaluate(found, (X, Y)), evaluate(found, loader)
    assert dropped == pytest.approx(whole, rel=1e-5)


def test_outputs_that_are_probabilities_are_told():
    """With three classes the softmax of a softmax is at most e / (e + 2) = 0.58 sure."""
    told = "outputs of the network are probabilities"
    for method in (SHORT, DeepEnsemble(2, SHORT), Laplace()):
        report = fit(network(nn.Softmax(1)), (X, Y), method=method).posterior.report
        assert any(told in warning for warning in report.warnings)
    for module, likelihood, targets in (
        (network(), coset.Categorical(), Y),
        (network(nn.LogSoftmax(1)), coset.Categorical(), Y),  # which softmax leaves as it is
        (network(nn.Softmax(1)), GaussianNoise(0.1), HALVES),
        (network(nn.Softmax(1)), Bernoulli(), (HALVES > 0).float()),
    ):
        found = fit(module, (X, targets), method=SHORT, likelihood=likelihood)
        assert not any(told in warning for warning in found.posterior.report.warnings)
