"""Compact Gaussians of HMC and of an ensemble, aligned and not, against HMC; and pruning."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.inference.ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.mean_field import MeanField
from coset.inference.rebased import RebasedGaussian
from coset.metrics import accuracy, agreement, total_variation
from coset.posterior.families import Posterior, Samples
from coset.posterior.low_rank import LowRankGaussian
from coset.posterior.predict import apply_members
from coset.predictor import Predictor
from coset.pruning import prune
from coset.studies.cells.data import Pictures, pictures
from coset.studies.cells.networks import module_of, recipe_of, seeded
from coset.symmetry.discover import discover
from coset.vocabulary import Weights
from coset.weights.stacking import unstack

_DRAWS, _SHOWN = 200, 3000
"""Draws from each Gaussian, and weights kept for the histograms."""


def compute(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> dict[str, Any]:
    """The whole study for one seed: chains, ensemble, Gaussians, pictures and pruning."""
    data, module = pictures(parameters), module_of(parameters)
    prior = GaussianPrior(float(parameters["precision"]))
    problem = Problem.of(module, data.train, prior=prior)
    count = int(parameters["draws"])
    number = int(parameters.get("chains", 2))
    chains = HMC(chains=number, warmup=count, draws=count // number, max_steps=64)
    hmc = chains.fit(problem, generator=seeded(seed, "chains"))
    method = DeepEnsemble(members=int(parameters["members"]), base=recipe_of(parameters))
    ensemble = method.fit(problem, generator=seeded(seed, "ensemble"))
    variational = MeanField(epochs=2 * int(parameters["epochs"]))
    reference = _mean(problem, hmc.stack, data)
    posteriors = _compact(problem, hmc, ensemble, seed)
    posteriors["mean_field"] = variational.fit(problem, generator=seeded(seed, "mean field"))
    values: dict[str, Any] = {}
    for name, posterior in posteriors.items():
        values |= _compared(problem, name, posterior, reference, data, seed)
    for name in ("hmc", "ensemble"):
        for quantity, sign in (("agreement", 1), ("variation", -1), ("mean_accuracy", 1)):
            gained = values[f"{quantity}_{name}_first"] - values[f"{quantity}_{name}_direct"]
            values[f"{quantity}_gained_{name}"] = sign * gained
    values["control_self"] = values["variation_hmc_samples"]
    values["rhat"] = max(
        (v for n, v in hmc.report.diagnostics.items() if n.startswith("r_hat")), default=math.nan
    )
    values["acceptance"] = hmc.report.diagnostics.get("acceptance", math.nan)
    values["control_copies"] = _copies(problem, ensemble, data, seed)
    values |= _sigmas(problem, posteriors, seed) | _clouds(problem, hmc, seed)
    return values | _pruned(problem, posteriors, ensemble, data, list(parameters["kept"]))


def _compact(problem: Problem, hmc: Samples, ensemble: Samples, seed: int) -> dict[str, Posterior]:
    """The Gaussians of the table by the names of its rows, and the samples themselves."""
    found: dict[str, Posterior] = {}
    for name, samples in (("hmc", hmc), ("ensemble", ensemble)):
        found[f"{name}_samples"] = samples
        fits = {
            "direct": RebasedGaussian(align=None),
            "first": RebasedGaussian(reference="first"),
            "mean": RebasedGaussian(),
        }
        if name == "hmc":
            rank = min(100, len(samples.stack["linear1.bias"]) - 1)
            fits["density"] = RebasedGaussian(reference="gaussian")
            fits["covariance"] = RebasedGaussian(reference="gaussian", rank=rank)
        for kind, method in fits.items():
            generator = seeded(seed, f"compact {name} {kind}")
            found[f"{name}_{kind}"] = method.compact(problem, samples, generator=generator)
    return found


def _mean(problem: Problem, stack: Weights, data: Pictures) -> Float[Tensor, "n c"]:
    """The averaged class probabilities of a stack on the test pictures."""
    return apply_members(problem.network, stack, data.test[0]).softmax(-1).mean(0)


def _compared(
    problem: Problem,
    name: str,
    posterior: Posterior,
    reference: Float[Tensor, "n c"],
    data: Pictures,
    seed: int,
) -> dict[str, float]:
    """Agreement, total variation and accuracies of one row of the table."""
    if isinstance(posterior, Samples):
        stack = posterior.stack
        centre = {key: tensor.mean(0) for key, tensor in stack.items()}
    else:
        stack = posterior.sample(_DRAWS, generator=seeded(seed, f"draws {name}"))
        centre = _gaussian(posterior).marginals()[0]
    said = _mean(problem, stack, data)
    one = _mean(problem, {key: tensor.unsqueeze(0) for key, tensor in centre.items()}, data)
    return {
        f"agreement_{name}": float(agreement(said, reference)),
        f"variation_{name}": float(total_variation(said, reference)),
        f"accuracy_{name}": float(accuracy(said, data.test[1])),
        f"mean_accuracy_{name}": float(accuracy(one, data.test[1])),
    }


def _gaussian(posterior: Posterior) -> Any:
    """A posterior that knows its marginals."""
    return posterior


def _copies(problem: Problem, ensemble: Samples, data: Pictures, seed: int) -> float:
    """The largest standard deviation over scrambled copies of one network, once aligned."""
    from dataclasses import replace

    assert problem.network.module is not None
    group = replace(discover(problem.network.module, data.test[0][:1]), scalings=())
    one = unstack(ensemble.stack)[0]
    copies = group.act(group.sample(generator=seeded(seed, "copies"), members=8), one)
    aligned = RebasedGaussian().compact(
        problem, Samples(copies), generator=seeded(seed, "aligning copies")
    )
    std = _gaussian(aligned).marginals()[1]
    return max(float(tensor.max()) for tensor in std.values())


def _sigmas(problem: Problem, posteriors: Mapping[str, Posterior], seed: int) -> dict[str, Any]:
    """Standard deviations of some weights, before and after alignment."""
    layout = problem.network.layout
    direct, aligned = (
        layout.flatten(_gaussian(posteriors[name]).marginals()[1])
        for name in ("hmc_direct", "hmc_mean")
    )
    some = torch.randperm(layout.size, generator=seeded(seed, "weights"))[:_SHOWN].sort().values
    return {
        "sigma_direct": direct[some].tolist(),
        "sigma_aligned": aligned[some].tolist(),
        "sigma_ratio": float(aligned.median() / direct.median()),
    }


def _clouds(problem: Problem, hmc: Samples, seed: int) -> dict[str, list[float]]:
    """The samples on their two leading directions, as sampled and aligned."""
    from coset.alignment.many import match_many

    assert problem.network.module is not None
    from dataclasses import replace

    example = problem.train.rows(torch.arange(1))[0]
    group = replace(discover(problem.network.module, example), scalings=())
    aligned = match_many(group, hmc.stack, generator=seeded(seed, "clouds")).weights
    values = {}
    for name, stack in (("plain", hmc.stack), ("rebased", aligned)):
        flat = problem.network.layout.flatten(stack).double()
        centred = flat - flat.mean(0)
        u, s, _ = torch.linalg.svd(centred, full_matrices=False)
        values[f"{name}_x"], values[f"{name}_y"] = (u[:, :2] * s[:2]).T.tolist()
    return values


def _pruned(
    problem: Problem,
    posteriors: Mapping[str, Posterior],
    ensemble: Samples,
    data: Pictures,
    kept: list[float],
) -> dict[str, Any]:
    """Accuracies of pruned networks: the mean of HMC, and a member of the ensemble."""
    aligned = posteriors["hmc_mean"]
    assert isinstance(aligned, LowRankGaussian)
    whole = Predictor(problem.network, aligned, problem.likelihood)
    assert problem.network.module is not None
    group = discover(problem.network.module, data.test[0][:1])
    identity = type(group)((), (), shapes=group.shapes)
    member = unstack(ensemble.stack)[0]

    def curve(**how: Any) -> list[float]:
        return [
            float(accuracy(prune(whole, keep, **how)(data.test[0]).mean, data.test[1]))
            for keep in kept
        ]

    by_sigma = curve()
    return {
        "kept": kept,
        "pruned_hmc_sigma": by_sigma,
        "pruned_hmc_signal": curve(score="signal"),
        "pruned_member_moved": curve(weights=member, group=group),
        "pruned_member_plain": curve(weights=member, group=identity),
        "half_kept": by_sigma[kept.index(0.5)] / by_sigma[0],
    }
