"""Capturing: from the `with` block to a graph, or to an error that leaves everything as it was."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from bringup import settings
from bringup._after_import import after_import
from bringup._native import torch_library
from bringup.errors import CaptureError
from bringup.graphs._assumptions import Given
from bringup.graphs._compiled_code import generated_code_refused
from bringup.graphs._content import CapturedContent, check_outputs
from bringup.graphs._dispatch_records import HandledCalls
from bringup.graphs._gradients import no_early_stop
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._handlers import hooked_names, registered_names
from bringup.graphs._inputs import declared_inputs
from bringup.graphs._jagged import RECORDER, show_to_recorder
from bringup.graphs._optimizers import steps_seen
from bringup.graphs._patched_function import attribute_replaced
from bringup.graphs._pieces import SplitPoint, SplitPoints
from bringup.graphs._pool import pool_of
from bringup.graphs._reachable import Found, frame_values, reachable
from bringup.graphs._run import RunUnit
from bringup.graphs._scope import OutermostCalls, ScopeTracker
from bringup.graphs._slots import check_become_nodes
from bringup.graphs._source_location import not_the_user

REMEMBERED_BYTES = 1 << 30
"""How much of what is merely reachable is read before and after a capture, nearest first."""
_ERROR_MODES = ("global", "thread_local", "relaxed")


class _ThreadCapture(threading.local):
    """The capture of this thread, if one runs."""

    recorder: Any = None
    scopes: ScopeTracker | None = None
    graph: Callable[[], CapturedGraph | None] = staticmethod(lambda: None)
    kept: list[Any] | None = None  # for as long as the graph
    task_group: int | None = None  # number of its first node
    rehearses = False  # it will have no graph


_thread = _ThreadCapture()
after_import("torch.nested._internal.nested_tensor", show_to_recorder)


class capture:  # noqa: N801 - a context manager, named like torch.cuda.graph
    """Captures what the `with` block runs on this thread as `graph`. Nothing happened until
    `graph.replay()`.

    The block runs once. After it every tensor that existed before, and every random generator, is
    as it was; tensors made in the block belong to the graph and hold the results of this run until
    the first replay.

    Args:
        graph: an empty `CapturedGraph`.
        pool: memory that graphs share, from `graph_pool_handle()` or `CapturedGraph.pool()`; of its
            own by default. What a capture in it has freed, the next one uses again: a replay then
            overwrites results of graphs that were captured later, and reading these raises until
            their graph is replayed. Replays of one pool come one after the other.
        stream: a `torch.Stream` to run the block in; the current one by default.
        auto_dispatch_capture: changes nothing; for programs written for torch_npu, where True makes
            host arguments updatable. Here they always are.
        capture_error_mode: `"global"`, `"thread_local"` or `"relaxed"`, checked and otherwise
            without effect; for programs written for CUDA, where it says whose unsafe calls end the
            capture. Here only the capturing thread's are refused, and other threads go on.
        inputs: what `graph.run` takes: a tensor, a sequence (by position) or a mapping (by keyword)
            of tensors that the block reads; nests are allowed. Without it, and without
            `graph.outputs = ...`, run takes and gives what the block's only module call did.
        split_at: which operators a replay calls eagerly, between two pieces of the graph: a list of
            operators, their names (`"ns::op"`, `"ns::op.overload"`), and functions
            `(op, args, kwargs) -> bool` that are asked of each call which computes something. All
            arguments of such a call are slots. A name of which no call comes is warned of.
        gradients: whether autograd may record in the block, as it does where gradients are on. Its
            backward is called there, as in a whole step of training, or not at all: outside of the
            block it raises after a replay, which has written what autograd saved. False refuses.

    Raises:
        TypeError: `graph` is no `CapturedGraph`, `pool` is no pool, `inputs` holds something that
            is no tensor, or `split_at` what is no operator, name or function.
        ValueError: `capture_error_mode` is none of the three; `split_at` names an operator that
            there is not, or one that a replay does not call.
        CaptureError: the block did something that replay could not repeat, and the message says
            what and where. The graph stays empty and can be captured again.

    Examples:
        >>> from bringup import graphs
        >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
        >>> with graphs.capture(graph):
        ...     y = x + 1
        >>> _ = x.fill_(5)
        >>> graph.replay()
        >>> y
        tensor([6., 6.])
    """

    def __init__(
        self,
        graph: CapturedGraph,
        pool: object | None = None,
        stream: Any = None,
        auto_dispatch_capture: bool = True,
        capture_error_mode: str = "global",
        *,
        inputs: Any = None,
        split_at: SplitPoint | Sequence[SplitPoint] | None = None,
        gradients: bool = True,
    ) -> None:
        if not isinstance(graph, CapturedGraph):
            raise TypeError(f"capture takes a CapturedGraph, got {type(graph).__name__}")
        if capture_error_mode not in _ERROR_MODES:
            raise ValueError(
                f"capture_error_mode is one of {', '.join(_ERROR_MODES)}, got "
                f"{capture_error_mode!r}"
            )
        self._graph: Callable[[], CapturedGraph | None] = lambda: graph
        self._native = torch_library("graphs.capture").graphs  # before the pool, which wants it too
        self._pool = pool_of(pool)
        self._unit = RunUnit(None if inputs is None else declared_inputs(inputs))
        self._split = SplitPoints(split_at)
        self._stream = stream
        self._cleanup = ExitStack()
        self._recorder: Any = None
        self._given: Given | None = None
        self._kept: list[Any] = []
        self._accepts_gradients = gradients
        self._note: Callable[[CaptureError], None] | None = None
        self._refuses_nothing = False  # whether a block in which no operator ran is an error
        self._tell_unmet: Callable[[str], object] = functools.partial(warnings.warn, stacklevel=2)

    def __enter__(self) -> CapturedGraph:
        return self._begin(sys._getframe(1))

    def _begin(self, caller: FrameType) -> CapturedGraph:
        """Start the capture; what the caller's variables lead to is remembered."""
        _end_lost()
        graph = self._graph()
        assert graph is not None
        if graph._content is not None:
            raise CaptureError(
                "this graph holds a capture already: call reset() first, or use another graph"
            )
        _check_is_outside_of_operators()
        self._handled = handled = HandledCalls()
        recorder = self._native.Recorder(
            registered_names(),
            hooked_names(),
            not_the_user(),
            handled.handle,
            self._pool._native,
            f"captured at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
        )
        if self._accepts_gradients:
            recorder.accept_gradients()
        self._split.begin(recorder)
        if self._note is not None:
            recorder.note_failures(self._note)
        handled.node_count = lambda: int(_thread.recorder.node_count)
        self._given = given = Given(recorder.predates)
        handled.unrecorded = unrecorded
        found = list(reachable({**self._split.functions(), **frame_values(caller)}))
        pending = _pending(found)  # before the wait, which copies that begin in it outlast
        _finish_writes(found)
        generators = _remember(recorder, given, found, REMEMBERED_BYTES, pending)
        for _, value, _ in found:
            recorder.know_buffer(value)
        with ExitStack() as cleanup:
            if self._stream is not None:
                cleanup.enter_context(_in_stream(self._stream))
            recorder.begin()
            cleanup.callback(recorder.stop)
            for generator in generators:
                recorder.watch_generator(generator)
            cleanup.enter_context(_session_of(recorder, given, self._graph, self._kept))
            _thread.rehearses = self._note is not None
            compiled = cleanup.enter_context(generated_code_refused(is_current_stream_capturing))
            cleanup.enter_context(_paused_while_compiling(recorder, compiled))
            cleanup.enter_context(_host_reads_refused())
            cleanup.enter_context(steps_seen(is_current_stream_capturing, given.add_optimizer))
            cleanup.enter_context(given.gradients.backwards_seen(_captured_nodes))
            cleanup.enter_context(_capture_visible_to_libraries())
            # Else recomputation stops inside of an operator, which has run and is not recorded.
            cleanup.enter_context(no_early_stop())
            # Else a device's backward would run on a thread that is not recorded.
            cleanup.enter_context(torch.autograd.set_multithreading_enabled(False))
            self._cleanup = cleanup.pop_all()
        self._recorder = recorder
        graph._unit = self._unit
        return graph

    def _begin_for(self, graph: CapturedGraph, caller: FrameType) -> Callable[[], object]:
        """Begin as `_begin` does, for `capture_begin`; return what to call at an early end."""
        self._graph = weakref.ref(graph)
        self._begin(caller)
        return weakref.finalize(graph, self._lose).detach

    def _lose(self) -> None:
        """End the capture of a graph that is gone."""
        _lost.append(self)
        _end_lost()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is not _thread.recorder:
            raise CaptureError(
                "a capture ends on the thread on which it began: leave its `with` block there"
            )
        recorder, self._recorder = self._recorder, None
        scopes, unit, open_group = _thread.scopes, self._unit, _thread.task_group
        assert scopes is not None
        given, self._given = self._given, None
        assert given is not None
        graph = self._graph()
        if graph is not None:
            graph._unit = None
        try:
            self._cleanup.close()
            if error is not None or self._note is not None or graph is None:
                recorder.abandon()
                given.gradients.put_back()
                return
            if open_group is not None:
                raise CaptureError(
                    "graph_task_group_begin was called and graph_task_group_end was not"
                )
            check_become_nodes(recorder.handled_without_node)
            check_outputs(recorder)
            native = recorder.finish(graph._level, settings.graph_verify() or 0)
            if native.node_count == 0:
                self._meet_nothing()
            elif unmet := self._split.unmet(recorder):
                self._tell_unmet(unmet)
            optimizers = given.settle(native, recorder.watch, list(scopes.called))
            unit.settle(native, scopes.calls)
            unit.watch_inputs(recorder.watch)
            unit.note_read([one.tensor for one in self._kept if isinstance(one, _ReadValues)])
            graph._content = CapturedContent(
                native, recorder.watch, self._handled.calls, self._kept, self._pool, optimizers
            )
            for call in self._kept:
                call.arm()
            graph._unit = unit
            if graph._level == 2:
                from bringup.graphs._fuse_build import fuse  # lower levels need no compiler

                graph._content.fusing = fuse(native)
        except BaseException:
            recorder.abandon()
            given.gradients.put_back()
            raise

    def _meet_nothing(self) -> None:
        if self._refuses_nothing:
            raise CaptureError("the capture saw no work: no operator ran that writes a tensor")
        warnings.warn(
            "The captured graph is empty: no operator ran in the block that writes a tensor. Call"
            " the model inside of it, on this thread",
            stacklevel=3,
        )


