"""Two runs of a model compared: which operator or module is wrong, and how errors add up."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from bringup import compiler, graphs
from bringup.compiler.inductor.search import first_wrong_node
from bringup.conformance._deviation import Deviation, deviation
from bringup.conformance._module_calls import CallCheck, ModuleCall, check_call, record_calls
from bringup.conformance._module_paths import ModulePaths, Place
from bringup.conformance._operators import Comparer, OperatorDifference, Recorder, Watched
from bringup.conformance._samples import Mover, described, outcome, tensors, weighted
from bringup.errors import DeviceError, ModelError

VARIANTS = ("compiled", "fused", "captured")


def make_variant(
    name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return the module as "compiled" (Inductor), "fused" (our backend) or "captured", which
    changes it. Later calls have arguments like these. Raises `ModelError` for another name.
    """
    if name == "captured":
        return _captured(module, args, kwargs)
    if name not in VARIANTS:
        raise ModelError(f"{name!r} is no form of a model: expected one of {', '.join(VARIANTS)}")
    torch._dynamo.reset()
    backend = "inductor" if name == "compiled" else compiler.dynamo_backend
    compiled: Callable[..., Any] = torch.compile(module, backend=backend)
    return compiled


class _OfTensors(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module called with the tensors among its arguments; the rest is as it was."""

    def __init__(self, module: nn.Module, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.module = module
        self._others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._spec = spec

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of the result, in order."""
        leaves = list(self._others)
        for place, tensor in zip(self._places, given, strict=True):
            leaves[place] = tensor
        args, kwargs = _pytree.tree_unflatten(leaves, self._spec)
        result = self.module(*args, **kwargs)
        return tuple(leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor))


