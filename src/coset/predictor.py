"""The front door: fit a posterior to data, predict with it, keep it in a file."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coset.bayes.batches import Data, as_batches, read_inputs
from coset.bayes.likelihood import Categorical, Likelihood
from coset.bayes.prior import GaussianPrior
from coset.bayes.problem import Problem
from coset.errors import CosetError, require_kind
from coset.inference import Method
from coset.inference.cost import foretell
from coset.inference.doubts import changing_data, probabilities_for_logits, warned
from coset.inference.function_fingerprint import (
    function_facts,
    probe_for,
    probe_of,
    require_same_function,
)
from coset.inference.laplace.method import Laplace
from coset.inference.method import fit_telling, require_method
from coset.inference.updating import NewMean, add_data
from coset.posterior.calibrated import Calibrated
from coset.posterior.calibrating import Calibration, calibrate
from coset.posterior.draws import require_generator
from coset.posterior.families import Posterior
from coset.posterior.finite import finite_predictions
from coset.posterior.gaussian import Gaussian
from coset.posterior.joint import JointPredictions
from coset.posterior.linearised import Linearised, affordable
from coset.posterior.maps import Maps, sample_maps
from coset.posterior.predict import MonteCarlo, PredictionRule, Predictions
from coset.posterior.record_checks import require_fields, require_network
from coset.posterior.records import describe, restore
from coset.posterior.tiles import require_room
from coset.printing import several, shown
from coset.progress import PATIENCE, Line, check_progress, reporting
from coset.store import blaming_content, load_record, save_record
from coset.version import __version__
from coset.vocabulary import Inputs, Progress, Weights
from coset.weights.inference_mode import outside_inference_mode
from coset.weights.inputs import check_finite_inputs, take_rows
from coset.weights.network import (
    REFUSALS,
    Network,
    assign,
    functionalise,
    refusal,
    require_module,
    tables_of,
)
from coset.weights.randomness import drawn_by, own_randomness
from coset.weights.stacking import check_fit

KIND, FORMAT = "predictor", 1
"""What our files hold, and the number of their format: raised when old readers would fail."""

_PARTS, _BASE = ("posterior", "likelihood", "prior", "rule"), "network."


_BESIDE_EXACT = {
    "KFAC": "below that of the exact curvature",
    "DiagonalOnly": "below that of the exact curvature",
    "LowRank": "above that of the exact curvature",
}
"""On which side of the exact evidence that of a structure lies."""


@dataclass(frozen=True)
class Predictor:
    """A network, a posterior over its weights, and the rule that turns both into predictions.

    Attributes:
        network: The module as a pure function.
        posterior: The distribution over weights that the method found.
        likelihood: How outputs and targets meet, with its learnt noise where there is one.
        prior: The prior, with its tuned precisions where a method tunes them.
        rule: How to predict unless a call says otherwise.
        probe: Noise in the shape of a few inputs, by whose outputs a file knows its network again.
    """

    network: Network
    posterior: Posterior
    likelihood: Likelihood
    prior: GaussianPrior = GaussianPrior()
    rule: PredictionRule = MonteCarlo()
    probe: Inputs | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """What it is made of and what the fit found, a line each."""
        layout, report = self.posterior.layout, self.posterior.report
        kept = sum(tensor.numel() for tensor in self.network.weights.values())
        facts = {
            "network": f"{shown(self.network.module)}, {several(kept, 'number')}",
            "posterior": f"{type(self.posterior).__name__} over {several(layout.size, 'weight')}",
            "prior": f"precision {shown(self.prior.precision)}",
            "likelihood": shown(self.likelihood),
            "rule": shown(self.rule),
            "log evidence": None if self.log_evidence is None else self._evidence_told(),
            "found": ", ".join(f"{k} {shown(v)}" for k, v in report.diagnostics.items()),
            "warnings": "; ".join(report.warnings),
        }
        lines = [f"  {name:<12}  {text}" for name, text in facts.items() if text]
        return "\n".join(["Predictor", *lines])

    def __call__(
        self,
        inputs: Inputs,
        *,
        rule: PredictionRule | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictions:
        """Predictions for the inputs.

        Args:
            inputs: A tensor or array with the data along its first axis; for a network that takes
                several, a tuple or a dictionary of such.
            rule: Another rule than the predictor's own.
            generator: Where draws come from, also those of a network that draws by itself.
                ``None``: a fresh one of seed 0, so that equal calls give equal predictions.
        """
        require_kind(PredictionRule | None, "MonteCarlo", rule=rule)
        random, chosen = _seeded(generator), rule or self.rule
        parts = self.posterior, self.network, self.likelihood
        with outside_inference_mode():
            data, before = _read(inputs, self.network), random.get_state()
            require_room(chosen, self.posterior, self.network, data)

            def predict(*given: Any) -> Predictions:
                random.set_state(before)
                return drawn_by(random, lambda: chosen(*given, generator=random))

            with _blaming(self.network, data):
                return finite_predictions(predict, *parts, data)

    def joint(self, inputs: Inputs) -> JointPredictions:
        """The joint distribution of the outputs at all inputs, for Gaussian posteriors.

        Args:
            inputs: A tensor or array with the data along its first axis; for a network that takes
                several, a tuple or a dictionary of such.
        """
        parts = self.posterior, self.network, self.likelihood
        with outside_inference_mode():
            data = _read(inputs, self.network)

            def predict(*given: Any) -> JointPredictions:
                return drawn_by(_seeded(None), lambda: Linearised().joint(*given))

            with _blaming(self.network, data):
                return finite_predictions(predict, *parts, data)

    def maps(
        self,
        inputs: Inputs,
        draws: int = 64,
        *,
        rule: PredictionRule | None = None,
        generator: torch.Generator | None = None,
    ) -> Maps:
        """Coherent samples of whole maps, for numbers of a picture: an area, a mean depth.

        Args:
            inputs: Pictures.
            draws: Samples of a posterior that is not finite; of one that is all members come.
            rule: :class:`Linearised` samples the tangent model, any other the network itself;
                ``None``: as the predictor's own.
            generator: Where draws come from; ``None``: a fresh one of seed 0.
        """
        require_kind(PredictionRule | None, "MonteCarlo", rule=rule)
        random, chosen = _seeded(generator), rule or self.rule
        with outside_inference_mode():
            data = _read(inputs, self.network)

            def sample() -> Maps:
                parts = self.posterior, self.network, self.likelihood, chosen, data
                return sample_maps(*parts, draws=draws, generator=random)

            with _blaming(self.network, data):
                return drawn_by(random, sample)

    @property
    def log_evidence(self) -> float | None:
        """The log marginal likelihood, for methods that have one.

        With the curvature of KFAC or of a diagonal it usually lies below the exact one at the same
        prior, for the determinant of a positive matrix is at most the product of its diagonal in
        any basis; ``posterior.report.evidence_curvature`` says which was used.
        """
        return self.posterior.report.log_evidence

    def _evidence_told(self) -> str:
        curvature = self.posterior.report.evidence_curvature
        side = _BESIDE_EXACT.get(curvature or "")
        return shown(self.log_evidence) + (f", by {curvature}: usually {side}" if side else "")

    def update(self, data: Data, *, mean: NewMean = "moved") -> "Predictor":
        """The predictor after some more data; the old data are not needed.

        Exact in the tangent model for full covariances: for a linear network with Gaussian noise
        the same as a fit to all data together.  Kronecker and diagonal covariances keep their
        structure (:func:`coset.inference.updating.add_data`).  Prior and noise stay as they are.

        Args:
            data: The new data only, as :func:`fit` takes them.
            mean: ``"moved"``: the weights move to the new mode of the tangent model, or as far
                towards it as the network gains; ``"kept"``: only the covariance shrinks.
        """
        if not isinstance(self.posterior, Gaussian):
            raise CosetError(
                f"got a posterior of type {type(self.posterior).__name__}",
                "needed a Gaussian, such as Laplace() finds, to add data to",
                "fit again with all data",
            )
        with outside_inference_mode(), own_randomness(0):
            problem = Problem(
                self.network,
                self.likelihood,
                self.prior,
                as_batches(data, module=self.network.module),
            )
            problem.check()
            return replace(self, posterior=add_data(self.posterior, problem, mean=mean))

    def calibrated(
        self, held_out: Data, *, method: Calibration = "temperature", level: float = 0.9
    ) -> "Predictor":
        """The predictor with predictions that a few numbers from held-out data correct.

        The posterior and its draws stay as they are, and so does what another ``rule`` gives; the
        correction is part of :attr:`rule`, is saved with it, and may be followed by another, such
        as sets after a temperature.  Targets that the likelihood gives no say have none here.

        Args:
            held_out: Data that no fit has seen, as :func:`fit` takes them.
            method: ``"temperature"``: probabilities ``softmax(log p / T)`` of every member with the
                ``T`` of the highest held-out likelihood; of a regression, variances times the one
                factor of the highest likelihood.  ``"vector"``: a factor and an offset for each
                class; of a regression, a factor for each target.  ``"conformal"``: sets of classes
                (``predictions.sets``) or intervals (``.lower``, ``.upper``) that hold the truth of
                a share ``level`` of new examples, of pixels in expectation over new pictures,
                whatever the network, if these are exchangeable with the held-out ones.
            level: Of conformal sets and intervals.

        >>> from coset import MaximumAPosteriori
        >>> inputs, targets = torch.linspace(-1, 1, 40).unsqueeze(1), torch.arange(40) // 20
        >>> predictor = fit(nn.Linear(1, 2), (inputs, targets), method=MaximumAPosteriori(epochs=9))
        >>> sets = predictor.calibrated((inputs, targets), method="conformal")(inputs).sets
        >>> sets.shape, bool(sets.any(1).all())
        (torch.Size([40, 2]), True)
        """
        with outside_inference_mode(), own_randomness(0):
            problem = Problem(
                self.network,
                self.likelihood,
                self.prior,
                as_batches(held_out, module=self.network.module),
            )
            problem.check()
            step = calibrate(self, self.likelihood, problem.train, method=method, level=level)
        return replace(self, rule=Calibrated(self.rule, step))

    def save(self, path: str | Path) -> None:
        """Writes one safetensors file with JSON facts; :func:`load` reads it.

        The file carries its own sha256 and is renamed into place when complete.  The module's
        code is not in it: :func:`load` is given the module again.
        """
        facts: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "coset": __version__,
            "network": {name: list(w.shape) for name, w in self.network.weights.items()},
            "types": {name: str(w.dtype) for name, w in self.network.weights.items()},
        }
        tensors = self._base()
        for part in _PARTS:
            facts[part], found = describe(getattr(self, part), part)
            tensors |= found
        facts |= function_facts(self.network, self.posterior, self.probe)
        save_record(path, tensors, facts)

    def _base(self) -> Weights:
        """The module's own tensors where draws do not cover them, named as in the file."""
        fixed = getattr(self.posterior, "fixed", {})
        covered, module = {*self.posterior.layout.names, *fixed}, self.network.module
        own = self.network.weights | ({} if module is None else tables_of(module))
        return {f"{_BASE}{name}": own[name] for name in own if name not in covered}


