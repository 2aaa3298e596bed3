"""Sample-then-optimise at scale: ResNet-18 (11 M weights) and ResNet-50 (23 M) on CIFAR-10.

Each network is trained for a minute or two on a few hundred images, so that it is no random
function, and then gets a fit to the first of them with every weight uncertain: the g-prior, two
updates of one precision, conjugate gradients over all the images of the fit.  Printed are CPU
seconds of each iteration and step, peak memory, what was found, and the same for one round with 16
samples.  COSET_DATA names a folder with (a part of) CIFAR-10.

    python benchmarks/matrix_free.py [mlp] [resnet18] [resnet50] [sixteen] [number of images]

``mlp`` compares curvatures and solvers on MNIST: MLP 784-64-64-10, 300 images, 16 samples, one
precision for all weights, five updates.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from timing import chosen, peak_memory_of
from torch import Tensor, nn

from coset import (
    KFAC,
    ByEvidence,
    Categorical,
    ConjugateGradients,
    DiagonalOnly,
    Laplace,
    MatrixFree,
    Predictor,
    StochasticDescent,
    fit,
)
from coset.data import cifar10, mnist
from coset.models import mlp, resnet18, resnet50

MEMORY = 24 << 30
TRAINED = 320  # images that a network sees before, of which the fit takes the first
BATCH = 32
TESTED = 32


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    images: int
    samples: int
    updates: int | None
    tolerance: float
    training: int


CASES = {
    "resnet18": Case("ResNet-18", resnet18, 100, 4, 2, 0.1, 40),
    "resnet50": Case("ResNet-50", resnet50, 50, 2, 2, 0.1, 40),
    "sixteen": Case("ResNet-50, one round", resnet50, 16, 16, None, 0.1, 40),
}


def pictures(count: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Standardised training images with labels, in random order, and test images with theirs."""
    data = cifar10()
    order = torch.randperm(len(data.train_inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = data.train_inputs[order[:count]], data.train_targets[order[:count]]
    mean, std = inputs.mean((0, 2, 3), keepdim=True), inputs.std((0, 2, 3), keepdim=True)
    new = (data.test_inputs[:TESTED] - mean) / std, data.test_targets[:TESTED]
    return (inputs - mean) / std, targets, new


def trained(case: Case, inputs: Tensor, targets: Tensor) -> nn.Module:
    """Some steps of training; the running statistics of the norms settle on the way."""
    torch.manual_seed(0)
    module = case.build().train()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    for step in range(case.training):
        rows = torch.arange(BATCH * step, BATCH * (step + 1)) % len(inputs)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs[rows]), targets[rows]).backward()
        optimiser.step()
    return module.eval()


def run(case: Case) -> None:
    inputs, targets, new = pictures(max(case.images, TRAINED))
    module = trained(case, inputs, targets)
    with torch.no_grad():
        right = module(new[0]).argmax(1) == new[1]
    inputs, targets = inputs[: case.images], targets[: case.images]
    weights = sum(p.numel() for p in module.parameters())
    print(
        f"{case.name}: {weights:,} weights, {case.images} images, {case.samples} samples, "
        f"{float(right.float().mean()):.2f} of the test images right",
        flush=True,
    )
    begun = last = time.process_time()

    def progress(share: float, line: str) -> None:
        nonlocal last
        now = time.process_time()
        print(f"  {now - begun:7.1f} s (+{now - last:5.1f})  {line}", flush=True)
        last = now

    solver = ConjugateGradients(DiagonalOnly(), tolerance=case.tolerance, iterations=100)
    curvature = MatrixFree(case.samples, solver, "normalised", memory=MEMORY)
    tuning = None
    if case.updates is not None:
        tuning = ByEvidence(groups="single", steps=case.updates)
    found: list[Predictor] = []

    def work() -> None:
        method = Laplace(curvature=curvature, tuning=tuning)
        found.append(fit(module, (inputs, targets), method=method, progress=progress))

    peak = peak_memory_of(work)
    print(f"  fit {time.process_time() - begun:.0f} s of CPU, peak memory {peak / 1024:.2f} GiB")
    report = found[0].posterior.report
    print("  " + ", ".join(f"{name} {value:.4g}" for name, value in report.diagnostics.items()))
    begun = time.process_time()
    predictions = found[0](new[0])
    taken = time.process_time() - begun
    plain = Categorical().mean(module(new[0])).detach()
    print(
        f"  prediction of {len(new[0])} images {taken:.1f} s; mean confidence "
        f"{float(predictions.mean.amax(1).mean()):.3f}, of the network by itself "
        f"{float(plain.amax(1).mean()):.3f}",
        flush=True,
    )


def compare_solvers(rows: int = 300, tested: int = 1000) -> None:
    """The same posterior by different means."""
    data = mnist()
    images = [part.flatten(1) for part in (data.train_inputs[:rows], data.test_inputs[:tested])]
    mean, std = images[0].mean(), images[0].std()
    inputs, new = ((part - mean) / std for part in images)
    targets, labels = data.train_targets[:rows], data.test_targets[:tested]
    module = trained(
        Case("MLP", lambda: mlp(784, (64, 64), 10), rows, 16, 5, 0, 200), inputs, targets
    )

    def loss(chances: Tensor) -> float:
        return float(-chances[torch.arange(tested), labels].clamp_min(1e-12).log().mean())

    print(f"MLP 784-64-64-10 by itself: test NLL {loss(module(new).detach().softmax(1)):.3f}")
    for name, curvature in {
        "KFAC": KFAC(),
        "by KFAC": MatrixFree(16, ConjugateGradients(KFAC())),
        "by the diagonal": MatrixFree(16, ConjugateGradients(DiagonalOnly())),
        "by descent": MatrixFree(16, StochasticDescent(epochs=20, batch=100)),
    }.items():
        begun = time.process_time()
        method = Laplace(curvature, tuning=ByEvidence(groups="single", steps=5))
        found = fit(module, (inputs, targets), method=method)
        taken, report = time.process_time() - begun, found.posterior.report.diagnostics
        shown = ("effective_weights", "effective_weights_error", "median_precision", "residual")
        print(
            f"  {name}: {taken:.1f} s, test NLL {loss(found(new).mean):.3f}, "
            + ", ".join(f"{key} {report[key]:.3g}" for key in shown if key in report),
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    for name in chosen(["mlp", *CASES], words):
        if name == "mlp":
            compare_solvers()
        else:
            run(replace(CASES[name], images=numbers[0]) if numbers else CASES[name])
