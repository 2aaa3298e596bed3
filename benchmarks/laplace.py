"""KFAC-Laplace against laplace-torch: fit, tuning, prediction, memory, in one run.

Both measure the same curvature of the same network on the same data, one thread each; before
anything is timed, log evidence and predictive variance are compared (bias-free networks, so that
the blocks are the same).  laplace-torch predicts a few inputs only and is scaled up.

    python benchmarks/laplace.py [mlp] [cnn] [resnet] [head]
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import chosen, medians, peak_memory_of, print_line
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coset import KFAC, Categorical, GaussianPrior, Laplace, Problem, fit, functionalise
from coset.bayes import as_batches
from coset.posterior.evidence import best_precision, spectrum_of

PRECISION = 10.0
"""Of the prior, before it is tuned."""


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    rows: int
    theirs: int  # inputs that laplace-torch predicts
    wanted: tuple[float, float, float]  # fit, tuning, prediction
    batch: int = 250
    repeats: int = 3


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


def cases() -> dict[str, Case]:
    return {
        "mlp": Case("MLP 784-256-256-10", perceptron, (784,), 10, 10_000, 20, (2, 20, 100)),
        "cnn": Case("CNN of 44k weights", convolutions, (1, 28, 28), 10, 10_000, 50, (2, 20, 20)),
        "resnet": Case(
            "ResNet-20", Residual, (3, 32, 32), 10, 500, 10, (4, 20, 100), batch=50, repeats=1
        ),
        "head": Case(
            "layer of 64 to 1,000 classes",
            lambda: nn.Linear(64, 1000, bias=False),
            (64,),
            1000,
            500,
            5,
            (2, 20, 100),
            repeats=1,
        ),
    }


def peer(module: nn.Module, loader: DataLoader) -> object:
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]  # this file is no laplace
    from laplace import Laplace as Other
    from laplace.curvature import AsdlGGN

    found = Other(
        module,
        "classification",
        subset_of_weights="all",
        hessian_structure="kron",
        backend=AsdlGGN,
        prior_precision=PRECISION,
    )
    found.fit(loader)
    return found


def run(case: Case) -> None:
    torch.manual_seed(0)
    module = case.build().eval()
    inputs = torch.randn(case.rows, *case.shape)
    targets = torch.randint(case.classes, (case.rows,))
    new = torch.randn(1000, *case.shape)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=case.batch)
    network = functionalise(module)
    batches = as_batches((inputs, targets), batch_size=case.batch)
    problem = Problem(network, Categorical(), GaussianPrior(PRECISION), batches)
    recipe = KFAC(corrected=False)
    weights, layout = network.weights, network.layout

    ours = fit(module, loader, method=Laplace(recipe, tuning=None), prior=GaussianPrior(PRECISION))
    theirs = peer(module, loader)
    evidence = float(theirs.log_marginal_likelihood())
    few = new[: case.theirs]
    _, covariance = theirs._glm_predictive_distribution(few)
    gap = (ours(few).covariance - covariance).abs().max() / covariance.abs().max()
    print(f"{case.name}: {layout.size:,} weights, {case.rows:,} data")
    print(f"  evidence {ours.log_evidence:.3f} and {evidence:.3f}; covariance differs by {gap:.1e}")

    found = medians(
        {
            "ours": lambda: recipe.build(problem, weights, layout),
            "theirs": lambda: peer(module, loader),
        },
        repeats=case.repeats,
        warmups=0,
    )
    print_line("  fit", found["ours"], found["theirs"], wanted=case.wanted[0])

    measured = recipe.build(problem, weights, layout)
    labels = torch.zeros(layout.size, dtype=torch.long)
    norms = layout.flatten(weights).double().square().sum().reshape(1)

    def tune() -> float:
        spectrum = spectrum_of(measured.operator, labels, 1)
        return float(best_precision(spectrum, norms, layout.size / norms))

    found = medians(
        {"ours": tune, "theirs": lambda: theirs.optimize_prior_precision(method="marglik")},
        repeats=case.repeats,
    )
    print_line("  tuning", found["ours"], found["theirs"], wanted=case.wanted[1])

    found = medians(
        {"ours": lambda: ours(new), "theirs": lambda: theirs(few)}, repeats=case.repeats
    )
    scaled = found["theirs"] * len(new) / len(few)
    print_line("  1,000 predictions", found["ours"], scaled, wanted=case.wanted[2])
    own, other = peak_memory_of(lambda: ours(new)), peak_memory_of(lambda: theirs(few))
    print(f"  peak memory: ours {own:.0f} MiB for 1,000 inputs, other {other:.0f} for {len(few)}")
    sys.stdout.flush()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = cases()
    for name in chosen(list(table), sys.argv[1:]):
        run(table[name])


if __name__ == "__main__":
    main()