def fit(
    module: nn.Module,
    train: Data,
    *,
    method: Method | None = None,
    likelihood: Likelihood = Categorical(),
    prior: GaussianPrior | None = None,
    start: Weights | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | bool | None = None,
) -> Predictor:
    """Fits a posterior over the weights of a module; the module itself is never changed.

    Args:
        module: Any torch module whose outputs have shape ``(n, c)`` or ``(n, c, *pixels)``.  Frozen
            parameters (``requires_grad_(False)``) stay as they are, unless all are frozen.
        train: A pair ``(inputs, targets)``, a ``Dataset`` or a ``DataLoader``.  For a network
            called as ``module(a, b)`` inputs are a tuple, ``((a, b), targets)``; of examples and
            batches with more than two parts all but the last are inputs.  Of dictionaries, such as
            tokenisers make, inputs go to the arguments of ``forward`` that have their names, and
            targets are called ``labels``, ``label``, ``targets``, ``target`` or ``y``.
        method: How to find the posterior.  ``None``: :class:`coset.Laplace` around the module's own
            weights, which are taken to be trained.
        likelihood: Classes unless told otherwise.
        prior: On the parameters; ``None`` stands for precision one.
        start: Weights that training begins from, such as ``weights_of(module)``.  ``None``: fresh
            ones for methods that train; the module's own for methods that do not.
        generator: Where every random number comes from.  ``None``: a fresh one of seed 0, so that
            equal calls give equal results.
        progress: How far the fit is.  ``None``: shown on a terminal from the fifth second on;
            ``True``: also elsewhere, in plain lines; ``False``: not at all; a function is called
            with the fraction done and a short text (:mod:`coset.progress`).

    Raises:
        CosetError: If data and network do not fit together.

    >>> from coset import MaximumAPosteriori
    >>> inputs, targets = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> predictor = fit(nn.Linear(1, 2), (inputs, targets), method=MaximumAPosteriori(epochs=50))
    >>> predictor(inputs).mean.argmax(1)
    tensor([0, 1])

    A network of two inputs:

    >>> class Difference(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(1, 2)
    ...
    ...     def forward(self, left, right):
    ...         return self.layer(left - right)
    >>> left, right = torch.tensor([[1.0], [5.0]]), torch.tensor([[4.0], [2.0]])
    >>> data = ((left, right), torch.tensor([0, 1]))
    >>> predictor = fit(Difference(), data, method=MaximumAPosteriori(epochs=50))
    >>> predictor((left, right)).mean.argmax(1)
    tensor([0, 1])
    """
    _check_asked(module, method)
    require_kind(Likelihood, "Categorical", likelihood=likelihood)
    require_kind(GaussianPrior | None, prior=prior)
    require_kind(Mapping | None, start=start)
    check_progress(progress)
    chosen, random = Laplace() if method is None else method, _seeded(generator)
    with outside_inference_mode(), torch.enable_grad(), own_randomness(random.initial_seed()):
        problem = Problem.of(module, train, likelihood=likelihood, prior=prior)
        notes = [*changing_data(problem.train), *probabilities_for_logits(problem)]
        with reporting(progress) as tell:
            if isinstance(tell, Line):
                for line in foretell(chosen, problem, least=PATIENCE):
                    tell.note(line)
            posterior = fit_telling(chosen, problem, start=start, generator=random, progress=tell)
        # a method may know a better way to predict than by draws
        rule: PredictionRule = getattr(chosen, "rule", MonteCarlo())
        rule, sampled = affordable(rule, posterior, problem.outputs_each())
        posterior, probe = warned(posterior, [*notes, *sampled]), probe_for(problem.train)
    report = posterior.report
    return Predictor(
        problem.network,
        posterior,
        report.likelihood or likelihood,
        report.prior or problem.prior,
        rule,
        probe,
    )