def _captured(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    given = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    inner = _OfTensors(module, leaves, spec).train(module.training)
    graphed = graphs.make_graphed_callables(inner, given, allow_unused_input=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = _pytree.tree_leaves((args, kwargs))
        return graphed(*(leaf for leaf in found if isinstance(leaf, Tensor)))

    return call


EAGER = "eager"


@dataclass(frozen=True)
class ResultDifference:
    """A result of the whole run.

    Attributes:
        name: "output 0", "gradient of layers.0.weight", "buffer norm.running_mean".
        deviation: how far it is from the other side's.
    """

    name: str
    deviation: Deviation


@dataclass
class Comparison:
    """What came out of comparing two runs of a model.

    Attributes:
        a: the side that is tested.
        b: the side that is believed.
        level: "op" or "module".
        isolated: whether each operator of `a` got the results of `b`.
        backward: whether gradients were computed and compared.
        limit: the accumulated error up to which results of the whole run are near.
        watched: what was seen of the operators or modules.
        results: outputs, gradients and buffers at the end; empty where a side failed.
        failure: how one side failed, and where; "" if none did.
        notes: what a reader should know.
    """

    a: str
    b: str
    level: str
    isolated: bool
    backward: bool
    limit: float
    watched: Watched = field(default_factory=Watched)
    results: list[ResultDifference] = field(default_factory=list)
    failure: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> OperatorDifference | None:
        """Return the first operator or module that is wrong on equal inputs."""
        return self.watched.differences[0] if self.watched.differences else None

    @property
    def far(self) -> list[ResultDifference]:
        """Return results that no small accumulated error explains."""
        return [
            result
            for result in self.results
            if result.deviation.kind not in ("none", "value")
            or (result.deviation.exceeds and result.deviation.error > self.limit)
        ]

    @property
    def agrees(self) -> bool:
        """Return whether nothing failed or is wrong on equal inputs, and the results are near."""
        seen = self.watched
        return not (self.failure or seen.differences or seen.first_nonfinite or self.far)


def compare(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    a: str = "npu",
    b: str = "cpu",
    level: Literal["op", "module"] = "op",
    isolate: bool = False,
    backward: bool = True,
    limit: float = 1e-2,
    seed: int = 0,
) -> Comparison:
    """Run a model on two devices, or in two forms, and return what is wrong on side `a`.

    Each operator (or module) is called on both sides with the inputs that it has in the run of `a`:
    an error then is its own; how far the results of the runs are apart is the accumulated error.
    The gradient is that of the sum of all outputs, weighted; operators of the backward run have the
    module whose forward they belong to.

    Args:
        model: copied, and left as it was. Its mode (`train`, `eval`) is kept.
        args: positional arguments, on any device.
        kwargs: keyword arguments.
        a: a device ("npu", "npu:1", "cpu"), or a form: "compiled" (Inductor), "fused" (the backend
            `bringup` and its passes), "captured" (graphs), "eager".
        b: the side that is believed; beside a form the eager model, on the device named here.
        level: "op" or "module"; forms are compared by modules, the innermost that differs first.
        isolate: whether each operator's result is replaced by the other side's.
        backward: False to compare the forward run only.
        limit: the accumulated error, relative to the largest value, up to which results are near.
        seed: of random numbers; random operators give those of `b` on both sides.

    Raises:
        ModelError: the sides cannot be compared, or the model has no tensor in its output.
        DeviceError: there is no such device.
    """
    if level not in ("op", "module"):
        raise ModelError(f"level={level!r}: expected 'op' or 'module'")
    given = tuple(args), dict(kwargs or {})
    wants = backward and _has_gradients(model, given)
    found = Comparison(a, b, level, isolate, wants, limit)
    if backward and not wants:
        found.notes.append("nothing in the model or its inputs wants a gradient: forward only")
    forms = [side for side in (a, b) if side in (*VARIANTS, EAGER)]
    if forms:
        _compare_forms(found, model, given, seed)
        return found
    here, there = _device(a), _device(b)
    if here == there:
        raise ModelError(f"both sides are {here}: expected two devices, or a device and a form")
    run = _compare_modules if level == "module" else _compare_operators
    run(found, _side(model, given, here), _side(model, given, there), seed)
    return found


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DeviceError(
            f"{name!r} is no device that can be used here ({reason}); expected one like 'cpu' or "
            f"'npu' (after devices.load_driver), or one of {', '.join((EAGER, *VARIANTS))}"
        ) from error
    return device


def _has_gradients(model: nn.Module, given: Any) -> bool:
    return any(p.requires_grad for p in model.parameters()) or any(
        t.requires_grad for t in tensors(given)
    )


@dataclass
class _Side:
    """A copy of the model and its inputs on one device, and what a run of it gave."""

    device: torch.device
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)

    def run(self, mode: Any, backward: bool, seed: int) -> None:
        """Forward and backward, every operator under `mode`."""
        torch.manual_seed(seed)
        with mode:
            result = self.model(*self.args, **self.kwargs)
        self.outputs = list(tensors(result))
        if not self.outputs:
            raise ModelError(f"the output, a {type(result).__name__}, holds no tensor to compare")
        outputs, weights = weighted(result)
        leaves = [t for _, t in self.leaves()]
        if backward and outputs and leaves:
            with mode:
                found = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
            self.gradients = list(found)

    def leaves(self) -> list[tuple[str, torch.Tensor]]:
        """Return what gradients are of, with a name."""
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        inputs = [t for t in tensors((self.args, self.kwargs)) if t.requires_grad]
        return named + [(f"input {number}", t) for number, t in enumerate(inputs)]

    def results(self) -> list[tuple[str, Any]]:
        """Return everything that the run gave or left, with a name."""
        found: list[tuple[str, Any]] = [(f"output {n}", t) for n, t in enumerate(self.outputs)]
        for (name, _), gradient in zip(self.leaves(), self.gradients, strict=bool(self.gradients)):
            found.append((f"gradient of {name}", gradient))
        return found + [(f"buffer {name}", t) for name, t in self.model.named_buffers()]


def _side(model: nn.Module, given: Any, device: torch.device) -> _Side:
    inner = copy.deepcopy(model).to(device)
    args, kwargs = Mover(device)(given)
    return _Side(device, inner, args, kwargs)


def _compare_operators(found: Comparison, ours: _Side, theirs: _Side, seed: int) -> None:
    with ModulePaths(theirs.model) as paths:
        recorder = Recorder(paths)
        if failed := outcome(lambda: theirs.run(recorder, found.backward, seed))[1]:
            _raise_or_say(found, found.b, failed, None)
            return
    with ModulePaths(ours.model) as paths:
        comparer = Comparer(paths, theirs.device, recorder.results, found.isolated)
        found.watched = comparer.watched
        if failed := outcome(lambda: ours.run(comparer, found.backward, seed))[1]:
            _raise_or_say(found, found.a, failed, comparer.place)
            return
    _end_results(found, ours, theirs)


def _raise_or_say(found: Comparison, side: str, failed: Exception, place: Place | None) -> None:
    if isinstance(failed, ModelError):
        raise failed
    found.failure = f"{side}: {described(failed)}" + (f" ({place})" if place else "")


def _end_results(found: Comparison, ours: _Side, theirs: _Side) -> None:
    if found.isolated:
        found.notes.append("isolated: the results of the run are the other side's")
        return
    if found.watched.is_diverged:
        found.notes.append(
            "a random operator is called on one side only: the results of the runs cannot be "
            "compared, only each operator on equal inputs"
        )
        return
    mine, others = ours.results(), theirs.results()
    if [name for name, _ in mine] != [name for name, _ in others]:
        found.failure = f"the runs give {len(mine)} and {len(others)} results"
        return
    found.results = [
        ResultDifference(name, deviation(one, other))
        for (name, one), (_, other) in zip(mine, others, strict=True)
    ]


def _compare_modules(found: Comparison, ours: _Side, theirs: _Side, seed: int) -> None:
    source = theirs if found.isolated else ours
    torch.manual_seed(seed)
    recorded, failed = outcome(lambda: record_calls(source.model, source.args, source.kwargs))
    if failed is not None:
        found.failure = f"{found.b if found.isolated else found.a}: {described(failed)}"
        return
    believed = dict(theirs.model.named_modules())
    checked = dict(ours.model.named_modules())
    for call in recorded[1]:
        check = check_call(
            call,
            believed[call.path],
            lambda module, args, kwargs: module,
            checked[call.path],
            (theirs.device, ours.device),
            found.backward,
        )
        _keep(found.watched, call, check)


def _keep(watched: Watched, call: ModuleCall, check: CallCheck) -> bool:
    """Add what was seen of a call; whether it is wrong."""
    watched.operators += 1
    kind = type(call.module).__name__
    where = call.path or "the model"
    if check.reason == "it is random":
        watched.random[f"{kind} {where}"] += 1
        return False
    if check.reason:
        watched.not_compared[f"{kind} {where}: {check.reason}"] += 1
        return False
    watched.compared += 1
    if not check.deviation.exceeds:
        return False
    place = Place(call.path, check.phase, f"{kind} ({check.result})", call.number)
    shapes = ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors((call.args, call.kwargs)))
    one = OperatorDifference(place, watched.operators - 1, 0, check.deviation, shapes)
    watched.differences.append(one)
    return True


