"""Whether a module given again is the function that was fitted, and not another of its shapes."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coset.bayes.batches import Batches
from coset.errors import CosetError
from coset.inference.run_fingerprint import are_close, some_outputs, stand_in
from coset.posterior.families import Finite, Mixture, Posterior
from coset.vocabulary import Inputs, Weights
from coset.weights.inputs import as_inputs, map_parts, parts_of
from coset.weights.network import REFUSALS, Network

_ROWS = 8
"""Examples in a probe."""

_ENTRIES = 1 << 28
"""Numbers in a probe: a file may ask for no more memory."""


def function_facts(network: Network, posterior: Posterior, probe: Inputs | None) -> dict[str, Any]:
    """Some outputs for noise as inputs, at weights of the posterior; nothing where there are none.

    Args:
        network: The function.
        posterior: Whose mean, or first member, gives the weights.
        probe: Noise in the shape of a few inputs, as :func:`probe_for` makes it.
    """
    weights = _weights_of(posterior)
    if probe is None or weights is None or any(not part.numel() for part in parts_of(probe)):
        return {}
    try:
        outputs = some_outputs(network, {**network.weights, **weights}, probe)
    except REFUSALS:  # noise is nothing that this network reads
        return {}
    if not all(map(math.isfinite, outputs)):
        return {}
    rows = [[*part.shape, str(part.dtype).removeprefix("torch.")] for part in parts_of(probe)]
    return {"outputs": outputs, "probe": rows}


def probe_for(train: Batches) -> Inputs:
    """Noise in the shapes and types of a few examples."""
    rows = torch.arange(min(_ROWS, train.size))
    return map_parts(stand_in, train.rows(rows)[0])


def probe_of(facts: Mapping[str, Any], like: torch.Tensor) -> Inputs | None:
    """The noise of a file again."""
    if "probe" not in facts:
        return None
    parts = []
    for rows, *shape, kind in facts["probe"]:
        if not 0 < math.prod(shape) * min(rows, _ROWS) <= _ENTRIES:
            raise CosetError(
                f"got a probe of shape {(rows, *shape)}",
                f"needed one of at most {_ENTRIES:,} entries",
                "the file is not as Predictor.save wrote it",
            )
        parts.append(torch.empty((min(rows, _ROWS), *shape), dtype=getattr(torch, kind)))
    return map_parts(lambda part: stand_in(part).to(like.device), as_inputs(parts))


def require_same_function(
    path: str | Path, facts: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Refuses a module that gives other outputs than the one that was saved.

    Args:
        path: The file, for the message.
        facts: Of the file; old ones say nothing of outputs.
        found: What :func:`function_facts` says of the module.
    """
    if "outputs" not in facts or are_close(facts["outputs"], found.get("outputs", [])):
        return
    shown = ", ".join(f"{value:.4g}" for value in facts["outputs"][:3])
    others = ", ".join(f"{value:.4g}" for value in found.get("outputs", [])[:3])
    raise CosetError(
        f"got {path} of a network with the outputs {shown} …, and a module of the same shapes "
        f"with {others or 'none'} …",
        "needed the function that was fitted",
        "look for another activation, norm or order of layers in its code",
    )


def _weights_of(posterior: Posterior) -> Weights | None:
    """Weights that no draw enters, of all that the posterior covers and keeps."""
    if isinstance(posterior, Mixture):
        return _weights_of(posterior.components[0])
    if isinstance(posterior, Finite):
        return {name: tensor[0] for name, tensor in posterior.members.items()}
    inner = getattr(posterior, "inner", None)
    if inner is not None:
        return _weights_of(inner)
    own = getattr(posterior, "mean", None) or getattr(posterior, "weights", None)
    return None if own is None else {**getattr(posterior, "fixed", {}), **own}