def load(path: str | Path, module: nn.Module) -> Predictor:
    """Reads a predictor that :meth:`Predictor.save` wrote.

    Args:
        path: The file.
        module: The architecture it was fitted with; its weights do not matter and stay unchanged.

    Raises:
        CosetError: If the file was changed, is not ours, or belongs to another architecture or to
            another function of the same shapes.
    """
    tensors, facts = load_record(path)
    if facts.get("kind") != KIND or facts.get("format") != FORMAT:
        raise CosetError(
            f"got {path}, a {facts.get('kind')!r} of format {facts.get('format')!r}",
            f"needed a {KIND!r} of format {FORMAT}",
            f"coset {facts.get('coset')} wrote it; this is {__version__}",
        )
    network = functionalise(module)
    device = next(iter(network.weights.values())).device
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    with blaming_content(path, "a file that Predictor.save wrote"):
        _check_shapes(facts["network"], network, path, partial=False)
        _check_types(facts.get("types", {}), network, path)
        parts = {key: restore(facts[key], tensors) for key in _PARTS}
        require_fields(Predictor, parts)
        layout = parts["posterior"].layout
        draws = dict(zip(layout.names, layout.shapes, strict=True))
        _check_shapes(draws, network, path, partial=True)
        require_network(parts["posterior"], network.weights)
        base = {n.removeprefix(_BASE): w for n, w in tensors.items() if n.startswith(_BASE)}
        if base:
            network = functionalise(assign(copy.deepcopy(module), base, partial=True))
        probe = probe_of(facts, like=next(iter(network.weights.values())))
        require_same_function(path, facts, function_facts(network, parts["posterior"], probe))
        return Predictor(network, **parts, probe=probe)


