import torch

from coset.weights import map_weights, noise_like, squared_norm

WEIGHTS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[2.0]])}


def test_map_weights_takes_several():
    total = map_weights(lambda x, y, z: x + y * z, WEIGHTS, WEIGHTS, WEIGHTS)
    assert total["a"].tolist() == [2, 6]
    assert total["b"].tolist() == [[6]]


def test_squared_norm_is_that_of_the_flat_vector():
    assert squared_norm(WEIGHTS) == 1 + 4 + 4


def test_noise_repeats_under_its_seed_and_keeps_dtype():
    weights = {name: tensor.double() for name, tensor in WEIGHTS.items()}
    first, second = (
        noise_like(weights, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in weights)
    assert first["b"].dtype == torch.float64
    assert first["b"].shape == (1, 1)
