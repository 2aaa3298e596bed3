import pytest
import torch
from tests.tomography.tomography_problems import fitted_problem, seeded
from torch.func import jacrev

from coset.tomography.deep_image_prior import image_network
from coset.tomography.features import blocks_of
from coset.weights import functionalise


@pytest.fixture(scope="module")
def setting():
    return fitted_problem(size=8, angles=3, width=2)


def test_blocks_of_the_published_network():
    """Five blocks of 3 × 3 filters, two skips and the output: 13 scales, and the noise."""
    blocks = blocks_of(functionalise(image_network(28)))
    assert sum(block.taps == 9 for block in blocks) == 5
    assert sum(block.taps == 1 for block in blocks) == 3


def test_rows_are_the_jacobian(setting):
    _, _, features, pixels, *_ = setting
    fitted = features.fitted
    names = [name for block in features.blocks for name in block.tensors]
    chosen = {name: fitted.weights[name] for name in names}
    whole = jacrev(lambda part: fitted.network.apply(fitted.weights | part, fitted.inputs))(chosen)
    for block, rows in zip(features.blocks, pixels, strict=True):
        expected = [whole[name].reshape(64, -1, block.taps) for name in block.tensors]
        torch.testing.assert_close(rows, torch.cat(expected, 1), rtol=1e-6, atol=1e-9)
    assert features.count == sum(part.numel() for part in chosen.values())


def test_push_is_the_product_with_the_jacobian(setting):
    _, _, features, pixels, *_ = setting
    directions = [torch.randn(5, *rows.shape[1:], generator=seeded()).double() for rows in pixels]
    expected = sum(
        d.flatten(1) @ rows.flatten(1).T for d, rows in zip(directions, pixels, strict=True)
    )
    torch.testing.assert_close(features.push(directions), expected, rtol=1e-6, atol=1e-9)
