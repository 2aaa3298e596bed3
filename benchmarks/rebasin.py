"""Weight matching against ``rebasin`` from PyPI and against the published loop.

    OMP_NUM_THREADS=1 python benchmarks/rebasin.py [mlp] [resnet20] [resnet20x4] [resnet50] [many]

Each net is matched twice: to a noisy copy of itself that was moved by a random permutation, and to
an unrelated network of fresh weights.  Times are medians of processor seconds, runs taken in turn,
with the group (or the graph) given; finding it is timed on its own line.  The reference loop starts
at the identity, goes through all factors in a random order and stops after a sweep without
improvement.  Objectives are inner products over all parameters that permutations move.
"""

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from timing import chosen, peak_memory_of
from torch import Tensor, nn

from coset import ByWeights, discover, match, match_many, models, stack, unstack, weights_of
from coset.alignment.plans import matched_tensors
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (lambda: models.mlp(784, (512, 512, 512), 10), (1, 784), 5),
    "resnet20": (models.resnet20, (1, 3, 32, 32), 5),
    "resnet20x4": (lambda: models.resnet20(width=4), (1, 3, 32, 32), 3),
    "resnet50": (models.resnet50, (1, 3, 32, 32), 1),
}
KEEP = ByWeights(scales="keep")  # what the others do: permutations alone


def reference_loop(
    group: SymmetryGroup, weights: dict[str, Tensor], to: dict[str, Tensor], seed: int = 0
) -> dict[str, Tensor]:
    """The published coordinate descent, written plainly."""
    generator = torch.Generator().manual_seed(seed)
    names = matched_tensors(group)
    axes = {
        factor.name: [(s.tensor, s.digits[0]) for s in factor.sites if s.tensor in names]
        for factor in group.permutations
    }
    of_tensor: dict[str, list[tuple[str, int]]] = {}
    for factor, places in axes.items():
        for tensor, axis in places:
            of_tensor.setdefault(tensor, []).append((factor, axis))
    found = {factor.name: torch.arange(factor.size) for factor in group.permutations}
    for _ in range(100):
        improved = False
        for k in torch.randperm(len(axes), generator=generator).tolist():
            name = list(axes)[k]
            size = len(found[name])
            gain = torch.zeros(size, size)
            for tensor, axis in axes[name]:
                moved = weights[tensor]
                for other, position in of_tensor[tensor]:
                    if other != name:
                        moved = moved.index_select(position, found[other])
                left = to[tensor].movedim(axis, 0).reshape(size, -1)
                gain += left @ moved.movedim(axis, 0).reshape(size, -1).T
            _, columns = linear_sum_assignment(gain.numpy(), maximize=True)
            order, rows = torch.from_numpy(columns), torch.arange(size)
            before, after = gain[rows, found[name]].sum(), gain[rows, order].sum()
            improved = improved or bool(after > before + 1e-12)
            found[name] = order
        if not improved:
            break
    moved = dict(weights)
    for factor in group.permutations:
        for site in factor.sites:
            tensor = moved[site.tensor]
            moved[site.tensor] = tensor.index_select(site.digits[0], found[factor.name])
    return moved