CapturedGraph._capture = capture  # for capture_begin


def rehearsal(note: Callable[[CaptureError], None]) -> capture:
    """Return a capture without a graph: refusals go to `note`, and it goes on where it can."""
    block = capture(CapturedGraph())
    block._note = note
    return block


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name captured code, whose slots are `<name>.<operator>...`; do nothing elsewhere.

    Args:
        name: one or more segments, `"attn"` or `"decoder.attn"`.
    """
    scopes = _thread.scopes
    if scopes is None:
        yield
        return
    with scopes.named(name):
        yield


_lost: list[capture] = []
"""Captures whose graph is gone, until their thread can end them."""


def _end_lost() -> None:
    for block in list(_lost):
        if block._recorder is None:
            _lost.remove(block)
        elif block._recorder is _thread.recorder and not block._recorder.busy:
            _lost.remove(block)
            block.__exit__(CaptureError, CaptureError("the graph is gone"), None)


def is_current_stream_capturing() -> bool:
    """Return whether a capture is under way on this thread."""
    if _lost:
        _end_lost()
    recorder = _thread.recorder
    return recorder is not None and not recorder.paused


def _captured_nodes() -> int | None:
    return _thread.recorder.node_count if is_current_stream_capturing() else None


def keep_in_graph(call: Any) -> None:
    """Keep an object with the graph under capture; call its `arm()` after the capture."""
    assert _thread.kept is not None
    _thread.kept.append(call)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run the block as if this thread's capture were not there."""
    recorder = _thread.recorder
    recorder.set_paused(True)
    try:
        yield
    finally:
        recorder.set_paused(False)


