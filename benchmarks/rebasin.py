"""Weight matching against ``rebasin`` from PyPI and against the published loop.

    python benchmarks/rebasin.py [mlp] [resnet20] [resnet20x4] [resnet50] [many]

Each net is matched twice: to a noisy copy of itself that was moved by a random permutation, and to
an unrelated network of fresh weights.  The reference loop starts at the identity, goes through all
factors in a random order and stops after a sweep without improvement.  How many sweeps it needs
depends on the order by a factor of two, so it is given eight orders in turn, and its time is the
mean over them; that of the others, which have no such choice, is one number.  All times are medians
of processor seconds with the group (or the graph) given.  Everyone runs twice in turn, and only the
second run counts: after ``rebasin`` the caches are cold, which costs us two milliseconds and the
loop one.  What takes longer than ten seconds is run once.  Wanted are a third of the others' times
at no lower an inner product over all parameters that permutations move (printed as a cosine, the
best of all runs).  *Hard* is ours without the soft rounds that come where the anchors leave
doubts; *ours*, with them, climbs higher; *scales* is ``match`` without options, which also looks
whether the networks differ by a rescaling, as the others do not.  Memory is what the process grows
by.  Many networks are brought to the mean of the others in turn, as published, for as many rounds
as ours takes.  All together take a quarter of an hour; set OMP_NUM_THREADS=1.  Trained networks:
rebasin_trained.py.
"""

import copy
import ctypes
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from published_loop import objective, reference_loop, seconds_of
from timing import chosen, peak_memory_of
from torch import Tensor, nn

from coset import ByWeights, discover, match, match_many, models, stack, unstack, weights_of
from coset.alignment.plans import matched_tensors
from coset.symmetry.elements import Element
from coset.symmetry.group import SymmetryGroup

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (lambda: models.mlp(784, (512, 512, 512), 10), (1, 784), 16),
    "resnet20": (models.resnet20, (1, 3, 32, 32), 40),
    "resnet20x4": (lambda: models.resnet20(width=4), (1, 3, 32, 32), 16),
    "resnet50": (models.resnet50, (1, 3, 32, 32), 3),
}
WANTED = 3.0
ORDERS = 8  # random orders of the reference loop
LONG = 10.0  # seconds from which a run is not repeated
KEEP = ByWeights(scales="keep")  # what the others do: permutations alone
HARD = ByWeights(scales="keep", soft=0)  # as the others do: at once


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


@dataclass
class Contestant:
    """One way of matching: seconds and objectives of all runs, and what it grew by.

    ``choices`` says how many random choices there are, which runs take in turn.
    """

    call: Callable[[int], tuple[float, dict[str, Tensor]]]
    judge: Callable[[dict[str, Tensor]], float]
    choices: int = 1
    seconds: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    grown: float = 0.0

    def run(self, warm: bool = True) -> None:
        choice = len(self.seconds) % self.choices
        if warm:
            self.call(choice)
        spent, result = self.call(choice)
        self.seconds.append(spent)
        self.reached.append(self.judge(result))

    @property
    def times(self) -> list[float]:
        """The median for each choice."""
        of = [self.seconds[choice :: self.choices] for choice in range(self.choices)]
        return [statistics.median(some) for some in of if some]

    @property
    def time(self) -> float:
        """The time to be expected."""
        return statistics.mean(self.times)


def timed(
    call: Callable[[int], dict[str, Tensor]],
) -> Callable[[int], tuple[float, dict[str, Tensor]]]:
    def run(choice: int) -> tuple[float, dict[str, Tensor]]:
        begin = time.process_time()
        result = call(choice)
        return time.process_time() - begin, result

    return run


