import pytest
import torch

from coset import CosetError, LowRankGaussian, Mixture, Samples

POSTERIORS = {
    "samples": Samples({"w": torch.zeros(3, 2)}),
    "gaussian": LowRankGaussian({"w": torch.zeros(2)}, {"w": torch.ones(2)}, {}),
}
POSTERIORS["mixture"] = Mixture(tuple(POSTERIORS.values()))


@pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
def test_a_seed_in_the_place_of_a_generator_is_named(posterior):
    with pytest.raises(CosetError, match=r"got generator=3; needed a torch.Generator; write"):
        posterior.sample(2, generator=3)
