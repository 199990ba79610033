"""`options={"capture": True}`: a compiled inference graph, captured once per call signature."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from bringup import graphs, settings
from bringup._native import torch_library
from bringup.compiler.capture_memory import CaptureMemory, device_of, memory_of
from bringup.compiler.inner_compiler import BoxedFunction
from bringup.compiler.update_plan import Updates
from bringup.errors import CaptureError, UpdateError
from bringup.graphs._copies import copied, storage_address
from bringup.graphs._inputs import Placeholders
from bringup.graphs._pieces import SplitPoint

_LOG = settings.logger("compiler")
_CAPTURE_TURN = threading.RLock()
"""Captures of compiled functions come one after the other: their memory is accounted for together,
and at once two could not draw from one generator."""
_NUMBERS = itertools.count()
ALIVE: WeakValueDictionary[int, _CapturedCalls] = WeakValueDictionary()
"""The captured calls of every compiled graph that is alive, in the order of their compiles."""
_TICKS = itertools.count()
MOST_DROPPED = 64
"""How many captures of one graph make room before its further kinds of calls run as they are."""


@dataclass(frozen=True)
class CaptureReport:
    """What the captures of one compiled graph take.

    Attributes:
        name: of the graph.
        captures: how many kinds of calls are captured now.
        uncaptured: how many kinds of calls run as they are, since they could not be captured.
        max_captures: how many kinds are kept.
        dropped: how many captures made room for others, in this graph or elsewhere.
        memory_bytes: what the captures hold besides weights and shared memory.
        shared_bytes: what the memory takes that they share with others of the device; 0 without
            one.
        pieces: into how many pieces option 'split_at' splits a capture, at most.
        plan: what calls write into the captures, for inputs that are host arguments alone.
    """

    name: str
    captures: int
    uncaptured: int
    max_captures: int
    dropped: int
    memory_bytes: int
    shared_bytes: int
    pieces: int
    plan: graphs.UpdatePlan | None


def captures() -> tuple[CaptureReport, ...]:
    """Return what captures take of each compiled graph that is alive, in the order of compiles."""
    return tuple(calls.report() for _, calls in sorted(ALIVE.items()))


def captured(
    run: BoxedFunction,
    name: str,
    static: frozenset[int],
    max_captures: int,
    *,
    is_required: bool = True,
    static_outputs: bool = False,
    shared_memory: bool | None = None,
    updates: Updates | None = None,
    split_at: Sequence[SplitPoint] = (),
    tells_unmet: bool = False,
) -> BoxedFunction:
    """`run`, but replayed from a captured graph that was made for this kind of call.

    A call's kind is the shape, strides, dtype and device of every tensor and the value of every
    number. Tensors are copied into slots of the captured graph, except those of `static` (weights),
    which are read where they are; another address of one is another kind of call.

    Args:
        run: the compiled graph.
        name: what an error calls it.
        static: positions of arguments that keep their address from call to call.
        max_captures: how many kinds are kept; the one used longest ago makes room.
        is_required: whether a kind of call that cannot be captured, or replayed any more, is an
            error; otherwise it runs as it is, and the log has the reason once.
        static_outputs: whether results are the captured tensors, which the next call of this kind
            overwrites, instead of copies that belong to the caller. They lie in no shared memory.
        shared_memory: whether captures take turns in one memory of their device; None: where that
            is not the cpu.
        updates: the numbers that are no part of a call's kind: they are written into the captured
            graph, except those that it refuses.
        split_at: as for `graphs.capture`.
        tells_unmet: whether the log warns of names in it of which a capture sees no call.

    Raises `CaptureError` at the call when the graph cannot be captured; the message names the
    operator or tensor.
    """
    if static_outputs:
        shared_memory = False
    calls = _CapturedCalls(
        run,
        name,
        static,
        max_captures,
        is_required,
        static_outputs,
        shared_memory,
        updates,
        split_at,
        tells_unmet,
    )

    def run_captured(arguments: list[Any]) -> Any:
        if graphs.is_current_stream_capturing():  # a capture around this one has its operators
            return run(arguments)
        results = calls.call(arguments)
        arguments.clear()
        return results

    def run_captured_if_possible(arguments: list[Any]) -> Any:
        if graphs.is_current_stream_capturing():
            return run(arguments)
        try:
            results = calls.call(arguments)
        except CaptureError as reason:
            calls.give_up(arguments, reason)
            results = None
        if results is None:
            return run(arguments)
        arguments.clear()
        return results

    chosen = run_captured if is_required else run_captured_if_possible
    chosen._boxed_call = True  # type: ignore[attr-defined]
    return chosen


@dataclass(eq=False)
class _CapturedCalls:
    """The captured graphs of one compiled graph, by the kind of call."""

    run: BoxedFunction
    name: str
    static: frozenset[int]
    max_captures: int
    is_required: bool
    static_outputs: bool
    shared_memory: bool | None
    updates: Updates | None
    split_at: Sequence[SplitPoint]
    tells_unmet: bool

    def __post_init__(self) -> None:
        self._kind = torch_library("option 'capture'").graphs.call_kind
        self._captures: OrderedDict[object, _Captured | None] = OrderedDict()
        self._dropped = 0
        self._has_told = False
        self._lock = threading.Lock()  # of both: held for moments
        ALIVE[next(_NUMBERS)] = self

    def report(self) -> CaptureReport:
        with self._lock:
            entries = list(self._captures.values())
        kept = [entry for entry in entries if entry is not None]
        pools = {entry.shared for entry in kept if entry.shared is not None}
        return CaptureReport(
            self.name,
            len(kept),
            len(entries) - len(kept),
            self.max_captures,
            self._dropped,
            sum(entry.memory_bytes for entry in kept),
            sum(memory.pool.memory_bytes for memory in pools),
            max((entry.pieces for entry in kept), default=0),
            None if self.updates is None else self.updates.plan,
        )

    def call(self, arguments: list[Any]) -> tuple[Any, ...] | None:
        updates = self.updates
        entry = self._entry(arguments, updates)
        if entry is None or updates is None:
            return None if entry is None else entry.call(arguments)
        try:
            return entry.call(arguments)
        except UpdateError as refused:  # such as a number that another binary belongs to
            _LOG.info("%s is captured for other numbers: %s", self.name, refused)
            entry = self._entry(arguments, None)
            return None if entry is None else entry.call(arguments)

    def give_up(self, arguments: list[Any], reason: CaptureError) -> None:
        """Call of this kind run as they are from now on."""
        key = self._key(arguments, self.updates)
        with self._lock:
            is_first = self._captures.get(key, self) is not None
            self._keep(key, None)
        if is_first:
            _LOG.warning("%s runs as it is: %s", self.name, reason)

    def _key(self, arguments: list[Any], updates: Updates | None) -> object:
        stays = [index in self.static for index in range(len(arguments))]
        if updates is None:
            return self._kind(arguments, stays)
        free = updates.free
        given = [0 if index in free else item for index, item in enumerate(arguments)]
        return "updated", self._kind(given, stays)

    def _entry(self, arguments: list[Any], updates: Updates | None) -> _Captured | None:
        key = self._key(arguments, updates)
        is_known, entry = self._known(key)
        return entry if is_known else self._capture(key, arguments, updates)

    def _known(self, key: object) -> tuple[bool, _Captured | None]:
        with self._lock:
            if key not in self._captures:
                return False, None
            self._captures.move_to_end(key)
            entry = self._captures[key]
        if entry is not None:
            entry.used = next(_TICKS)
        return True, entry

    def kept(self) -> list[tuple[_CapturedCalls, object, _Captured]]:
        with self._lock:
            return [(self, key, entry) for key, entry in self._captures.items() if entry]

    def drop(self, key: object) -> None:
        with self._lock:
            entry = self._captures.pop(key, None)
            self._dropped += entry is not None

    def _capture(
        self, key: object, arguments: list[Any], updates: Updates | None
    ) -> _Captured | None:
        with _capture_turn():
            is_known, entry = self._known(key)  # another thread may have been first
            if is_known:
                return entry
            if self._is_over_limit():
                return None
            try:
                entry = self._captured_within_limit(arguments, updates)
            except UpdateError as reason:
                _LOG.warning("%s is captured for each value of its numbers: %s", self.name, reason)
                self.updates = None
                return self._entry(arguments, None)
            except CaptureError as error:
                hint = (
                    ". Compile it without capture, or keep this part out of the compiled function"
                )
                raise CaptureError(
                    f"option 'capture': {self.name} cannot be captured: {error}"
                    f"{hint if self.is_required else ''}"
                ) from error
        with self._lock:
            self._keep(key, entry)
        report, size = self.report(), _megabytes(entry.memory_bytes)
        limit, whole = report.max_captures, _megabytes(report.memory_bytes)
        words = "captured %s in %s: %d of at most %d, %s in all"
        _LOG.info(words, self.name, size, report.captures, limit, whole)
        return entry

    def _is_over_limit(self) -> bool:
        """Return whether a kind of call that is not captured stays so; say so once."""
        if self._dropped < MOST_DROPPED or len(self._captures) < self.max_captures:
            return False
        if not self._has_told:
            self._has_told = True
            _LOG.warning(
                "%s has been called in more ways than are kept: %d of its captures made room for"
                " others, %d are kept. %s. Pad sizes to a few ('buckets'), raise 'max_captures', or"
                " BRINGUP_CAPTURE_MEMORY",
                self.name,
                self._dropped,
                len(self._captures),
                "Each further one is captured again"
                if self.is_required
                else "Others run as they are from now on",
            )
        return not self.is_required

    def _captured_within_limit(self, arguments: list[Any], updates: Updates | None) -> _Captured:
        """Capture, and drop what was used longest ago until all captures of the device are within
        its limit; once again where the new one alone is above it, for which an empty pool is best.
        """
        memory = memory_of(device_of(arguments))
        shared = self.shared_memory
        if shared is None:
            shared = memory.device.type != "cpu"
        for _ in range(2):
            entry = _Captured(
                self.run,
                arguments,
                self.static,
                self.static_outputs,
                updates,
                memory if shared else None,
                self.split_at,
                self._tell_unmet,
            )
            taken = entry.needed_bytes
            if taken <= memory.limit:
                taken = _make_room(memory, entry)
                if taken <= memory.limit:
                    return entry
            del entry
            memory.trim()
        raise CaptureError(
            f"it takes {_megabytes(taken)}, more than captures may hold on {memory.device}:"
            f" {_megabytes(memory.limit)} (BRINGUP_CAPTURE_MEMORY)"
        )

    def _tell_unmet(self, words: str) -> None:
        if self.tells_unmet:
            self.tells_unmet = False
            _LOG.warning("%s: option %s", self.name, words)

    def _keep(self, key: object, entry: _Captured | None) -> None:
        self._captures[key] = entry
        if len(self._captures) > self.max_captures:
            _, oldest = self._captures.popitem(last=False)
            self._dropped += oldest is not None


def _make_room(memory: CaptureMemory, newest: _Captured) -> int:
    """Drop captures of the device, those used longest ago first, until the rest and the `newest`
    are within its limit; return what they take.
    """
    kept = [one for calls in ALIVE.values() for one in calls.kept() if one[2].memory is memory]
    kept.sort(key=lambda one: one[2].used, reverse=True)
    own = newest.memory_bytes + sum(entry.memory_bytes for _, _, entry in kept)
    while (taken := own + memory.trim()) > memory.limit and kept:
        calls, key, entry = kept.pop()
        own -= entry.memory_bytes
        calls.drop(key)
        del entry
    return int(taken)


@contextmanager
def _capture_turn() -> Iterator[None]:
    """Capture alone; a call within a replay does not wait, as a capture waits for replays."""
    within = torch_library("option 'capture'").graphs.inside_run()
    if not _CAPTURE_TURN.acquire(blocking=not within):
        raise CaptureError("another thread captures, and this call is made by a replay")
    try:
        yield
    finally:
        _CAPTURE_TURN.release()


def require_capturable(aten: Any, name: str, static: frozenset[int]) -> None:
    """Raise `CaptureError` when a graph calls what no capture sees into, such as control flow, or
    an operator of it writes an input that is not at one of the positions `static`: it would write a
    slot instead of the caller's tensor.
    """
    placeholders = aten.graph.find_nodes(op="placeholder")
    slots = {node for index, node in enumerate(placeholders) if index not in static}
    for node in aten.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CaptureError(
                f"option 'capture': {name} calls {node.target} ({node.name}), which runs as Python "
                "and may do another thing at every call; compile without capture"
            )
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for index, argument in enumerate(node.target._schema.arguments):
            written = argument.alias_info is not None and argument.alias_info.is_write
            by_name = node.kwargs.get(argument.name)
            given = node.args[index] if index < len(node.args) else by_name
            if written and isinstance(given, torch.fx.Node) and given in slots:
                raise CaptureError(
                    f"option 'capture': {node.target} writes input {given.name!r} of {name}, and "
                    "a captured graph has copies of its inputs; compile without capture"
                )


class _Captured:
    def __init__(
        self,
        run: BoxedFunction,
        arguments: Sequence[Any],
        static: frozenset[int],
        static_outputs: bool,
        updates: Updates | None,
        shared: CaptureMemory | None,
        split_at: Sequence[SplitPoint],
        tell_unmet: Callable[[str], object],
    ) -> None:
        slots = {
            index: copied(item)
            for index, item in enumerate(arguments)
            if isinstance(item, torch.Tensor) and index not in static
        }
        # a weight's memory is kept, not the tensor: torch.utils.swap_tensors allows no other owner
        given = [
            item.detach() if isinstance(item, torch.Tensor) and index in static else item
            for index, item in enumerate(arguments)
        ]
        given = [slots.get(index, item) for index, item in enumerate(given)]
        self._copied = tuple(slots)
        self._kept = [item for index, item in enumerate(given) if index in static]
        self._graph = graphs.CapturedGraph()
        pool = None if shared is None else shared.pool
        block = graphs.capture(
            self._graph, pool, inputs=Placeholders(slots.values()), split_at=split_at
        )
        block._refuses_nothing, block._tell_unmet = True, tell_unmet
        turn = nullcontext() if shared is None else shared.turn()
        with torch.no_grad(), turn, block:
            results = tuple(run(list(given)))  # it may empty its list
            # inputs and their views are given back as they are: what was written, what is kept
            self._results = [_alias(result, given) for result in results]
            pairs = zip(results, self._results, strict=True)
            fresh = tuple(result for result, alias in pairs if alias is None)
            tensors = [item for item in given if isinstance(item, torch.Tensor)]
            # run() gives something: without results the least of what is there, as of a step
            self._graph.outputs = fresh or tuple(sorted(tensors, key=lambda item: item.nbytes)[:1])

        self.memory = memory_of(device_of(arguments))
        self.shared = shared
        self.used = next(_TICKS)
        self._plan = self._bound(updates, arguments)
        self._slots = tuple(slots.values())
        self.memory_bytes = sum(slot.untyped_storage().nbytes() for slot in self._slots)
        """What it holds alone: copies of inputs, and what it computes where that is not shared."""
        self.needed_bytes = self.memory_bytes + self._graph.memory_bytes
        self.pieces = len(self._graph.pieces)
        if shared is None:
            self.memory_bytes = self.needed_bytes
        else:  # runs copy them out at once, and later captures have their memory
            native = self._graph._captured("run").native
            self._graph.outputs = tuple(
                native.unowned(one) if isinstance(one, torch.Tensor) else one
                for one in self._graph.outputs
            )
        self._replay = self._run_in_place if static_outputs else self._graph.run

    def _bound(self, updates: Updates | None, arguments: Sequence[Any]) -> graphs.BoundPlan | None:
        """Return what calls write into the graph; refuse values of the host that none would."""
        plan = None if updates is None else updates.bind(self._graph, arguments)
        planned = 0 if updates is None else updates.host_reads(arguments)
        unit = self._graph._unit
        assert unit is not None
        if unit.values_read > planned:
            raise CaptureError(
                "an operator takes the values of a tensor of the host that is no input of the"
                " compiled function as it stands, such as a part of one"
            )
        unit.values_read = 0
        return plan

    def call(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        given = [arguments[i] for i in self._copied]
        slots = None if self._plan is None else self._plan.slots(arguments)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._results_of(arguments, self._replay(*given, slots=slots))
        return self._results_of(arguments, self._replay(*given, slots=slots))

    def _results_of(self, arguments: Sequence[Any], fresh: Sequence[Any]) -> tuple[Any, ...]:
        computed = iter(fresh)
        return tuple(
            next(computed) if alias is None else alias.of(arguments) for alias in self._results
        )

    def _run_in_place(self, *given: Any, slots: Mapping[str, Any] | None) -> Any:
        if slots is not None:
            self._graph.update(slots)
        for slot, tensor in zip(self._slots, given, strict=True):
            slot.copy_(tensor)
        self._graph.replay()
        return self._graph.outputs


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class _Alias:
    """A result that is an argument, or a `view` of one: sizes, strides, distance in it."""

    place: int
    view: tuple[Sequence[int], Sequence[int], int] | None

    def of(self, arguments: Sequence[Any]) -> Any:
        argument = arguments[self.place]
        if self.view is None:
            return argument
        sizes, strides, distance = self.view
        return argument.as_strided(sizes, strides, argument.storage_offset() + distance)


def _alias(result: Any, given: Sequence[Any]) -> _Alias | None:
    if not isinstance(result, torch.Tensor):
        return None
    tensors = [(i, item) for i, item in enumerate(given) if isinstance(item, torch.Tensor)]
    for place, item in tensors:
        if item is result:
            return _Alias(place, None)
    for place, item in tensors:
        if item.dtype is result.dtype and storage_address(item) == storage_address(result) != 0:
            distance = result.storage_offset() - item.storage_offset()
            return _Alias(place, (result.size(), result.stride(), distance))
    return None