def give_back() -> None:
    """Returns free memory to the system: else what was freed hides what is used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def contest(contestants: dict[str, Contestant], repeats: int) -> None:
    """Runs taken in turn; the first gives the memory and counts only if it is the only one."""
    for contestant in contestants.values():
        give_back()
        before = peak_memory_of(lambda: None)
        contestant.grown = peak_memory_of(lambda one=contestant: one.run(warm=False)) - before
    quick = [one for one in contestants.values() if one.seconds[0] < LONG]
    for one in quick:
        one.seconds.clear()
    for _ in range(repeats):
        for one in quick:
            one.run()


def report(contestants: dict[str, Contestant]) -> None:
    ours = {key: one for key, one in contestants.items() if key.startswith("ours")}
    for key, one in contestants.items():
        print(f"  {key:<13}{one.time:9.4f} s  {one.grown:6.0f} MiB", end="")
        print(f"  cosine {max(one.reached):.5f}", end="")
        for name, own in {} if key in ours else ours.items():
            ratio = one.time / own.time
            met = ratio >= WANTED and min(own.reached) >= max(one.reached) - 1e-6
            print(f"  {ratio:6.2f}x of {name}: {'met' if met else 'NOT MET'}", end="")
        spread = f"  (orders: {min(one.times):.4f} to {max(one.times):.4f} s)"
        print(spread if len(one.times) > 1 else "")


def run(name: str) -> None:
    factory, shape, repeats = NETS[name]
    torch.manual_seed(0)
    module, example = factory().eval(), torch.zeros(shape)
    begin = time.process_time()
    group = discover(module, example)
    numbers = sum(p.numel() for p in module.parameters())
    print(f"{name}: {numbers:,} parameters, {len(group.permutations)} factors, ", end="")
    print(f"discovered in {time.process_time() - begin:.2f} s")
    names = matched_tensors(group)
    for kind, (to, weights) in pairs(module, group).items():
        fixed, graphs = with_weights(module, to), []

        def peers(_, to=to, weights=weights, fixed=fixed, graphs=graphs):
            graph, matching, made = peer(fixed, with_weights(module, weights), example)
            graphs.append(graph)
            return matching, dict(made.state_dict())

        def ours(_, to=to, weights=weights):
            return match(group, weights, to=to, by=KEEP).weights

        def hard(_, to=to, weights=weights):
            return match(group, weights, to=to, by=HARD).weights

        def scales(_, to=to, weights=weights):
            return match(group, weights, to=to).weights

        def loop(seed, to=to, weights=weights):
            return reference_loop(group, weights, to, seed)

        norm = (objective(names, to, to) * objective(names, weights, weights)) ** 0.5

        def cosine(found, to=to, norm=norm):
            return objective(names, to, found) / norm

        contestants = {
            "ours": Contestant(timed(ours), cosine),
            "ours, hard": Contestant(timed(hard), cosine),
            "ours, scales": Contestant(timed(scales), cosine),
            "loop": Contestant(timed(loop), cosine, ORDERS),
            "rebasin": Contestant(peers, cosine),
        }
        contest(contestants, repeats)
        print(f" {kind} (rebasin's own graph: {statistics.median(graphs):.2f} s on top)")
        report(contestants)


def run_many(members: int = 100) -> None:
    """A hundred noisy, permuted copies of one MLP, brought together."""
    module = models.mlp(784, (512, 512, 512), 10)
    group = discover(module, torch.zeros(1, 784))
    generator = torch.Generator().manual_seed(0)
    own = weights_of(module)
    element = group.sample(generator=generator, members=members)
    scales = {n: torch.ones_like(t) for n, t in element.scales.items()}
    moved = group.act(Element(element.permutations, scales), stack([own] * members))
    for name, tensor in moved.items():
        noise = torch.randn(tensor.shape, generator=generator)
        moved[name] = tensor + 0.3 * tensor.std() * noise
    first, *rest = unstack(moved)
    match(group, rest[0], to=first, by=KEEP)  # what is worked out once
    single = seconds_of(lambda: [match(group, w, to=first, by=KEEP) for w in rest])[0]
    loops = seconds_of(lambda: [reference_loop(group, w, first) for w in rest])[0]
    seconds, found = seconds_of(lambda: match_many(group, moved, by=KEEP))
    frame, rounds = found.frame, len(found.frame.moved)
    plain, merged = seconds_of(lambda: reference_many(group, moved, rounds))
    places = [
        group.compose(_member(element, k), _member(frame.element, k)).permutations
        for k in range(members)
    ]
    agree = sum(all(torch.equal(p[n], t) for n, t in places[0].items()) for p in places)
    names = matched_tensors(group)
    spread = [sum(float(w[n].var(0).sum()) for n in names) for w in (found.weights, merged)]
    print(f"many: {members} MLPs, {agree} in the planted frame after {rounds} rounds")
    print(f"  variance of the aligned weights: ours {spread[0]:.1f}, loop {spread[1]:.1f}")
    for what, other, time_ in (
        (f"{rounds} rounds to the mean", plain, seconds),
        (f"{members - 1} matches to one", loops, single),
    ):
        met = "met" if other >= WANTED * time_ else "NOT MET"
        print(f"  {what:<24} loop {other:6.2f} s  ours {time_:6.2f} s", end="")
        print(f"  ratio {other / time_:5.2f}x  wanted {WANTED:g}x  {met}")


def reference_many(
    group: SymmetryGroup, stacked: dict[str, Tensor], rounds: int
) -> dict[str, Tensor]:
    """The published merging of many: each in turn by the plain loop to the mean of the others."""
    aligned = unstack(stacked)
    total = {name: tensor.sum(0) for name, tensor in stacked.items()}
    for _ in range(rounds):
        for k, own in enumerate(aligned):
            rest = {n: (total[n] - own[n]) / (len(aligned) - 1) for n in total}
            aligned[k] = reference_loop(group, own, rest)
            total = {n: total[n] - own[n] + aligned[k][n] for n in total}
    return stack(aligned)


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