def peer(ours: nn.Module, theirs: nn.Module, example: Tensor) -> tuple[float, float, nn.Module]:
    """Seconds that rebasin needs for its graph and for the matching, and what it makes."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # this file has its name
    from rebasin import PermutationCoordinateDescent

    begin = time.process_time()
    descent = PermutationCoordinateDescent(ours, theirs, example)
    middle = time.process_time()
    descent.rebasin()
    return middle - begin, time.process_time() - middle, theirs


def objective(names: frozenset[str], one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(float((one[n].double() * other[n].double()).sum()) for n in sorted(names))


def with_weights(module: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    copied = copy.deepcopy(module)
    own = dict(copied.named_parameters()) | dict(copied.named_buffers())
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    return copied


def pairs(module: nn.Module, group: SymmetryGroup) -> dict[str, tuple[dict, dict]]:
    """A planted pair with noise, and an unrelated pair."""
    generator = torch.Generator().manual_seed(1)
    own = weights_of(module)
    for name, tensor in own.items():
        if tensor.dim() == 1 and "running" not in name:  # fresh norms are all alike
            own[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    sampled = group.sample(generator=generator)
    element = Element(sampled.permutations, group.identity().scales)
    moved = group.act(element, own)
    for name, tensor in moved.items():
        if "running" not in name:
            size = float(tensor.std()) if tensor.numel() > 1 else 0.0
            moved[name] = tensor + 0.3 * size * torch.randn(tensor.shape, generator=generator)
    torch.manual_seed(7)
    other = copy.deepcopy(module)
    for child in other.modules():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()
    return {"planted": (own, moved), "unrelated": (own, weights_of(other))}


def processor_seconds(
    contestants: dict[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Medians of runs taken in turn, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, call in contestants.items():
            begin = time.process_time()
            call()
            seconds[name].append(time.process_time() - begin)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def line(what: str, seconds: float, value: float, memory: float, norm: float) -> None:
    print(f"  {what:<14}{seconds:9.3f} s   cosine {value / norm:8.5f}   peak {memory:6.0f} MiB")


def run(name: str) -> None:
    factory, shape, repeats = NETS[name]
    torch.manual_seed(0)
    module, example = factory().eval(), torch.zeros(shape)
    begin = time.process_time()
    group = discover(module, example)
    count = sum(p.numel() for p in module.parameters())
    print(f"{name}: {count:,} parameters, {len(group.permutations)} factors, ", end="")
    print(f"discovered in {time.process_time() - begin:.2f} s")
    names = matched_tensors(group)
    for kind, (to, weights) in pairs(module, group).items():
        norm = (objective(names, to, to) * objective(names, weights, weights)) ** 0.5
        peers = iter([with_weights(module, weights) for _ in range(repeats + 3)])
        fixed = with_weights(module, to)
        seen: dict[str, list[float]] = {"graph": [], "matching": []}
        last: list[nn.Module] = []

        def other(peers=peers, fixed=fixed, seen=seen, last=last) -> None:
            graph, matching, made = peer(fixed, next(peers), example)
            seen["graph"].append(graph)
            seen["matching"].append(matching)
            last[:] = [made]

        contestants = {
            "ours": lambda to=to, weights=weights: match(group, weights, to=to, by=KEEP),
            "reference": lambda to=to, weights=weights: reference_loop(group, weights, to),
            "rebasin": other,
        }
        taken = processor_seconds(contestants, repeats)
        memory = {key: peak_memory_of(call) for key, call in contestants.items()}
        reached = {
            "ours": match(group, weights, to=to, by=KEEP).weights,
            "reference": reference_loop(group, weights, to),
            "rebasin": dict(last[0].state_dict()),
        }
        taken["rebasin"] = sorted(seen["matching"])[len(seen["matching"]) // 2]
        graph = sorted(seen["graph"])[len(seen["graph"]) // 2]
        print(f" {kind} (rebasin's own graph: {graph:.2f} s on top)")
        for key in contestants:
            line(key, taken[key], objective(names, to, reached[key]), memory[key], norm)
        ratios = [taken[key] / taken["ours"] for key in ("reference", "rebasin")]
        print(f"  ratio to reference {ratios[0]:.1f}x, to rebasin {ratios[1]:.1f}x, wanted 3x")


def run_many(count: int = 100) -> None:
    """A hundred noisy, permuted copies of one MLP, brought together."""
    module = models.mlp(784, (512, 512, 512), 10)
    group = discover(module, torch.zeros(1, 784))
    generator = torch.Generator().manual_seed(0)
    own = weights_of(module)
    element = group.sample(generator=generator, members=count)
    scales = {n: torch.ones_like(t) for n, t in element.scales.items()}
    moved = group.act(Element(element.permutations, scales), stack([own] * count))
    for name, tensor in moved.items():
        noise = torch.randn(tensor.shape, generator=generator)
        moved[name] = tensor + 0.3 * tensor.std() * noise
    members = unstack(moved)
    rest = members[1:]
    seconds = {}
    ways: dict[str, Callable[[], object]] = {
        "match": lambda: [match(group, w, to=members[0], by=KEEP) for w in rest],
        "plain loop": lambda: [reference_loop(group, w, members[0]) for w in rest],
        "match_many": lambda: match_many(group, moved, by=KEEP),
    }
    for way, call in ways.items():
        begin = time.process_time()
        result = call()
        seconds[way] = time.process_time() - begin
    frame = result.frame
    first = group.compose(_member(element, 0), _member(frame.element, 0)).permutations
    agree = sum(
        all(
            torch.equal(
                group.compose(_member(element, k), _member(frame.element, k)).permutations[n],
                first[n],
            )
            for n in element.permutations
        )
        for k in range(count)
    )
    others = ", ".join(f"{way} {seconds[way]:.1f} s" for way in ("match", "plain loop"))
    print(
        f"many: {count} MLPs in {seconds['match_many']:.1f} s, {len(frame.moved)} rounds, ", end=""
    )
    print(f"{agree} of {count} in the planted frame; each to the first: {others}")


def _member(element: Element, k: int) -> Element:
    return Element(
        {n: t[k] for n, t in element.permutations.items()},
        {n: torch.ones_like(t[k]) for n, t in element.scales.items()},
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for choice in chosen([*NETS, "many"], sys.argv[1:]):
        run_many() if choice == "many" else run(choice)
