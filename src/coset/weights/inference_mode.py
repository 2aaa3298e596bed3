"""Torch's inference mode, in which nothing can be differentiated: left for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leaves the inference mode of a caller, for work that differentiates the network inside.

    Gradients in what the caller gave stay off, as they were.

    >>> with torch.inference_mode(), outside_inference_mode():
    ...     torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    (False, False)
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
