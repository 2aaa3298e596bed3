"""The one exception, and counts that are none."""

import numpy as np
import pytest
import torch

import coset
from coset.errors import CosetError, require_counts

COUNTS = {
    "members": lambda n: coset.DeepEnsemble(n),
    "modes": lambda n: coset.MultiMode(coset.MaximumAPosteriori(), n),
    "swag rank": lambda n: coset.SWAG(n),
    "swag members": lambda n: coset.SWAG(members=n),
    "swag epochs": lambda n: coset.SWAG(epochs=n),
    "rebased rank": lambda n: coset.RebasedGaussian(coset.HMC(), n),
    "epochs": lambda n: coset.MaximumAPosteriori(epochs=n),
    "batch size": lambda n: coset.MaximumAPosteriori(batch_size=n),
    "chains": lambda n: coset.HMC(chains=n),
    "leapfrog steps": lambda n: coset.HMC(max_steps=n),
    "depth": lambda n: coset.NUTS(max_depth=n),
    "draws": lambda n: coset.SGHMC(draws=n),
    "burn-in": lambda n: coset.SGLD(burn_in=n),
    "predicted draws": lambda n: coset.MonteCarlo(n),
    "softmax draws": lambda n: coset.SampledSoftmax(n),
    "linearised samples": lambda n: coset.Linearised(samples=n),
    "curvature rank": lambda n: coset.LowRank(n),
    "matrix-free samples": lambda n: coset.MatrixFree(n),
    "subnetwork": lambda n: coset.Subnetwork(n),
    "evidence steps": lambda n: coset.ByEvidence(steps=n),
    "records": lambda n: coset.Checkpoint("folder", every=n),
    "sampled": lambda n: point().sample(n, generator=torch.Generator()),
}


def point() -> coset.PointMass:
    return coset.PointMass({"w": torch.zeros(2)})


@pytest.mark.parametrize("make", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("count", [1.5, -1, "3", True, float("nan")], ids=repr)
def test_what_is_no_count_is_named(make, count):
    with pytest.raises(CosetError, match="needed a whole number, at least"):
        make(count)


def test_counts_of_any_library_are_taken():
    require_counts(a=3, b=np.int64(1))
    require_counts(0, c=0)
    assert len(point().sample(np.int32(2), generator=torch.Generator())["w"]) == 2


def test_a_folder_is_a_path():
    with pytest.raises(CosetError, match="needed a path"):
        coset.Checkpoint(3)
