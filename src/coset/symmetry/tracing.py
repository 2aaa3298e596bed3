"""A module and an example become a :class:`~coset.symmetry.graph.Graph`.

The only file that calls a tracer.  Graphs are remembered by architecture: a second network of the
same kind is recognised and its graph reused, after checking that it computes the same function.
"""

import contextlib
import copy
import io
import logging
import sys
import threading
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from coset.errors import CosetError
from coset.printing import written
from coset.symmetry.graph import Graph
from coset.symmetry.points import general_position, random_inputs, vanishes
from coset.symmetry.runner import answering_in_tensors, module_runner, tensors_in
from coset.symmetry.translating import canonical_names, name_of, translated
from coset.vocabulary import Inputs
from coset.weights.inputs import parts_of, shapes_of
from coset.weights.network import refusal, unwrapped, weights_of
from coset.weights.plain import require_plain
from coset.weights.randomness import own_draws, own_randomness

# Operations that the tracer takes apart, so that they need no rules.
_COMPOSITE = {
    "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "cosine_similarity", "kron", "linalg_multi_dot", "tensordot", "rrelu",
}  # fmt: skip
_REMEMBERED: OrderedDict[tuple[Any, ...], Graph] = OrderedDict()
_MOST_REMEMBERED = 16
_ROUNDING = 1e-9  # of outputs in double precision
_TRACING = threading.RLock()
"""Tracers change torch's classes for the whole process while they run: one thread at a time."""


def trace(module: nn.Module, example: Inputs) -> Graph:
    """Traces the module in evaluation mode; its training flags are restored.

    Raises:
        CosetError: If the module does not take the example, or cannot be traced, with the line
            that prevents it.
    """
    module, inputs = unwrapped(module), parts_of(example)
    _refuse(module, inputs)
    with _TRACING, _evaluating(module):
        key = _architecture(module, inputs)
        graph = _REMEMBERED.get(key)
        if graph is None or not _agrees(graph, module, inputs):
            _require_answer(module, inputs)
            graph = _trace(module, inputs)
            _REMEMBERED[key] = graph
        _REMEMBERED.move_to_end(key)
        while len(_REMEMBERED) > _MOST_REMEMBERED:
            _REMEMBERED.popitem(last=False)
    return graph


def _refuse(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Names what cannot be traced before trying."""
    wrong = [type(item).__name__ for item in inputs if not isinstance(item, Tensor)]
    if wrong:
        raise CosetError(
            f"got an example with {', '.join(wrong)}",
            "needed a tensor or a flat tuple of tensors",
            "wrap the module in one whose forward takes tensors only",
        )
    for item in inputs:
        require_plain(item, "an example")
    if inputs and not any(item.numel() for item in inputs):
        raise CosetError(
            f"got an example of {shapes_of(inputs)}, without a number", "needed at least one row"
        )
    _refuse_kind(module)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise CosetError(
                f"got {name!r} without a shape, from a lazy module",
                "needed a module whose tensors exist",
                "run it once on an input",
            )
        if tensor.is_complex():
            raise CosetError(
                f"got the complex tensor {name!r}",
                "needed real weights",
                "keep real and imaginary parts on a last axis of two, and put them together in "
                "forward with torch.view_as_complex",
            )


def _refuse_kind(module: nn.Module) -> None:
    """Names modules that keep their weights where no tracer reads them."""
    for child in module.modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise CosetError(
                f"got a scripted module, {type(child).__name__}",
                "needed a module in Python, whose operations and weights can be followed",
                "give the module as it was before torch.jit",
            )
        if ".quantized." in f"{type(child).__module__}.":
            raise CosetError(
                f"got the quantised layer {type(child).__module__}.{type(child).__name__}",
                "needed weights that are floating-point numbers",
                "give the network as it was before it was quantised",
            )


def _require_answer(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuses an example that the module itself does not take: a tracer would blame the module."""
    try:
        copied = copy.deepcopy(module)  # what a forward writes down stays out of the module
    except Exception:  # norms of weights in the old style: for the tracer to judge
        return
    with own_randomness(0), own_draws():
        try:
            found = copied(*inputs)
        except Exception as error:  # whatever a module may raise
            try:  # an example of another type than the weights, or a type without kernels
                weights = {n: w.cpu().double() for n, w in weights_of(module).items()}
                module_runner(module)(weights, inputs)
            except Exception:
                raise refusal(inputs, error) from error
            return
    if not any(True for _ in tensors_in(found)):
        raise CosetError(
            f"got a module that returns {type(found).__name__} without a tensor",
            "needed outputs that symmetries can be read off",
            "wrap it in a module whose forward returns its outputs",
        )


def _trace(module: nn.Module, inputs: tuple[Tensor, ...]) -> Graph:
    with _silence(), warnings.catch_warnings(), answering_in_tensors(module):
        warnings.simplefilter("ignore")
        try:
            return translated(*_export(module, inputs), module)
        except CosetError:
            raise
        except Exception as error:  # whatever the tracer raises becomes one named error
            return _second_try(module, inputs, error)


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, flag in flags:
            child.training = flag


def _architecture(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What two networks of one architecture have in common, weights aside."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return (
        tuple(type(child) for child in module.modules()),
        written(module),
        tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors),
        tuple(sorted(canonical_names(module).items())),
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs),
    )


