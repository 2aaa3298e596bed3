"""Finding, applying and removing symmetries.

    python benchmarks/symmetry.py [discover] [act] [canonicalise] [mass] [stack]

``discover`` stands next to rebasin and Torch-Pruning building their structures, where those work
(they find permutations only, and check nothing); ``act`` next to a deep copy of the weights; the
smallest mass next to cvxpy, in the logarithms of the scales, which its solver takes better than a
geometric programme.  Peers that are not installed, or fail, are named and left out.
"""

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import chosen, medians, print_line
from torch import Tensor, nn

from coset import discover, weights_of
from coset.models import mlp, optunet, resnet50, vision_transformer
from coset.symmetry.removing.canonical import canonicalise
from coset.symmetry.removing.mass import mass_profile, minimise_mass
from coset.vocabulary import Weights

IMAGE = (1, 3, 64, 64)


def transformer() -> nn.Module:
    return vision_transformer(image_size=64, patch=8, width=192, depth=12, heads=3).eval()


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"ResNet-50": resnet50().eval(), "transformer of 12 layers": transformer()}


def by_rebasin(module: nn.Module, example: Tensor) -> object:
    # a benchmark beside this one has the peer's name
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    from rebasin import PermutationCoordinateDescent

    return PermutationCoordinateDescent(module, copy.deepcopy(module), example)


def by_torch_pruning(module: nn.Module, example: Tensor) -> object:
    import torch_pruning

    return torch_pruning.DependencyGraph().build_dependency(module, example_inputs=example)


def once(run: Callable[[], object]) -> float | str:
    """Seconds of one call, or why it failed."""
    begin = time.perf_counter()
    try:
        run()
    except Exception as error:
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:60]}"
    return time.perf_counter() - begin


def time_discovery() -> None:
    example = torch.randn(IMAGE)
    for name, module in networks().items():
        first = once(lambda m=module: discover(m, example))
        again = once(lambda m=module: discover(m, example))
        print(f"discover, {name:<28} first {shown(first)}   again {shown(again)}")
        for peer, build in (("rebasin", by_rebasin), ("Torch-Pruning", by_torch_pruning)):
            taken = once(lambda m=module, b=build: b(copy.deepcopy(m), example))
            print(f"    {peer:<34} {shown(taken)}")


def shown(taken: float | str) -> str:
    return taken if isinstance(taken, str) else f"{taken:8.3f} s"


def time_action() -> None:
    module = resnet50().eval()
    group = discover(module, torch.randn(IMAGE))
    weights = weights_of(module)
    element = group.sample(generator=torch.Generator().manual_seed(0))
    taken = medians(
        {
            "act": lambda: group.act(element, weights),
            "copy": lambda: copy.deepcopy(weights),
        },
        repeats=7,
    )
    slower = taken["act"] / taken["copy"]
    print_line("act on ResNet-50 against deepcopy", taken["act"], taken["copy"])
    print(f"    act takes {slower:.2f} times the copy (wanted: at most 3)")


def time_canonical() -> None:
    module = resnet50().eval()
    group = discover(module, torch.randn(IMAGE))
    weights = weights_of(module)
    taken = medians({"canonicalise": lambda: canonicalise(group, weights)}, repeats=3)
    print(f"canonicalise ResNet-50                       ours {taken['canonicalise']:9.4f} s")


def by_cvxpy(weights: Weights, layers: list[str]) -> float:
    """The mass in logarithms of squared scales, a sum of exponentials of affine maps."""
    import cvxpy

    squares = [weights[f"{name}.weight"].double().square().numpy() for name in layers]
    logs = [cvxpy.Variable(len(square)) for square in squares[:-1]]
    total = 0.0
    for k, square in enumerate(squares):
        rows = logs[k] if k < len(logs) else None
        columns = logs[k - 1] if k else None
        if rows is None:
            total = total + square.sum(0) @ cvxpy.exp(-columns)
        elif columns is None:
            total = total + square.sum(1) @ cvxpy.exp(rows)
        else:
            after, before = square.shape
            up = cvxpy.reshape(rows, (after, 1), order="C") @ np.ones((1, before))
            down = np.ones((after, 1)) @ cvxpy.reshape(columns, (1, before), order="C")
            total = total + cvxpy.sum(cvxpy.multiply(square, cvxpy.exp(up - down)))
    problem = cvxpy.Problem(cvxpy.Minimize(total))
    problem.solve(solver="CLARABEL")
    return float(problem.value)


def time_mass() -> None:
    for width in (16, 64, 256):
        torch.manual_seed(0)
        module = mlp(in_features=784, hidden=(width, width), classes=10)
        group = discover(module, torch.zeros(1, 784))
        weights = weights_of(module)
        ours = medians({"ours": lambda g=group, w=weights: minimise_mass(g, w)}, repeats=7)["ours"]
        minimum = minimise_mass(group, weights)
        name = f"smallest mass, MLP 784-{width}-{width}-10"
        if width == 256:
            print(f"{name:<44} ours {ours:9.4f} s   {minimum.iterations} iterations")
            continue
        layers = [n.removesuffix(".weight") for n in weights if n.endswith("weight")]
        try:
            value = by_cvxpy(weights, layers)  # the first call imports it
        except ImportError:
            print(f"{name:<44} ours {ours:9.4f} s   cvxpy is not installed")
            continue
        other = medians({"cvxpy": lambda w=weights, n=layers: by_cvxpy(w, n)}, repeats=5)["cvxpy"]
        print_line(name, ours, other, wanted=100.0 if width == 64 else None)
        print(f"    optimum {float(minimum.mass):.8f}, cvxpy {value:.8f}")


def time_stack() -> None:
    torch.manual_seed(0)
    module = optunet()
    group = discover(module, torch.zeros(1, 1, 28, 28))
    weights = weights_of(module)
    zoo = {n: torch.randn(1000, *t.shape) * t.std() for n, t in weights.items()}
    taken = medians({"profile": lambda: mass_profile(group, zoo)}, repeats=3)["profile"]
    print(f"smallest mass, 1,000 OptuNets                ours {taken:9.4f} s  wanted below 1 s")


CASES = {
    "discover": time_discovery,
    "act": time_action,
    "canonicalise": time_canonical,
    "mass": time_mass,
    "stack": time_stack,
}

if __name__ == "__main__":
    torch.set_num_threads(1)  # many small tensors: a second thread costs more than it gives
    for name in chosen(list(CASES), sys.argv[1:]):
        CASES[name]()
