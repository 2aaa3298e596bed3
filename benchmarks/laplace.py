"""KFAC-Laplace against laplace-torch: fit, tuning, prediction, memory, in one run.

    python benchmarks/laplace.py [mlp] [cnn] [resnet] [head] [default]

Both measure the same curvature of the same network on the same data, one thread each.  Before
anything is timed, log evidence and predictive covariance are compared in double precision on a few
data (bias-free networks, so that the blocks are the same).  Times are processor seconds.  Of
laplace-torch's backends the fastest that works is taken, for the prediction by itself; it fits and
predicts as many data as the line says and is scaled up.  ``default`` is what a user meets first,
``fit(resnet20(), data)`` with batch norm and everything tuned, by phases; there is no peer for it.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timing import chosen, peak_memory_of, print_line
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coset import KFAC, Categorical, GaussianPrior, Laplace, LastLayer, Problem, fit, functionalise
from coset.bayes import as_batches
from coset.inference.laplace.evidence import best_precision, spectrum_of
from coset.models import resnet20

PRECISION = 10.0
"""Of the prior, before it is tuned."""

AGREEMENT = 1e-5
"""Relative difference of evidence and covariance that is allowed, in double precision."""


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    rows: int
    fitted: int  # data that laplace-torch is fitted to
    new: int  # inputs that are predicted
    predicted: int  # inputs that laplace-torch predicts
    wanted: tuple[float, float, float]  # fit, tuning, prediction
    batch: int = 250
    repeats: int = 3
    last: bool = False  # the last layer alone


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256, bias=False),
        nn.ReLU(),
        nn.Linear(256, 256, bias=False),
        nn.ReLU(),
        nn.Linear(256, 10, bias=False),
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 100, bias=False),
        nn.ReLU(),
        nn.Linear(100, 10, bias=False),
    )


class Residual(nn.Module):
    """Three stages of residual blocks without norm, 20 layers deep: all that both can read."""

    def __init__(self, width: int = 16, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                inner = width * 2**stage // stride if stride == 2 else width * 2**stage
                outer = width * 2**stage
                self.blocks.append(
                    nn.ModuleDict(
                        {
                            "first": nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
                            "second": nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
                            "skip": nn.Conv2d(inner, outer, 1, stride, bias=False),
                        }
                    )
                )
        self.last = nn.Linear(4 * width, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = (0.5 * block["second"](block["first"](x).relu()) + block["skip"](x)).relu()
        return self.last(x.mean((2, 3)))


def many_classes() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 1000, bias=False))


def cases() -> dict[str, Case]:
    few = (2, 20, 100)
    return {
        "mlp": Case("MLP 784-256-256-10", perceptron, (784,), 10, 10_000, 10_000, 1000, 20, few),
        "cnn": Case(
            "CNN of 44k weights", convolutions, (1, 28, 28), 10, 4000, 4000, 1000, 50, (2, 20, 20)
        ),
        "resnet": Case(
            "ResNet-20", Residual, (3, 32, 32), 10, 1000, 100, 100, 10, (3, 20, 25), 50, 1
        ),
        "head": Case(
            "last layer, 1,000 classes",
            many_classes,
            (32,),
            1000,
            500,
            100,
            20,
            5,
            few,
            50,
            1,
            True,
        ),
    }


def peer(module: nn.Module, data: tuple, case: Case, backend: str = "AsdlGGN") -> object:
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # this file is no laplace
    from laplace import Laplace as Other
    from laplace import curvature

    found = Other(
        module,
        "classification",
        subset_of_weights="last_layer" if case.last else "all",
        hessian_structure="kron",
        backend=getattr(curvature, backend),
        prior_precision=PRECISION,
    )
    found.fit(DataLoader(TensorDataset(*data), batch_size=case.batch))
    return found


def timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What a call returns, and the median of the processor time of some calls."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        found = run()
        taken.append(time.process_time() - begin)
    return found, statistics.median(taken)


def data_of(case: Case, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, *case.shape, dtype=dtype), torch.randint(case.classes, (rows,))


def method(case: Case) -> Laplace:
    return Laplace(KFAC(corrected=False), LastLayer() if case.last else None, tuning=None)


def compare(case: Case) -> None:
    """Refuses to time two things that are not the same."""
    torch.manual_seed(1)
    module = case.build().double().eval()
    data = data_of(case, 40, torch.float64)
    new = torch.randn(2, *case.shape, dtype=torch.float64)
    ours = fit(module, data, method=method(case), prior=GaussianPrior(PRECISION))
    theirs = peer(module, data, case)
    evidence = float(theirs.log_marginal_likelihood())
    _, covariance = theirs._glm_predictive_distribution(new)
    gap = float((ours(new).covariance - covariance).abs().max() / covariance.abs().max())
    apart = abs(ours.log_evidence - evidence) / abs(evidence)
    print(f"  evidence differs by {apart:.0e} of itself, the covariance by {gap:.0e}")
    if max(gap, apart) > AGREEMENT:
        raise SystemExit(f"{case.name}: the two do not agree to {AGREEMENT}")


def run(case: Case) -> None:
    module = case.build().eval()
    network = functionalise(module)
    layout = network.layout.select("2.*") if case.last else network.layout
    print(f"{case.name}: {layout.size:,} weights, {case.rows:,} data, {case.new:,} new inputs")
    compare(case)
    torch.manual_seed(0)
    data = data_of(case, case.rows, torch.float32)
    part = data[0][: case.fitted], data[1][: case.fitted]
    new = torch.randn(case.new, *case.shape)
    few = new[: case.predicted]
    problem = Problem(
        network,
        Categorical(),
        GaussianPrior(PRECISION),
        as_batches(data, batch_size=case.batch),
    )
    recipe, weights = KFAC(corrected=False), network.weights
    measured, own = timed(lambda: recipe.build(problem, weights, layout), case.repeats)
    theirs, other = timed(lambda: peer(module, part, case), case.repeats)
    other *= case.rows / case.fitted
    print_line(f"  fit (theirs {case.fitted:,} data)", own, other, wanted=case.wanted[0])

    labels = torch.zeros(layout.size, dtype=torch.long)
    norms = layout.flatten(weights).double().square().sum().reshape(1)

    def tune() -> float:
        spectrum = spectrum_of(measured.operator, labels, 1)
        return float(best_precision(spectrum, norms, layout.size / norms))

    own = timed(tune, 5)[1]
    other = timed(lambda: theirs.optimize_prior_precision(method="marglik"), 1)[1]
    print_line("  tuning", own, other, wanted=case.wanted[1])

    ours = fit(module, part, method=method(case), prior=GaussianPrior(PRECISION))
    own = timed(lambda: ours(new), case.repeats)[1]
    others = {"AsdlGGN": timed(lambda: theirs(few), 1)[1]}
    if case.build in (perceptron, convolutions):  # its Jacobians are faster where they work
        fresh = case.build().eval()  # hooks of one backend are in the way of another's
        fresh.load_state_dict(module.state_dict())
        second = peer(fresh, part, case, "BackPackGGN")
        others["BackPackGGN"] = timed(lambda: second(few), 1)[1]
    best = min(others, key=others.__getitem__)
    print_line(
        f"  prediction (theirs {len(few)}, {best})",
        own,
        others[best] * case.new / len(few),
        wanted=case.wanted[2],
    )
    before = peak_memory_of(lambda: None)
    own, other = (peak_memory_of(run) - before for run in (lambda: ours(new), lambda: theirs(few)))
    print(
        f"  peak memory beyond {before:.0f} MiB: ours {own:.0f} MiB for {case.new:,} inputs, "
        f"other {other:.0f} for {len(few)}"
    )
    sys.stdout.flush()


def default_fit(rows: int = 64, new: int = 16) -> None:
    """Phases of a fit without options; the first call also imports what finds symmetries."""
    torch.manual_seed(0)
    module = resnet20()
    data = torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))
    for _ in range(3):
        module(data[0])  # running statistics
    module.eval()
    marks: list[tuple[str, float]] = []
    begin = time.process_time()
    predictor = fit(
        module, data, progress=lambda _, line: marks.append((line, time.process_time()))
    )
    end = time.process_time()
    print(f"ResNet-20 with batch norm, default fit to {rows} data: {end - begin:.1f} s")
    for (line, start), stop in zip(marks, [*(mark for _, mark in marks[1:]), end], strict=True):
        print(f"  {line or 'fit'}: {stop - start:.1f} s")
    again = timed(lambda: fit(module, data), 1)[1]
    predict = timed(lambda: predictor(data[0][:new]), 3)[1] / new
    print(f"  a second fit: {again:.1f} s, prediction {1000 * predict:.0f} ms an input")


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = cases()
    for name in chosen([*table, "default"], sys.argv[1:]):
        if name == "default":
            default_fit()
        else:
            run(table[name])


if __name__ == "__main__":
    main()