def _check_shapes(
    shapes: Mapping[str, Sequence[int]], network: Network, path: str | Path, *, partial: bool
) -> None:
    """The tensors of the file are those of the module, in the same shapes."""
    saved = {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}
    check_fit(saved, network.weights, what=f"weights in {path}", partial=partial)


def _check_types(types: Mapping[str, str], network: Network, path: str | Path) -> None:
    """The numbers of the file are of the types of the module's; old files do not tell."""
    for name, kind in types.items():
        if kind != str(network.weights[name].dtype):
            raise CosetError(
                f"got {path} with {name!r} of type {kind}",
                f"needed {network.weights[name].dtype}, as the module has",
                "convert the module with module.to(…) before",
            )


def _check_asked(module: object, method: object) -> None:
    """Refuses what is easily written by mistake."""
    require_module(module)
    if method is not None:
        require_method(method, "method")


def _read(inputs: Inputs, network: Network) -> Inputs:
    """Inputs as tensors of finite numbers: what is said of others would not be finite either."""
    data = read_inputs(inputs, network.module)
    check_finite_inputs(data)
    return data


@contextmanager
def _blaming(network: Network, inputs: Inputs) -> Iterator[None]:
    """Blames the inputs for an error if the network alone refuses the first of them too."""
    try:
        yield
    except CosetError:
        raise
    except REFUSALS as error:
        try:
            with torch.no_grad():
                network.apply(network.weights, take_rows(inputs, slice(1)))
        except REFUSALS as same:
            raise refusal(inputs, same, network.weights.values()) from error
        raise


def _seeded(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        return torch.Generator().manual_seed(0)
    require_generator(generator)
    return generator