def _compare_forms(found: Comparison, model: nn.Module, given: Any, seed: int) -> None:
    found.level = "module"
    sides = {found.a, found.b}
    forms = sides & set(VARIANTS)
    if len(forms) != 1:
        raise ModelError(
            f"a={found.a!r}, b={found.b!r}: expected one of {', '.join(VARIANTS)} on one side, and "
            "a device or 'eager' on the other"
        )
    form = forms.pop()
    other = (sides - {form}).pop()
    first = next((t.device for t in [*model.parameters(), *tensors(given)]), torch.device("cpu"))
    device = first if other == EAGER else _device(other)
    side = _side(model, given, device)
    torch.manual_seed(seed)
    recorded, failed = outcome(lambda: record_calls(side.model, side.args, side.kwargs))
    if failed is not None:
        found.failure = f"eager: {described(failed)}"
        return
    search = _FormSearch(found, form, device)
    search.is_wrong(recorded[0])
    watched = found.watched
    if not watched.compared and not watched.random:
        found.failure = f"{form}: {next(iter(watched.not_compared), 'nothing was compared')}"


@dataclass
class _FormSearch:
    """Looks for the innermost module that differs in another form."""

    found: Comparison
    form: str
    device: torch.device
    seen: Counter[str] = field(default_factory=Counter)

    def is_wrong(self, call: ModuleCall) -> bool:
        """Return whether the module differs, or cannot be compared: then inner ones count."""
        check = self._check(call)
        if not check.reason and not check.deviation.exceeds:
            return _keep(self.found.watched, call, check)
        inner_is_wrong = any(self.is_wrong(inner) for inner in call.inner)
        if inner_is_wrong and not check.reason:
            return True
        if not check.reason and self.form == "compiled":
            check = replace(check, result=self._operator(call) + check.result)
        return _keep(self.found.watched, call, check) or inner_is_wrong

    def _check(self, call: ModuleCall) -> CallCheck:
        return check_call(
            call,
            call.module,
            lambda module, args, kwargs: make_variant(self.form, module, args, kwargs),
            call.module,
            (self.device, self.device),
            self.found.backward,
        )

    def _operator(self, call: ModuleCall) -> str:
        """Return the operator that is wrong in generated code, in words; "" if none is."""
        found = first_wrong_node(lambda: self._check(call).deviation.exceeds)
        return f"generated {found}; " if found else ""
