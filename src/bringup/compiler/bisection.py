"""Which rewrite, or which other part of a compile, makes a model's result differ from eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from bringup import passes
from bringup._differences import NUMBERS, Leaf, alike, form_difference, leaves, magnitude, not_close
from bringup.compiler.options import CompileOptions
from bringup.passes import EventKind, PassEvent, PassStatus, Rewrite

FREEZING, PASSES, NARROW = "freezing", "passes", "narrow weights"
CAPTURE, INDUCTOR = "capture", "inductor"
_OFF: Mapping[str, Mapping[str, object]] = {
    FREEZING: {"freeze": False}, PASSES: {"passes": []}, NARROW: {"weights": "float32"},
    CAPTURE: {"capture": False, "buckets": None}, INDUCTOR: {"inner": "eager"},
}  # fmt: skip
_SWITCHES = {
    FREEZING: 'options={"freeze": False} or BRINGUP_FREEZE=0',
    PASSES: 'options={"passes": []}',
    NARROW: 'options={"weights": "float32"}',
    CAPTURE: 'options={"capture": False} or BRINGUP_CAPTURE=0',
    INDUCTOR: 'options={"inner": "eager"}',
}
_NARROW_TOLERANCE = 1.6e-2  # that of torch.testing.assert_close for bfloat16


@dataclass(frozen=True)
class Culprit:
    """What makes a result differ.

    Attributes:
        part: "pass", "freezing", "narrow weights", "capture", "inductor", "passes" where they
            cannot be run at all, or "torch" where the result differs without any of these.
        reason: how the result differs with it.
        pass_name: the pass; "" for another part.
        match: the number of the match among those of this pass, from 1; 0 for a pass that fails
            and for another part.
        rewrite: the number of this rewrite among all, from 1; 0 likewise.
        graph: the graph it is in.
        nodes: what was matched; of a graph pass, what it says it replaced.
        switch: what switches it off.
    """

    part: str
    reason: str
    pass_name: str = ""
    match: int = 0
    rewrite: int = 0
    graph: str = ""
    nodes: tuple[str, ...] = ()
    switch: str = ""

    def __str__(self) -> str:
        if self.part == "torch":
            return f"torch: the result differs with every part switched off: {self.reason}"
        if not self.pass_name:
            return f"{self.part}: {self.reason}"
        if not self.match:
            return f"pass {self.pass_name} fails: {self.reason}"
        at = f" at {', '.join(self.nodes)}" if self.nodes else ""
        return (
            f"pass {self.pass_name}, match {self.match} (rewrite {self.rewrite} of all) on "
            f"{self.graph}{at}: {self.reason}"
        )


@dataclass(frozen=True)
class Bisection:
    """What a search found.

    Attributes:
        culprits: in the order of the compile; each was found with those before it switched off.
        rewrites: how many rewrites there are.
        runs: how often the model was compiled.
    """

    culprits: tuple[Culprit, ...] = ()
    rewrites: int = 0
    runs: int = 0


@dataclass
class Attempt:
    """One compile: how it differs, what was rewritten, and the first pass that failed."""

    reason: str = ""
    rewrites: Sequence[Rewrite] = ()
    replaced: Mapping[tuple[str, str], list[str]] = field(default_factory=dict)
    failed: str = ""


class Runs(Protocol):
    """What can be compiled again and again, with some parts switched off."""

    @property
    def parts(self) -> Sequence[str]:
        """Return those that there are, in the order in which a compile comes to them."""

    def attempt(self, parts: Sequence[str], most: int | None, without: Iterable[str]) -> Attempt:
        """Compile with these parts, so many rewrites (None: all), and without these passes."""


def search(runs: Runs, on_step: Callable[[str], object] = lambda words: None) -> Bisection:
    """Find every part and pass that makes the result differ, one after the other."""
    return _Search(runs, on_step).all_culprits()


class _Search:
    def __init__(self, runs: Runs, on_step: Callable[[str], object]) -> None:
        self._runs = runs
        self._on_step = on_step
        self._parts = list(runs.parts)
        self._without: list[str] = []
        self._count = 0

    def all_culprits(self) -> Bisection:
        culprits: list[Culprit] = []
        whole = self._attempt(self._parts)
        rewrites = len(whole.rewrites)
        while whole.reason:
            found = self._first_culprit(whole)
            culprits.append(found)
            if found.part == "torch":
                break
            if found.pass_name:
                self._without.append(found.pass_name)
            else:
                self._parts.remove(found.part)
            whole = self._attempt(self._parts)
        return Bisection(tuple(culprits), rewrites, self._count)

    def _first_culprit(self, whole: Attempt) -> Culprit:
        """Return the first part with which the result differs, given it does with all of them."""
        nothing = self._attempt([])
        if nothing.reason:
            return Culprit("torch", nothing.reason)
        for count in range(1, len(self._parts) + 1):
            is_whole = count == len(self._parts)
            tried = whole if is_whole else self._attempt(self._parts[:count])
            if not tried.reason:
                continue
            part = self._parts[count - 1]
            if part == PASSES:
                return self._rewrite(self._parts[:count], tried)
            return Culprit(part, tried.reason, switch=_SWITCHES[part])
        raise AssertionError("with all parts the result differs")

    def _rewrite(self, parts: Sequence[str], tried: Attempt) -> Culprit:
        if tried.failed:
            return Culprit("pass", tried.reason, tried.failed, switch=_switch_of_pass(tried.failed))
        good, bad, reason = 0, len(tried.rewrites), tried.reason
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self._attempt(parts, middle).reason
            good, bad = (good, middle) if found else (middle, bad)
            reason = found or reason
        if bad == 0:  # the passes cannot be run at all
            return Culprit(PASSES, reason, switch=_SWITCHES[PASSES])
        rewrite = tried.rewrites[bad - 1]
        name = rewrite.pass_name
        place = (name, rewrite.graph)
        return Culprit(
            "pass",
            reason,
            name,
            sum(item.pass_name == name for item in tried.rewrites[:bad]),
            bad,
            rewrite.graph,
            tuple(rewrite.nodes or tried.replaced.get(place, ())),
            _switch_of_pass(name),
        )

    def _attempt(self, parts: Sequence[str], most: int | None = None) -> Attempt:
        self._count += 1
        found = self._runs.attempt(parts, most, self._without)
        limited = [
            f"{most} rewrites" if part == PASSES and most is not None else part for part in parts
        ]
        words = ", ".join(limited) or "every part switched off"
        without = f" without {', '.join(self._without)}" if self._without else ""
        self._on_step(f"{words}{without}: {found.reason or 'right'}")
        return found


def _switch_of_pass(name: str) -> str:
    return f'options={{"pass_switch": {{"{name}": False}}}} or BRINGUP_PASS_SWITCH={name}:off'


def bisect(
    model: Callable[..., Any],
    example_inputs: Any,
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    dynamic: bool | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    on_step: Callable[[str], object] = lambda words: None,
) -> Bisection:
    """Find what makes the result of a compiled model differ from eager's.

    The model is compiled with nothing of the backend, then with freezing, passes, narrow weights
    and the capture added, as far as `mode` and `options` have them; the rewrites of passes are
    halved. What is found is left out until the result is right. Each compiled model is called on
    copies of the inputs, on flipped ones (unless eager refuses those), and on copies again; buffers
    and random numbers are put back before each call, other state is not.

    Args:
        model: a module or function, as it will be served: in evaluation mode.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        mode, options, dynamic: as for `torch.compile(model, backend="bringup", ...)`.
        atol, rtol: how far tensors may be apart; by default as `torch.testing.assert_close` has it,
            and 1.6 % of the largest value where weights are narrower than float32.
        on_step: told what was tried, and what came of it.

    Returns:
        The culprits; none where nothing differs.

    Raises:
        BringupError: an option or mode is not known.
        ValueError: only one of `atol` and `rtol` is given.
    """
    if (atol is None) != (rtol is None):
        raise ValueError("give both atol and rtol, or neither")
    tolerance = None if atol is None or rtol is None else (atol, rtol)
    runs = _ModelRuns(model, example_inputs, mode, dict(options or {}), dynamic, tolerance)
    return search(runs, on_step)


class _ModelRuns:
    """A model that torch.compile takes apart."""

    def __init__(
        self,
        model: Callable[..., Any],
        example_inputs: Any,
        mode: str | None,
        options: Mapping[str, object],
        dynamic: bool | None,
        tolerance: tuple[float, float] | None,
    ) -> None:
        parsed = CompileOptions.parse(options, mode)
        self._options = {"mode": parsed.mode, **options}
        self._model = model
        self._dynamic = dynamic
        self._tolerance = tolerance
        self._is_inductor = parsed.inner == "inductor"
        has = {
            FREEZING: parsed.may_freeze,
            PASSES: parsed.passes is None or bool(parsed.passes),
            NARROW: parsed.weight_dtype != "float32",
            CAPTURE: parsed.captures,
            INDUCTOR: self._is_inductor,
        }
        self.parts: Sequence[str] = [part for part, is_there in has.items() if is_there]
        self._state = _State(model)
        self._calls = _calls(example_inputs)
        self._expected = [self._result(model, self._calls[0])]
        if len(self._calls) > 1:
            try:
                flipped = self._result(model, self._calls[1])
            except Exception:  # inputs that are not those of this model after all
                self._calls = [self._calls[0]] * 2
                self._expected *= 2
            else:
                self._calls.append(self._calls[0])
                self._expected = [self._expected[0], flipped, self._expected[0]]

    def attempt(self, parts: Sequence[str], most: int | None, without: Iterable[str]) -> Attempt:
        events: list[PassEvent] = []
        listening = passes.subscribe(events.append)
        failed = ""
        with passes.limit_rewrites(most) as limit, listening, self._uncached():
            try:
                reason = self._compiled_difference(parts, without)
            except Exception as error:  # a part that fails is found like one that is wrong
                cause = getattr(error, "inner_exception", None) or error
                reason, failed = reason_of(cause), failed_pass(cause)
        replaced: dict[tuple[str, str], list[str]] = {}
        for event in events:
            if event.kind is EventKind.REPLACED:
                nodes = replaced.setdefault((event.pass_name, event.graph), [])
                nodes.extend(map(str, event.details["nodes"]))  # type: ignore[call-overload]
        return Attempt(reason, limit.rewrites, replaced, failed)

    def _compiled_difference(self, parts: Sequence[str], without: Iterable[str]) -> str:
        torch.compiler.reset()
        compiled: Any = torch.compile(
            self._model,
            backend="bringup",
            options=self._options_with(parts, without),
            dynamic=self._dynamic,
        )
        for call, expected in zip(self._calls, self._expected, strict=True):
            tolerance = self._tolerance_with(parts, expected)
            if reason := difference(self._result(compiled, call), expected, tolerance):
                return reason
        return ""

    def _options_with(self, parts: Sequence[str], without: Iterable[str]) -> dict[str, Any]:
        options: dict[str, Any] = dict(self._options)
        for part, off in _OFF.items():
            if part not in parts and part in self.parts:
                options.update(off)
        switch = options.get("pass_switch") or {}
        options["pass_switch"] = {**switch, **dict.fromkeys(without, False)}
        return options

    def _tolerance_with(
        self, parts: Sequence[str], expected: Sequence[Leaf]
    ) -> tuple[float, float] | None:
        if self._tolerance is not None or NARROW not in parts:
            return self._tolerance
        tensors = (leaf.value for leaf in expected if isinstance(leaf.value, torch.Tensor))
        largest = max(map(magnitude, tensors), default=0.0)
        return _NARROW_TOLERANCE * largest, _NARROW_TOLERANCE

    def _result(self, function: Any, call: Any) -> list[Leaf]:
        self._state.restore()
        args, kwargs = copy.deepcopy(call)
        return leaves(function(*args, **kwargs))

    def _uncached(self) -> AbstractContextManager[Any]:
        """Turn Inductor's cache off: a cached graph has no rewrites to count."""
        if not self._is_inductor:
            return nullcontext()
        from torch._inductor import config

        patched: AbstractContextManager[Any] = config.patch(force_disable_caches=True)
        return patched