def values_on_host(tensor: torch.Tensor) -> list[Any]:
    """Return what a tensor of the host holds, for a captured call that takes values. Raises
    `CaptureError` where the capture writes it: a replay would not read it again.
    """
    if _thread.recorder.is_written(tensor):
        raise CaptureError(
            "a captured operator takes the values of a tensor of the host that the capture writes:"
            " compute it before the capture, and update() it"
        )
    keep_in_graph(_ReadValues(tensor))
    with unrecorded():
        values: list[Any] = tensor.tolist()
    return values


@dataclass(frozen=True, eq=False)
class _ReadValues:
    """A tensor of the host whose values a captured call took."""

    tensor: torch.Tensor

    def arm(self) -> None:
        """Nothing is left to do."""


def current_scopes() -> ScopeTracker:
    """Return what follows the modules of this thread's capture."""
    assert _thread.scopes is not None
    return _thread.scopes


def current_recorder() -> Any:
    """Return the native recorder of this thread's capture, or None."""
    return _thread.recorder


def rehearses() -> bool:
    """Return whether this thread's capture only looks for what it refuses."""
    return _thread.rehearses


def begin_task_group(node: int) -> None:
    """Begin a task group that must end in the capture. CaptureError when one has begun."""
    if _thread.task_group is not None:
        raise CaptureError("graph_task_group_begin: a group has begun, and groups do not nest")
    _thread.task_group = node


