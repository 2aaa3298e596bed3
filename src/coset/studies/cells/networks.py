"""Trained networks of a cell: from a zoo that is there, or trained and kept beside the run."""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coset.bayes.likelihood import Categorical
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.engines import Serial
from coset.errors import CosetError
from coset.inference.beginnings import member_seeds, starting_points
from coset.inference.ensemble import DeepEnsemble
from coset.inference.map_estimate import MaximumAPosteriori
from coset.inference.training.optimisers import SGD, Adam
from coset.inference.training.schedules import Constant, Cosine, Schedule, Steps
from coset.models import mlp, optunet
from coset.posterior.predict import apply_members
from coset.store import load_record, save_record
from coset.studies.cells.data import Pictures, checksum, pictures
from coset.vocabulary import Weights
from coset.weights.network import functionalise
from coset.zoo import Zoo, populate, read_recipe


def module_of(parameters: Mapping[str, Any]) -> nn.Module:
    """The architecture that ``network`` names: ``optunet``, or ``mlp`` with ``hidden`` units."""
    data = pictures(parameters)
    shape = data.test[0].shape[1:]
    with torch.random.fork_rng(devices=[]):  # its own start is not used
        torch.manual_seed(0)
        if parameters["network"] == "optunet":
            return optunet(in_channels=shape[0], classes=data.classes)
        return mlp(shape.numel(), tuple(parameters["hidden"]), data.classes)


def recipe_of(parameters: Mapping[str, Any]) -> MaximumAPosteriori:
    """How networks are trained: ``optimiser``, ``rate``, ``epochs``, ``batch``, ``steps``."""
    rate = float(parameters["rate"])
    momentum = float(parameters.get("momentum", 0.0))
    schedules: dict[str, Schedule] = {
        "constant": Constant(),
        "cosine": Cosine(),
        "halved": Steps(at=(0.25, 0.5), drop=0.5),
    }
    return MaximumAPosteriori(
        optimiser=Adam(rate) if parameters["optimiser"] == "adam" else SGD(rate, momentum=momentum),
        schedule=schedules[parameters.get("schedule", "constant")],
        epochs=int(parameters["epochs"]),
        batch_size=int(parameters.get("batch", 64)),
    )


def problem_of(parameters: Mapping[str, Any]) -> Problem:
    """Network, data and the prior that is the weight decay: precision = decay · n."""
    data = pictures(parameters)
    precision = float(parameters.get("decay", 0.0)) * len(data.train[0])
    return Problem.of(
        module_of(parameters),
        data.train,
        likelihood=Categorical(),
        prior=GaussianPrior(precision),
    )


_RECIPE = (
    *("data", "train", "side", "held_out", "network", "hidden", "members", "optimiser", "rate"),
    *("momentum", "schedule", "epochs", "batch", "decay"),
)
"""The parameters that trained networks depend on."""


def trained(parameters: Mapping[str, Any], *, seed: int, folder: Path) -> Weights:
    """A stack of ``members`` networks, each from a beginning and an order of its own.

    What was trained is kept in the run's folder, so that studies of one run share it.  Where the
    parameters name a ``zoo`` and the environment names its folder (``COSET_ZOO``), seed ``k`` of
    ``members`` takes its own members of the zoo instead.
    """
    if "zoo" in parameters:
        return _from_zoo(str(parameters["zoo"]), int(parameters["members"]), seed, folder)
    chosen = {name: parameters[name] for name in _RECIPE if name in parameters}
    text = json.dumps([chosen, checksum(parameters), seed], sort_keys=True)
    place = folder / "networks"
    path = place / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
    if path.exists():
        return load_record(path)[0]
    problem = problem_of(parameters)
    method = DeepEnsemble(members=int(parameters["members"]), base=recipe_of(parameters))
    stack = method.fit(problem, generator=torch.Generator().manual_seed(seed)).stack
    place.mkdir(parents=True, exist_ok=True)
    save_record(path, stack, {"kind": "networks", "made with": chosen, "seed": seed})
    return load_record(path)[0]  # in memory as every later reader has it


ZOO = "COSET_ZOO"
"""Environment variable that names the folder of a zoo."""


def _from_zoo(recipe: str, members: int, seed: int, folder: Path) -> Weights:
    """The members of one seed, of a zoo that is there, or of one made in the run's folder."""
    first, last = seed * members, (seed + 1) * members
    if place := os.environ.get(ZOO):
        zoo = Zoo.open(place)
        if zoo.recipe.name != recipe:
            raise CosetError(
                f"got {ZOO}={place}, a zoo of {zoo.recipe.name!r}",
                f"needed one of {recipe!r}",
                f"unset {ZOO}: the study then makes a zoo of its own",
            )
    else:
        own = folder / "zoo"
        own.mkdir(exist_ok=True)
        with (own / f"{recipe}.lock").open("w") as lock:  # cells of other seeds wait
            fcntl.flock(lock, fcntl.LOCK_EX)
            zoo = populate(read_recipe(recipe), own / recipe, last, engine=Serial())
    if len(zoo) < last:
        raise CosetError(
            f"got a zoo of {len(zoo)} networks for seed {seed}",
            f"needed {last}: {members} for each seed",
            f"grow it: coset zoo train {recipe} FOLDER --count {last}",
        )
    return zoo.weights(slice(first, last))


def probabilities(module: nn.Module, stack: Weights, inputs: torch.Tensor) -> torch.Tensor:
    """Class probabilities of every member, ``(m, n, c)``."""
    return apply_members(functionalise(module), stack, inputs).softmax(-1)


def accuracies(module: nn.Module, stack: Weights, data: Pictures) -> torch.Tensor:
    """The accuracy of each member on the test pictures."""
    said = apply_members(functionalise(module), stack, data.test[0]).argmax(-1)
    return (said == data.test[1]).double().mean(1)


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose of one cell, independent of those for others."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))


def along_training(
    parameters: Mapping[str, Any], *, seed: int, decay: float | None = None
) -> tuple[list[int], list[Weights]]:
    """Stacks of the same members after each of the epochs in ``checks``; the first is the start.

    By plain gradient descent at a constant rate, which has no state but the weights, so that
    training from check to check is training at once.
    """
    checks = [int(epoch) for epoch in parameters["checks"]]
    if parameters["optimiser"] != "sgd" or parameters.get("momentum") or checks[0]:
        raise CosetError(
            "got a training with a state of its own, or no check at the start",
            "needed plain gradient descent, checked from epoch 0 on",
        )
    facts = dict(parameters) | ({} if decay is None else {"decay": decay})
    problem = problem_of(facts)
    generator = seeded(seed, "training")
    members = int(parameters["members"])
    stack = starting_points(problem, None, member_seeds(members, generator))
    stacks = [stack]
    for before, after in pairwise(checks):
        base = recipe_of(facts | {"epochs": after - before, "schedule": "constant"})
        method = DeepEnsemble(members=members, base=base)
        stack = method.fit(problem, start=stack, generator=generator).stack
        stacks.append(stack)
    return checks, stacks
