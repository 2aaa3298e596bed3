"""The canonical order of units at checks along training."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from coset.studies.cells.data import pictures
from coset.studies.cells.networks import along_training, module_of, seeded
from coset.symmetry.discover import discover
from coset.symmetry.removing.canonical import canonicalise
from coset.symmetry.removing.tracking import track_order


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """Changes of places, swaps from the first order, and when the last order is reached."""
    data, module = pictures(parameters), module_of(parameters)
    group = discover(module, data.test[0][:1])
    checks, stacks = along_training(parameters, seed=seed)
    (track,) = track_order(group, stacks, steps=checks).values()
    spans = [after - before for before, after in pairwise(checks)]
    changed = [float(share.mean()) / span for share, span in zip(track.changed, spans, strict=True)]
    half = max(1, len(changed) // 2)
    early, late = sum(changed[:half]) / half, sum(changed[-half:]) / half
    (still,) = track_order(group, [stacks[-1], stacks[-1]]).values()
    first = {name: tensor[0].double() for name, tensor in stacks[-1].items()}
    moved = group.act(group.sample(generator=seeded(seed, "element")), first)
    one, other = canonicalise(group, first), canonicalise(group, moved)
    swaps = track.transpositions.double().mean(1)
    return {
        "checks": checks,
        "later_checks": checks[1:],
        "changed_per_epoch": changed,
        "transpositions": swaps.tolist(),
        "transpositions_last": float(swaps[-1]),
        "early_over_late": early / late if late else float("inf"),
        "final": track.final.double().tolist(),
        "control_same": float(still.changed.abs().max()),
        "control_scrambled": max(float((one[n] - other[n]).abs().max()) for n in one),
    }
