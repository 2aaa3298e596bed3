"""Metrics of 16 members × 10,000 inputs × 100 classes against torchmetrics, torch-uncertainty and
netcal, metric by metric and all together; the pairwise study; the discrepancy of 1,000 networks.

    python benchmarks/metrics.py [metrics] [pairwise] [discrepancy] [discrepancy-full]

Peers that are not installed are named and left out.  torch-uncertainty is loaded file by file, for
its package asks for lightning and torchvision, its metrics for seaborn only.
"""

import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from functools import partial

import torch
from timing import medians, peak_memory_of, print_line

from coset import metrics as ours
from coset.metrics import fused, pairwise
from coset.metrics.discrepancy import torch_absolute_sums

MEMBERS, INPUTS, CLASSES = 16, 10_000, 100
Run = Callable[[], object]


class Data:
    """Predictions of an ensemble, as every contestant wants them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        common = torch.randn(INPUTS, CLASSES, generator=generator)
        own = torch.randn(MEMBERS, INPUTS, CLASSES, generator=generator)
        self.members = torch.softmax(2 * common + own, -1)
        self.mean = self.members.mean(0)
        self.targets = self.mean.multinomial(1, generator=generator).squeeze(1)
        self.members_second = self.members.transpose(0, 1).contiguous()
        self.inliers = -self.mean.amax(-1)
        self.outliers = self.inliers + 0.1 * torch.randn(INPUTS, generator=generator)
        self.scores = torch.cat([self.inliers, self.outliers])
        self.is_outlier = torch.cat([torch.zeros(INPUTS), torch.ones(INPUTS)]).long()
        self.binary = (self.scores - self.scores.min()) / (self.scores.max() - self.scores.min())


def our_metrics(data: Data) -> dict[str, Run]:
    labelled = [
        "accuracy",
        "negative_log_likelihood",
        "brier",
        "expected_calibration_error",
        "adaptive_calibration_error",
        "area_under_risk_coverage",
    ]
    arguments = {name: (data.mean, data.targets) for name in labelled}
    arguments |= dict.fromkeys(("auroc", "aupr", "fpr_at_95"), (data.inliers, data.outliers))
    arguments |= dict.fromkeys(("mutual_information", "disagreement"), (data.members,))
    runs: dict[str, Run] = {
        name: partial(getattr(ours, name), *readings) for name, readings in arguments.items()
    }
    runs["classwise_calibration_error"] = lambda: ours.classwise_calibration_error(
        data.mean, data.targets, adaptive=False
    )
    return runs


def torchmetrics_runs(data: Data) -> dict[str, Run]:
    peer = importlib.import_module("torchmetrics.functional.classification")
    return {
        "accuracy": lambda: peer.multiclass_accuracy(
            data.mean, data.targets, CLASSES, average="micro"
        ),
        "expected_calibration_error": lambda: peer.multiclass_calibration_error(
            data.mean, data.targets, CLASSES, 15
        ),
        "auroc": lambda: peer.binary_auroc(data.binary, data.is_outlier),
        "aupr": lambda: peer.binary_average_precision(data.binary, data.is_outlier),
    }


def torch_uncertainty_runs(data: Data) -> dict[str, Run]:
    folder = "torch_uncertainty.metrics.classification"

    def metric(
        file: str, name: str, *arguments: object, **options: object
    ) -> Callable[..., object]:
        kind = getattr(importlib.import_module(f"{folder}.{file}"), name)

        def run(*readings: torch.Tensor) -> object:
            instance = kind(*arguments, **options)
            instance.update(*readings)
            return instance.compute()

        return run

    for name in ("torch_uncertainty", "torch_uncertainty.metrics", folder, f"{folder}.calibration"):
        _without_its_init(name)
    labelled = (data.mean, data.targets)
    brier = metric("brier_score", "BrierScore", CLASSES)
    likelihood = metric("categorical_nll", "CategoricalNLL")
    adaptive = metric(
        "calibration.adaptive_calibration_error",
        "AdaptiveCalibrationError",
        "multiclass",
        15,
        num_classes=CLASSES,
    )
    classwise = metric(
        "calibration.classwise_calibration_error", "ClasswiseCalibrationError", CLASSES
    )
    false_positives = metric("fpr", "FPR95", 1)
    information = metric("mutual_information", "MutualInformation")
    disagreement = metric("disagreement", "Disagreement")
    risk = metric("risk_coverage", "AURC")
    return {
        "brier": lambda: brier(*labelled),
        "negative_log_likelihood": lambda: likelihood(*labelled),
        "adaptive_calibration_error": lambda: adaptive(*labelled),
        "classwise_calibration_error": lambda: classwise(*labelled),
        "area_under_risk_coverage": lambda: risk(*labelled),
        "fpr_at_95": lambda: false_positives(data.scores, data.is_outlier),
        "mutual_information": lambda: information(data.members_second),
        "disagreement": lambda: disagreement(data.members_second),
    }


def _without_its_init(name: str) -> None:
    """A package whose modules can be imported, but whose own file is never run."""
    package = types.ModuleType(name)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(name=name.partition(".")[0])
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package


def netcal_runs(data: Data) -> dict[str, Run]:
    peer = importlib.import_module("netcal.metrics")
    mean, targets = data.mean.numpy(), data.targets.numpy()
    return {"expected_calibration_error": lambda: peer.ECE(15).measure(mean, targets)}


PEERS = {
    "torchmetrics": torchmetrics_runs,
    "torch-uncertainty": torch_uncertainty_runs,
    "netcal": netcal_runs,
}


def compare_metrics() -> None:
    data = Data()
    own = our_metrics(data)
    fastest: dict[str, tuple[float, Run]] = {}
    for peer, make in PEERS.items():
        try:
            others = make(data)
        except ModuleNotFoundError as error:
            print(f"{peer} is left out: {error.name} is not installed")
            continue
        for name, other in others.items():
            seconds = medians({"ours": own[name], "other": other}, repeats=7)
            wanted = 3.0 if name == "mutual_information" else 1.0
            print_line(f"{name}, {peer}", seconds["ours"], seconds["other"], wanted=wanted)
            if seconds["other"] < fastest.get(name, (float("inf"), other))[0]:
                fastest[name] = seconds["other"], other
    if fastest:
        compare_all(data, [run for _, run in fastest.values()], list(fastest))


def compare_all(data: Data, others: list[Run], names: list[str]) -> None:
    """All metrics that a peer offers: ours in one pass over the members, theirs one by one."""
    answer = types.SimpleNamespace

    def predict(rows: torch.Tensor) -> object:
        first, last = int(rows[0]), int(rows[-1]) + 1
        mean = data.mean[first:last]
        return answer(mean=mean, members=data.members[:, first:last], variance=None)

    rows = torch.arange(INPUTS)
    seconds = medians(
        {
            "ours": lambda: ours.evaluate(
                predict, (rows, data.targets), outliers=rows, metrics=names
            ),
            "other": lambda: [run() for run in others],
        },
        repeats=5,
    )
    print_line(f"all {len(names)}, the fastest peer of each", seconds["ours"], seconds["other"])


def limit_of_the_logarithm() -> float:
    """Seconds for one logarithm of float32, vectorised, in cache, with one thread, at best."""
    values = torch.rand(1 << 15) + 0.01
    out = torch.empty_like(values)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = float("inf")
    for _ in range(200):
        begin = time.perf_counter()
        torch.log(values, out=out)
        best = min(best, time.perf_counter() - begin)
    torch.set_num_threads(threads)
    return best / values.numel()


def study_pairs() -> None:
    """A fifth of the networks and inputs of the paper's study, scaled up to all of it."""
    networks, inputs, classes = 200, 2_000, 10
    generator = torch.Generator().manual_seed(0)
    members = torch.softmax(2 * torch.randn(networks, inputs, classes, generator=generator), -1)
    entries = networks * (networks - 1) // 2 * inputs * classes
    whole = 499_500 * 10_000 * 10
    limit = limit_of_the_logarithm() / torch.get_num_threads()
    forms = {"plain torch": None, "numba": fused.fused_entropy_sums()}
    flat, _ = pairwise._prepare(members)
    blocks = flat.split(pairwise.COLUMNS, dim=1)
    for name, form in forms.items():
        sums = pairwise.torch_entropy_sums if name == "plain torch" else form
        if sums is None:
            print("numba is left out: it is not installed")
            continue
        taken = medians({name: lambda sums=sums: [sums(block) for block in blocks]}, repeats=5)[
            name
        ]
        print(
            f"pairwise mutual information, {name:<12} {taken / entries * 1e9:6.3f} ns an entry   "
            f"{limit * entries / taken:4.0%} of the limit of the logarithm   "
            f"1,000 networks × 10,000 × 10: {taken / entries * whole:6.1f} s"
        )


def study_discrepancy(networks: int = 250) -> None:
    """Weights of ResNet-20: the time grows with the square of the networks."""
    parameters = 272_474
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(networks, parameters, generator=generator)
    reference = torch.randn(networks, parameters, generator=generator)
    begin = time.perf_counter()
    peak = peak_memory_of(lambda: ours.maximum_mean_discrepancy(samples, reference))
    taken = time.perf_counter() - begin
    form = "numba" if fused.fused_absolute_sums() else torch_absolute_sums.__name__
    print(
        f"discrepancy of {networks} and {networks} ResNet-20 ({form}): {taken:.1f} s, peak memory "
        f"{peak:.0f} MiB with the samples; 1,000 and 1,000: {taken * (1000 / networks) ** 2:.0f} s"
    )


CASES = {
    "metrics": compare_metrics,
    "pairwise": study_pairs,
    "discrepancy": study_discrepancy,
    "discrepancy-full": lambda: study_discrepancy(1_000),
}


if __name__ == "__main__":
    for case in sys.argv[1:] or ("metrics", "pairwise", "discrepancy"):
        CASES[case]()
