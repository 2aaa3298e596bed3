"""Weight matching against ``rebasin`` from PyPI and against the published loop.

    python benchmarks/rebasin.py [mlp] [resnet20] [resnet20x4] [resnet50] [many] [trained]

Each net is matched twice: to a noisy copy of itself that was moved by a random permutation, and to
an unrelated network of fresh weights.  The reference loop starts at the identity, goes through all
factors in a random order and stops after a sweep without improvement.  How many sweeps it needs
depends on the order by a factor of two, so it is given eight orders in turn, and its time is the
mean over them; that of the others, which have no such choice, is one number.  All times are medians
of processor seconds with the group (or the graph) given.  Everyone runs twice in turn, and only the
second run counts: after ``rebasin`` the caches are cold, which costs us two milliseconds and the
loop one.  What takes longer than ten seconds is run once.  Wanted are a third of the others' times
at no lower an inner product over all parameters that permutations move (printed as a cosine, the
best of all runs).  Memory is what the process grows by.  Many networks are brought to the mean of
the others in turn, as published, for as many rounds as ours takes.  *Trained* are two pairs of
ResNet-20 on 2,500 pictures of Fashion-MNIST (``COSET_DATA``), where objectives are compared: those
of twenty restarts of ours with the best of ten of the loop.  All together take a quarter of an
hour; set OMP_NUM_THREADS=1.
"""

import copy
import ctypes
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from timing import chosen, peak_memory_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coset import ByWeights, discover, match, match_many, models, stack, unstack, weights_of
from coset.alignment.plans import matched_tensors
from coset.data import fashion_mnist
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
T = TypeVar("T")
LONG = 10.0  # seconds from which a run is not repeated
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
    ours = contestants["ours"]
    for key, one in contestants.items():
        print(
            f"  {key:<10}{one.time:9.4f} s  {one.grown:6.0f} MiB  cosine {max(one.reached):.5f}",
            end="",
        )
        if key == "ours":
            print()
            continue
        ratio = one.time / ours.time
        met = ratio >= WANTED and min(ours.reached) >= max(one.reached) - 1e-6
        print(f"  ratio {ratio:6.2f}x  wanted {WANTED:g}x  {'met' if met else 'NOT MET'}", end="")
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

        def loop(seed, to=to, weights=weights):
            return reference_loop(group, weights, to, seed)

        norm = (objective(names, to, to) * objective(names, weights, weights)) ** 0.5

        def cosine(found, to=to, norm=norm):
            return objective(names, to, found) / norm

        contestants = {
            "ours": Contestant(timed(ours), cosine),
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


def run_trained(pictures: int = 2500, batch: int = 125, epochs: int = 3) -> None:
    """Pairs trained from different seeds: how high the objective gets."""
    data = fashion_mnist()
    inputs, targets = data.train_inputs[:pictures], data.train_targets[:pictures]
    inputs = (inputs - inputs.mean()) / inputs.std()

    def trained(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module, steps = models.resnet20(in_channels=1), epochs * pictures // batch
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=steps)
        for _ in range(epochs):
            for rows in torch.randperm(pictures).split(batch):
                optimiser.zero_grad()
                cross_entropy(module(inputs[rows]), targets[rows]).backward()
                optimiser.step()
                schedule.step()
        return module.eval()

    for pair in range(2):
        one, other = trained(2 * pair), trained(2 * pair + 1)
        group = discover(one, inputs[:1])
        names, nets = matched_tensors(group), [weights_of(one), weights_of(other)]
        for to, weights in (nets, nets[::-1]):
            orders = [partial(reference_loop, group, weights, to, seed) for seed in range(10)]
            loops = [seconds_of(order) for order in orders]
            best, spent = max(objective(names, to, w) for _, w in loops), sum(t for t, _ in loops)
            print(
                f"trained pair {pair}: best of ten loops {best:.2f} in {spent:.3f} s; ours", end=""
            )
            for restarts in (0, 10, 20):
                by = ByWeights(scales="keep", restarts=restarts)
                spent, result = seconds_of(partial(match, group, weights, to=to, by=by))
                reached = objective(names, to, result.weights)
                print(f" {reached:.2f} in {spent:.3f} s ({restarts} restarts)", end=";")
            print(" met" if reached >= best else " NOT MET", flush=True)


def seconds_of(call: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def _member(element: Element, k: int) -> Element:
    return Element(
        {n: t[k] for n, t in element.permutations.items()},
        {n: torch.ones_like(t[k]) for n, t in element.scales.items()},
    )


EXTRA: dict[str, Callable[[], None]] = {"many": run_many, "trained": run_trained}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for choice in chosen([*NETS, *EXTRA], sys.argv[1:]):
        EXTRA[choice]() if choice in EXTRA else run(choice)