def end_task_group() -> tuple[CapturedGraph, int]:
    """Return the captured graph and the group's first node. CaptureError without one."""
    begun, _thread.task_group = _thread.task_group, None
    graph = _thread.graph()
    if begun is None or graph is None:
        raise CaptureError("graph_task_group_end: call graph_task_group_begin() before")
    return graph, begun


def constant(tensor: torch.Tensor) -> torch.Tensor:
    """Declare a tensor's content a constant of the graph under capture; return the tensor.

    For tensors that code which the recorder cannot see made inside the capture, and whose content
    does not depend on the graph's inputs. Every replay puts this content back. Outside a capture it
    does nothing.
    """
    if _thread.recorder is not None:
        _thread.recorder.declare_constant(tensor)
    return tensor


def _pending(found: Iterable[Found]) -> set[int]:
    """Return the ids of tensors that collectives by gloo have yet to write."""
    collectives = sys.modules.get("bringup.devices.distributed")
    if collectives is None:  # there was none
        return set()
    tensors = [value for _, value, _ in found if issubclass(type(value), torch.Tensor)]
    return {id(tensor) for tensor in tensors if collectives.is_pending(tensor)}


def _finish_writes(found: Iterable[Found]) -> None:
    """Wait for other streams: what they have yet to write would be taken for the capture's."""
    tensors = [value for _, value, _ in found if issubclass(type(value), torch.Tensor)]
    name = torch._C._get_privateuse1_backend_name()
    for device in {tensor.device for tensor in tensors if tensor.device.type == name}:
        torch.accelerator.synchronize(device)


def _check_is_outside_of_operators() -> None:
    if torch._C._dispatch_tls_is_dispatch_key_excluded(RECORDER):
        raise CaptureError(
            "a capture cannot begin inside an operator, such as a function of Python that a replay"
            " calls: it would see none of its operators"
        )


def _remember(
    recorder: Any, given: Given, found: Iterable[Found], most: int, pending: Container[int]
) -> list[torch.Generator]:
    """Record reachable tensors, up to `most` bytes, but those with ids in `pending`, and all
    holders; return the generators.
    """
    found = list(found)
    given.add(found)
    for name, value, _ in found:
        if issubclass(type(value), torch.Tensor) and id(value) not in pending:
            most -= recorder.remember(value, name, most)
    return [value for _, value, _ in found if issubclass(type(value), torch.Generator)]


@contextmanager
def _in_stream(stream: Any) -> Iterator[None]:
    """Run the block in `stream`, ordered behind and before the stream around it."""
    outer = torch.accelerator.current_stream(stream.device)
    stream.wait_stream(outer)
    try:
        with stream:
            yield
    finally:
        outer.wait_stream(stream)