def _agrees(graph: Graph, module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Whether a remembered graph computes what the module computes.

    Looked at in a random point, for fresh weights and an example of zeros hide most differences,
    and in double precision, for another epsilon or another constant may change little.
    """
    generator = torch.Generator().manual_seed(3)
    given = {name: tensor.cpu() for name, tensor in weights_of(module).items()}
    positive = [name for name in given if name.endswith("running_var")]
    weights = general_position(given, positive, generator=generator)
    probe = random_inputs([x.cpu() for x in inputs], generator=generator)
    try:
        outputs = module_runner(module)(weights, probe)
        again = graph.run(weights, probe, dtype=torch.float64)
    except Exception:  # whatever goes wrong here is for a fresh trace to report
        return False
    if vanishes(outputs):  # all zero, as of dead units: that tells nothing of constants
        return False
    return len(outputs) == len(again) and all(map(_alike, outputs, again))


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs agree up to rounding; numbers at all are needed."""
    if one.shape != other.shape or one.dtype != other.dtype or bool(one.isnan().any()):
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING)


def _export(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Any, dict[str, tuple[str, Any]]]:
    """The functional graph of ``torch.export``, and what each placeholder stands for."""
    from torch.export import default_decompositions, export
    from torch.export.graph_signature import InputKind, OutputKind

    program = export(module, inputs, strict=False)
    table = default_decompositions()
    composite = {op: rule for op, rule in table.items() if name_of(op) in _COMPOSITE}
    program = program.run_decompositions(composite)
    saved = program.state_dict
    meaning: dict[str, tuple[str, Any]] = {}
    for spec in program.graph_signature.input_specs:
        name = str(getattr(spec.arg, "name", ""))
        if spec.kind == InputKind.USER_INPUT:
            meaning[name] = ("input", name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.persistent is not False:
            meaning[name] = ("parameter", spec.target)
        else:
            value = program.constants.get(spec.target, saved.get(spec.target))
            meaning[name] = ("constant", value)
    graph, specs = program.graph, program.graph_signature.output_specs
    outputs = graph.output_node()
    # what a network writes into its own buffers is no output
    pairs = zip(outputs.args[0], specs, strict=True)
    outputs.args = (tuple(out for out, spec in pairs if spec.kind == OutputKind.USER_OUTPUT),)
    graph.eliminate_dead_code()
    return graph, meaning


def _second_try(module: nn.Module, inputs: tuple[Tensor, ...], error: Exception) -> Graph:
    """``make_fx`` when export itself breaks; control flow on data stays refused."""
    text = f"{type(error).__name__}: {error}"
    if _is_of_data(text):
        raise _untraceable(error) from error
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(weights_of(module))

    def call(weights: list[Tensor], *arguments: Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), arguments)

    pure = torch.func.functionalize(call, remove="mutations_and_views")
    try:
        values = list(weights_of(module).values())
        traced = make_fx(pure, pre_dispatch=True, tracing_mode="fake")(values, *inputs)
        placeholders = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
        kinds = [("parameter", name) for name in names] + [("input", "input")] * len(inputs)
        return translated(traced.graph, dict(zip(placeholders, kinds, strict=True)), module)
    except Exception:
        raise _untraceable(error) from error


def _untraceable(error: Exception) -> CosetError:
    place = "its forward"
    chain: BaseException | None = error
    while chain is not None:
        for frame in reversed(traceback.extract_tb(chain.__traceback__)):
            if f"{Path(torch.__file__).parent}" not in frame.filename and "coset" not in (
                Path(frame.filename).parent.name,
                Path(frame.filename).parent.parent.name,
            ):
                place = f"{Path(frame.filename).name}:{frame.lineno} ({frame.line})"
                break
        chain = chain.__cause__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    needed, advice = _cure(f"{type(error).__name__}: {error}")
    return CosetError(
        f"got a module that cannot be traced, at {place}: {reason}",
        needed,
        f"{advice}, or give the factors by hand with groups=",
    )


def _is_of_data(text: str) -> bool:
    """Whether a tracer complains of a path that depends on the values of tensors."""
    return "DataDependent" in text or "data-dependent" in text


def _cure(text: str) -> tuple[str, str]:
    """What a tracer that says this needed, and what to do."""
    if _is_of_data(text):
        return (
            "needed a forward whose path does not depend on the values of tensors",
            "replace Python branches and .item() on data by tensor operations (torch.where)",
        )
    if ".numpy()" in text or "numpy" in text.lower():
        return (
            "needed a forward that calls torch alone",
            "write what leaves torch there in operations of torch",
        )
    return (
        "needed a forward that torch.export can follow",
        "write that line in operations of torch, or leave out of forward what its outputs do not "
        "need",
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Failing exports print whole graphs; our own error says what matters.

    What other threads have to say is said.
    """
    own = threading.get_ident()
    handlers = [*logging.root.handlers, *logging.getLogger("torch").handlers]

    def from_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    for handler in handlers:
        handler.addFilter(from_others)
    try:
        with contextlib.redirect_stderr(_FromOthers(sys.stderr, own)):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(from_others)


class _FromOthers(io.TextIOBase):
    """Passes on what threads write, but for one."""

    def __init__(self, stream: TextIO, silent: int) -> None:
        super().__init__()
        self._stream, self._silent = stream, silent

    def write(self, text: str) -> int:
        if threading.get_ident() == self._silent:
            return len(text)
        return self._stream.write(text)
