"""What to do about positive scales in matching: every setting on trained ReLU networks.

    python benchmarks/rebasin_scales.py [mlp] [convnet] [--folder checkpoints]

Pairs are trained on MNIST from different seeds: *mlp* as in rebasin_barriers.py (and kept in the
same folder), *convnet* on 20,000 pictures for six epochs.  Each is matched as it is, and after
every unit of the one that moves was rescaled by a random factor, log-normal with a deviation of a
half.  Printed are barriers of loss and error on 3,000 test pictures (13 points), the squared
distance of all parameters, and processor seconds.  Set OMP_NUM_THREADS=1.
"""

import sys
import time
from pathlib import Path
from typing import get_args

import torch
from rebasin_barriers import PAIRS, Pair, folder_of, networks
from timing import chosen

from coset import Adam, ByWeights, MaximumAPosteriori, barrier, data, discover, match, models
from coset.alignment.scales import Scales
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup

NETS = {
    "mlp": PAIRS["mlp"],
    "convnet": lambda: Pair(
        models.convnet(),
        "mnist",
        20_000,
        MaximumAPosteriori(Adam(0.002), epochs=6, batch_size=200),
        3000,
        13,
    ),
}


def stretched(group: SymmetryGroup, weights: dict) -> dict:
    """The same function with other scales."""
    generator, identity = torch.Generator().manual_seed(0), group.identity()
    scales = {
        f.name: (0.5 * torch.randn(identity.scales[f.name].shape, generator=generator)).exp()
        for f in group.scalings
        if f.domain == "positive"
    }
    return group.act(Element(identity.permutations, {**identity.scales, **scales}), weights)


def run(name: str, folder: Path) -> None:
    pair = NETS[name]()
    whole = data.standardise(data.load(pair.source))
    a, b = networks(name, pair, tuple(part[: pair.train] for part in whole.train), folder)
    test = tuple(part[:3000] for part in whole.test)
    group = discover(pair.module, test[0][:1])
    ways = {f'"{rule}"': ByWeights(scales=rule) for rule in get_args(Scales)}
    for kind, moved in {"as trained": b, "rescaled": stretched(group, b)}.items():
        for way, by in {"not aligned": None, **ways}.items():
            begin = time.process_time()
            found = moved if by is None else match(group, moved, to=a, by=by).weights
            spent = time.process_time() - begin
            path = barrier(pair.module, a, found, test, points=13)
            apart = sum(float((found[n] - a[n]).square().sum()) for n in a if n in group.shapes)
            print(f"{name} | {kind} | {way} | loss barrier {path.height:.3f} | ", end="")
            print(
                f"error barrier {path.error_height:.4f} | squared distance {apart:.0f} | ", end=""
            )
            print(f"{spent:.2f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, words = folder_of(sys.argv[1:])
    for choice in chosen(list(NETS), words):
        run(choice, place)