class _State:
    """What a call of a model may change and is put back: its buffers and random numbers."""

    def __init__(self, model: Any) -> None:
        buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        """Write only what differs: a frozen buffer that is written is folded again."""
        with torch.no_grad():
            for buffer, saved in self._buffers:
                if not torch.equal(buffer, saved):
                    buffer.copy_(saved)
        torch.set_rng_state(self._random)


def arguments_of(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: of a tensor, a tuple of arguments, or a dict."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _calls(example_inputs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of calls: as given, and others of the same kind."""

    def flipped(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().flip(-1) if tensor.dim() else tensor

    given = arguments_of(example_inputs)
    return [given, pytree.tree_map_only(torch.Tensor, flipped, given)]


def difference(
    ours: Sequence[Leaf], expected: Sequence[Leaf], tolerance: tuple[float, float] | None
) -> str:
    """Return how two results first differ, "" where they do not; `tolerance` is atol and rtol, None
    for those of `torch.testing.assert_close`.
    """
    if words := form_difference(ours, expected):
        return f"the result differs {words}"
    atol, rtol = (None, None) if tolerance is None else tolerance
    for mine, other in zip(ours, expected, strict=True):
        if isinstance(other.value, (torch.Tensor, *NUMBERS)):
            words = not_close(mine.value, other.value, atol=atol, rtol=rtol)
        elif not alike(mine.value, other.value):
            words = f"{mine.value!r} for {other.value!r}"
        if words:
            return f"the result{mine.path} differs: {words}"
    return ""


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def failed_pass(error: BaseException) -> str:
    """Return the first pass that a `PassError` reports as failed; "" for another error."""
    report = getattr(error, "report", None)
    results = [] if report is None else report.results
    failed = (item for item in results if item.status is PassStatus.FAILED and not item.tolerated)
    return next((item.name for item in failed), "")
