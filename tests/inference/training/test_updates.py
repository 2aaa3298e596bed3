import pytest
import torch
from torch import nn
from training_problems import classification

from coset.inference import SGD, Adam
from coset.inference.training.updates import Updates, clip, member_norms

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, momentum=0.0), Adam(0.1)])
def test_some_members_go_on_as_they_would_have(optimiser):
    problem = classification(nn.Sequential(nn.Linear(4, 3)))
    whole = {
        name: torch.randn(5, *tensor.shape) for name, tensor in problem.network.weights.items()
    }
    updates = Updates.of(optimiser, problem, whole)
    gradients = [{n: torch.randn_like(w) for n, w in whole.items()} for _ in range(4)]
    for gradient in gradients[:2]:
        updates.apply(gradient, 0.1)
    rows = torch.tensor([3, 1])
    fewer = updates.select(optimiser, problem, rows)
    for gradient in gradients[2:]:
        updates.apply(gradient, 0.1)
        fewer.apply({name: g[rows] for name, g in gradient.items()}, 0.1)
    for name, tensor in fewer.parameters.items():
        torch.testing.assert_close(tensor, whole[name][rows])


def test_clipping_shrinks_long_gradients_one_member_at_a_time():
    gradients = {"a": torch.randn(4, 3, 2), "b": torch.randn(4, 5)}
    gradients = {
        n: g * torch.tensor([10.0, 1e-3, 0.0, 3.0]).view(-1, *[1] * (g.dim() - 1))
        for n, g in gradients.items()
    }
    clipped = clip(gradients, 0.5)
    norms, before = member_norms(clipped), member_norms(gradients)
    torch.testing.assert_close(norms, before.clamp_max(0.5))
    for name in gradients:
        assert torch.equal(clipped[name][1:3], gradients[name][1:3])


def test_norms_are_over_all_tensors():
    stack = {"a": torch.randn(4, 3, 2), "b": torch.randn(4, 5)}
    flat = torch.cat([tensor.flatten(1) for tensor in stack.values()], dim=1)
    torch.testing.assert_close(member_norms(stack), flat.square().sum(1).sqrt())