@contextmanager
def _session_of(
    recorder: Any, given: Given, graph: Callable[[], CapturedGraph | None], kept: list[Any]
) -> Iterator[None]:
    def entered(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = {"its arguments": args, "its keyword arguments": kwargs}
        found = list(reachable({type(module).__name__: module, **values}))
        for generator in _remember(recorder, given, found, sys.maxsize, _pending(found)):
            recorder.watch_generator(generator)

    calls = OutermostCalls(lambda: int(recorder.seen))
    scopes = ScopeTracker(recorder.set_scope, entered, calls, lambda: bool(recorder.paused))
    scopes.start()
    _thread.recorder, _thread.scopes = recorder, scopes
    _thread.graph, _thread.kept = graph, kept
    try:
        yield
    finally:
        _thread.__dict__.clear()  # which leaves the defaults of its class
        scopes.stop()


_DYNAMO_CALLBACKS = "torch._dynamo.callback"
_registrations: list[Callable[[], None]] = []
"""Of captures under way: each tells Dynamo, which may be imported in the block, to pause it."""


@functools.cache
def _register_once_dynamo_is_there() -> None:
    after_import(_DYNAMO_CALLBACKS, lambda: [register() for register in _registrations])


@contextmanager
def _paused_while_compiling(recorder: Any, compiled: Callable[[], None]) -> Iterator[None]:
    """Pause the capture while a compiler runs; call `compiled` after it."""

    def pause(_args: object) -> None:
        if _thread.recorder is recorder:
            recorder.set_paused(True)
            current_scopes().pause(True)

    def resume(_args: object) -> None:
        if _thread.recorder is recorder:
            compiled()
            current_scopes().pause(False)
            recorder.set_paused(False)

    with ExitStack() as registered:

        def register() -> None:
            handler = sys.modules[_DYNAMO_CALLBACKS].callback_handler
            for add, remove, callback in (
                (handler.register_start_callback, handler.remove_start_callback, pause),
                (handler.register_end_callback, handler.remove_end_callback, resume),
            ):
                add(callback)
                registered.callback(_unregister, remove, callback)

        _register_once_dynamo_is_there()
        _registrations.append(register)
        registered.callback(_registrations.remove, register)
        if _DYNAMO_CALLBACKS in sys.modules:
            register()
        yield


def _unregister(remove: Callable[[Any], None], callback: Callable[[object], None]) -> None:
    try:
        remove(callback)
    except ValueError:
        raise CaptureError(
            "torch.compiler.reset() was called inside the capture: what was compiled after it was"
            " recorded as a part of the model. Call it before"
        ) from None


_HOST_READS = (
    *((torch.Tensor, name) for name in ("tolist", "numpy", "__dlpack__", "__reduce_ex__")),
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
)
_SHARE_MEMORY = ("torch.utils.dlpack", "copy")
"""Modules that ask a tensor for what it is to make another one of the same memory."""


@contextmanager
def _host_reads_refused() -> Iterator[None]:
    """Refuse reads and exports of memory without an operator on the capturing thread."""

    def guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if (
                is_current_stream_capturing()
                and sys._getframe(1).f_globals.get("__name__") not in _SHARE_MEMORY
            ):
                _thread.recorder.refuse_host_read(name, self)
            return original(self, *args, **kwargs)

        return method

    with ExitStack() as patches:
        for owner, name in _HOST_READS:
            make = functools.partial(guarded, name)
            patches.enter_context(attribute_replaced(owner, name, make))
        yield


@contextmanager
def _capture_visible_to_libraries() -> Iterator[None]:
    """Make CUDA's and XPU's capture queries, which libraries ask before reading values, true."""

    def or_recording(original: Callable[..., bool]) -> Callable[..., bool]:
        return lambda: is_current_stream_capturing() or original()

    with ExitStack() as patches:
        for module in (torch.cuda, torch.xpu):
            patches.enter_context(
                attribute_replaced(module, "is_current_stream_capturing", or_recording)
            )
        yield
