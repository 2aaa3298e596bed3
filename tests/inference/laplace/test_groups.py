"""Which weights share a precision."""

import pytest
import torch
from torch import nn

from coset import (
    KFAC,
    Categorical,
    CosetError,
    DiagonalOnly,
    GaussianPrior,
    Laplace,
    Problem,
    fit,
    functionalise,
    models,
)
from coset.bayes import as_batches
from coset.curvature.measure import UNCUT
from coset.inference.laplace.groups import cuts_of, group_weights, invariances, prior_of


class Fixup(nn.Module):
    """Scalars in place of norms: nothing is divided out."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, bias=False), nn.Linear(4, 3)
        self.gain, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.last((self.first(x) * self.gain + self.shift).relu().mean((2, 3)))


def convolutions(norm, bias=True):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=bias), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def problem_of(module, shape=(1, 4, 4)):
    data = torch.randn(4, *shape), torch.zeros(4, dtype=torch.long)
    return Problem(functionalise(module), Categorical(), GaussianPrior(), as_batches(data))


def groups_of(module, grouping="normalised", rows=True, shape=(1, 4, 4)):
    problem = problem_of(module, shape)
    return group_weights(problem, problem.network.layout, grouping, rows=rows)


def test_single_and_layer():
    module = convolutions(nn.Identity())
    single, layer = groups_of(module, "single"), groups_of(module, "layer")
    assert set(single.labels.tolist()) == {0}
    assert layer.names == ("0", "4")
    tables = layer.layout.unflatten(layer.labels)
    assert set(tables["0.bias"].tolist()) == {0}
    assert set(tables["4.weight"].flatten().tolist()) == {1}


def test_batch_norm_frees_every_filter():
    found = groups_of(convolutions(nn.BatchNorm2d(4)))
    tables = found.layout.unflatten(found.labels)
    assert len(found.names) == 5
    assert tables["0.weight"].flatten(1).unique(dim=1).shape == (4, 1)
    assert torch.equal(tables["0.weight"][:, 0, 0, 0], tables["0.bias"])  # scales with its filter
    assert set(tables["4.weight"].flatten().tolist()) == {0}
    assert set(tables["1.weight"].tolist()) == {0}


def test_group_norm_frees_groups_and_layer_norm_the_layer():
    grouped = groups_of(convolutions(nn.GroupNorm(2, 4)))
    tables = grouped.layout.unflatten(grouped.labels)
    assert tables["0.weight"][:, 0, 0, 0].tolist() == [1, 1, 2, 2]
    whole = groups_of(convolutions(nn.LayerNorm((4, 2, 2)), bias=False))
    assert whole.names == ("all other weights", "0.weight")
    assert cuts_of(whole.layout, whole.labels) == UNCUT  # also where a bias has several axes


def test_a_normalised_layer_that_reads_a_concatenation():
    """Its columns come from two places, its filters are still one scale each."""
    module = models.unet(widths=(4, 8), normalisation="batch")
    found = groups_of(module, shape=(1, 8, 8))
    table = found.layout.unflatten(found.labels)["decoders.0.conv1.weight"]
    assert table.flatten(1).unique(dim=1).shape == (4, 1)
    assert len(table.unique()) == 4


def test_networks_without_norm_have_one_group():
    assert groups_of(convolutions(nn.Identity())).names == ("all weights",)
    assert len(groups_of(Fixup()).names) == 1
    assert invariances(functionalise(Fixup()), torch.randn(2, 1, 4, 4)) == ()


def test_layers_too_wide_for_row_blocks_have_one_precision(monkeypatch):
    monkeypatch.setattr("coset.inference.laplace.groups._ROW_MEMORY", 100)
    found = groups_of(convolutions(nn.BatchNorm2d(4)))
    assert len(found.names) == 2
    assert "'0.weight' has one precision" in found.notes[0]
    assert len(groups_of(convolutions(nn.BatchNorm2d(4)), rows=False).names) == 5


def test_modules_that_cannot_be_traced_have_one_group():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(16, 3), nn.LayerNorm(3)

        def forward(self, x):
            x = self.norm(self.layer(x.flatten(1)))
            return x if bool((x > 100).any()) else 2 * x

    found = groups_of(Branching())
    assert len(found.names) == 1
    assert "symmetries were not found" in found.notes[0]


def test_priors_take_the_smallest_shape():
    found = groups_of(convolutions(nn.BatchNorm2d(4)))
    precision = torch.arange(1.0, 6.0)[found.labels]
    prior = prior_of(found.layout, precision, {"other": torch.ones(3, 3)})
    assert prior.precision["0.weight"].shape == (4, 1, 1, 1)
    assert prior.precision["4.weight"] == 1.0
    assert prior.precision["other"] == 1.0
    assert torch.equal(prior.flat(found.layout, precision), precision)


def test_unknown_groups_are_refused():
    with pytest.raises(CosetError, match="groups 'filters'"):
        groups_of(convolutions(nn.Identity()), "filters")


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm((4, 2, 2)), nn.LayerNorm(2), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)]
)
def test_the_weight_and_bias_of_a_norm_may_have_different_precisions(norm):
    """Of a norm the corrected blocks are diagonal: the exact diagonal, as the other recipe has."""
    module = convolutions(norm).double()
    data = torch.randn(8, 1, 4, 4), torch.arange(8) % 3
    names = [name for name, _ in module.named_parameters()]
    prior = GaussianPrior({name: 3.0 if name == "1.bias" else 1.0 for name in names})
    found = [
        fit(module, data, method=Laplace(curvature, "1.*", tuning=None), prior=prior)
        for curvature in (KFAC(), DiagonalOnly())
    ]
    assert found[0].log_evidence == pytest.approx(found[1].log_evidence, rel=1e-10)
    whole = fit(module, data, method=Laplace(tuning=None), prior=prior)
    assert whole.log_evidence is not None
