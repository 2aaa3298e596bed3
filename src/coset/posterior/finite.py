"""Predictions that are no numbers, and a second try in double precision."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from coset.bayes.likelihood import Likelihood
from coset.errors import CosetError
from coset.posterior.families import Posterior
from coset.posterior.joint import JointPredictions
from coset.posterior.predict import Predictions
from coset.posterior.records import describe, restore
from coset.vocabulary import Inputs
from coset.weights.inputs import map_parts
from coset.weights.network import REFUSALS, Network, functionalise

Found = TypeVar("Found", Predictions, JointPredictions)
Predict = Callable[[Posterior, Network, Likelihood, Inputs], Found]


def finite_predictions(
    predict: Predict[Found],
    posterior: Posterior,
    network: Network,
    likelihood: Likelihood,
    inputs: Inputs,
) -> Found:
    """Predictions that are finite: as they are, or from the same in double precision, or none.

    Large inputs overflow in the network's own numbers on the way to probabilities that do not.
    Variances that do not fit into these numbers stay in double; means that do not are refused.
    """
    found = predict(posterior, network, likelihood, inputs)
    if _are_finite(found):
        return found
    try:
        wide = predict(*_in_double(posterior, network, likelihood, inputs))
    except (CosetError, *REFUSALS):  # not ours, or code that knows one precision only
        raise _refusal(found) from None
    dtype = next(iter(_tensors(found).values())).dtype
    narrow: dict[str, Any] = {name: value.to(dtype) for name, value in _tensors(wide).items()}
    for name in ("variance", "covariance"):
        if name in narrow and not bool(narrow[name].isfinite().all()):
            del narrow[name]
    back = replace(wide, **narrow)
    if not _are_finite(back):
        raise _refusal(back)
    return back


def _in_double(
    posterior: Posterior, network: Network, likelihood: Likelihood, inputs: Inputs
) -> tuple[Posterior, Network, Likelihood, Inputs]:
    facts, tensors = describe(posterior, "posterior")
    wide: Posterior = restore(facts, {name: _double(tensor) for name, tensor in tensors.items()})
    if network.module is None:
        raise CosetError("got a network without a module", "needed one to convert")
    module = functionalise(copy.deepcopy(network.module).double())
    return wide, module, likelihood, map_parts(_double, inputs)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _tensors(found: Predictions | JointPredictions) -> dict[str, Tensor]:
    """What is said of inputs; a log-weight may be that of nothing."""
    own = getattr(found, "__dict__", {}).items()
    said = {name: v for name, v in own if isinstance(v, Tensor) and name != "log_weights"}
    return {name: value for name, value in said.items() if value.is_floating_point()}


def _are_finite(found: Predictions | JointPredictions) -> bool:
    return all(bool(value.isfinite().all()) for value in _tensors(found).values())


def _refusal(found: Predictions | JointPredictions) -> CosetError:
    name, value = next((n, v) for n, v in _tensors(found).items() if not v.isfinite().all())
    rows = value.isfinite().movedim(1 if name == "members" else 0, 0).flatten(1).all(1)
    first = int((~rows).nonzero()[0])
    return CosetError(
        f"got predictions whose {name} are not finite, first for example {first}",
        f"needed outputs that {value.dtype} can hold",
        "give inputs of the size of the training data, or fit in float64",
    )
