"""Random predictions that several tests share."""

import torch


def predictions(n=200, c=5, *, generator, dtype=torch.float64, sharpness=2.0):
    """Probabilities and targets drawn from slightly different probabilities."""
    logits = sharpness * torch.randn(n, c, generator=generator, dtype=torch.float64)
    targets = torch.softmax(0.7 * logits, -1).multinomial(1, generator=generator).squeeze(1)
    return torch.softmax(logits, -1).to(dtype), targets


def ensemble(m=4, n=60, c=5, *, generator, dtype=torch.float64):
    """Probabilities of m members that share part of their logits."""
    common = torch.randn(n, c, generator=generator, dtype=torch.float64)
    own = torch.randn(m, n, c, generator=generator, dtype=torch.float64)
    return torch.softmax(2 * common + own, -1).to(dtype)
