"""torch_npu's manual form of updating: parts of a capture are task groups, and calling their
operators with other values between two marks writes these into the graph.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup._native import torch_library
from bringup.errors import CaptureError, UpdateError
from bringup.graphs import _capture
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._handlers import handler_for


class TaskGroup:
    """Operators of a capture whose host arguments `graph_task_update_begin` writes.
    `graph_task_group_end` makes it.

    Args:
        graph: what is captured; held weakly.
        nodes: the numbers of the operators in it.

    Examples:
        >>> from bringup import graphs
        >>> x, out, graph = torch.ones(3), torch.zeros(3), graphs.CapturedGraph()
        >>> with graphs.capture(graph):
        ...     graphs.graph_task_group_begin()
        ...     _ = torch.add(x, x, alpha=1, out=out)
        ...     group: graphs.TaskGroup = graphs.graph_task_group_end()
        >>> group, group.graph is graph
        (TaskGroup(1 operators), True)
    """

    def __init__(self, graph: CapturedGraph, nodes: range) -> None:
        self.nodes = nodes
        # The graph holds the group, and its memory is to go with the graph.
        self._graph = weakref.ref(graph)
        self._captured: Callable[[], Any] = lambda: None

    @property
    def graph(self) -> CapturedGraph | None:
        """Return the captured graph, if it is alive."""
        return self._graph()

    def arm(self) -> None:
        """Begin to update: the capture is over."""
        graph = self.graph
        assert graph is not None
        self._captured = weakref.ref(graph._content)

    def content(self) -> Any:
        """Return what the capture left in the graph, or None where the graph has it no more."""
        graph, captured = self.graph, self._captured()
        return captured if graph is not None and graph._content is captured else None

    def __repr__(self) -> str:
        return f"TaskGroup({len(self.nodes)} operators)"


class _Thread(threading.local):
    update: _Update | None = None


_thread = _Thread()


def graph_task_group_begin(stream: Any = None) -> None:
    """Start a group in the capture of this thread: host arguments of its operators can be updated,
    also by name (`CapturedGraph.slots`).

    Args:
        stream: accepted for programs written for torch_npu; groups belong to the capture.

    Raises:
        CaptureError: no capture is under way, or a group has begun.
    """
    recorder = _recorder("graph_task_group_begin")
    _capture.begin_task_group(int(recorder.node_count))
    recorder.set_all_updatable(True)


def graph_task_group_end(stream: Any = None) -> TaskGroup:
    """End and return the group that `graph_task_group_begin` started.

    Args:
        stream: as there.

    Raises:
        CaptureError: none was started in this capture, or it has no operator.
    """
    recorder = _recorder("graph_task_group_end")
    graph, begun = _capture.end_task_group()
    recorder.set_all_updatable(False)
    group = TaskGroup(graph, range(begun, int(recorder.node_count)))
    if not group.nodes:
        raise CaptureError("graph_task_group_end: no operator ran in the group")
    _capture.keep_in_graph(group)
    return group


def graph_task_update_begin(stream: Any, handle: TaskGroup) -> None:
    """Take the operators that this thread calls until `graph_task_update_end` as those of a group.

    They come in its order, with new values, and do not run where they write into tensors that they
    are given.

    Args:
        stream: accepted for programs written for torch_npu. An update belongs to the next replay,
            whatever the stream.
        handle: of `graph_task_group_end`.

    Raises:
        TypeError: `handle` is none.
        UpdateError: another update is under way on this thread; the group's graph was reset, or its
            capture failed.
    """
    if not isinstance(handle, TaskGroup):
        raise TypeError(f"graph_task_update_begin takes a TaskGroup, got {handle!r}")
    if _thread.update is not None:
        raise UpdateError("graph_task_update_begin: call graph_task_update_end() before")
    if handle.content() is None:
        raise UpdateError("graph_task_update_begin: the graph of this group was reset or dropped")
    _thread.update = _Update(handle)
    _thread.update.__enter__()


def graph_task_update_end(stream: Any = None) -> None:
    """Write the calls since `graph_task_update_begin`, all or none, for the next replay.

    Args:
        stream: as there.

    Raises:
        UpdateError: no update was begun; fewer operators were called than the group has; a value
            does not fit. Nothing was changed.
    """
    update, _thread.update = _thread.update, None
    if update is None:
        raise UpdateError("graph_task_update_end: call graph_task_update_begin() before")
    update.__exit__(None, None, None)
    update.commit()


def _recorder(what: str) -> Any:
    recorder = _capture.current_recorder()
    if recorder is None:
        raise CaptureError(f"{what}: no capture is under way on this thread")
    return recorder


class _Update(TorchDispatchMode):  # type: ignore[misc]
    """Takes the calls of a group's operators, and what is different in them."""

    def __init__(self, group: TaskGroup) -> None:
        super().__init__()
        self._group = group
        self._content: Any = group.content()
        self._ops = [self._content.native.nodes()[node][1] for node in group.nodes]
        self._slots = {
            (place.node, place.argument): number
            for number, place in enumerate(self._content.places)
        }
        self._makes_node = torch_library("graphs.graph_task_update_begin").graphs.makes_node
        self._called = 0
        self._values: list[tuple[int, Any]] = []
        self._error: UpdateError | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        failed = self._error is not None  # what comes after it is the caller's own
        if failed or not self._makes_node(func._schema.name, func._schema.overload_name):
            return func(*args, **kwargs)
        try:
            self._take(func, args, kwargs)
        except UpdateError as error:
            self._error = error
            raise
        given = _results_given(func, args, kwargs)
        if given is None:
            return func(*args, **kwargs)
        return given if func._schema.returns else None

    def _take(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        name = func.name()
        if self._called >= len(self._ops):
            self._refuse(f"the group has {len(self._ops)} operators, and {name} is one more")
        expected, node = self._ops[self._called], self._group.nodes[self._called]
        places: Sequence[int] = range(len(func._schema.arguments))
        if name != expected:
            found = _places_in(expected, func._schema)
            if found is None:
                self._refuse(f"operator {self._called} of the group is {expected}, not {name}")
            places = found
        self._called += 1
        for index, (place, argument) in enumerate(zip(places, func._schema.arguments, strict=True)):
            value = _value_of(argument, index, args, kwargs)
            slot = self._slots.get((node, place))
            if slot is not None:
                self._values.append((slot, value))
            elif not self._content.native.takes(node, place, _tensors_in(value)):
                self._refuse(
                    f"argument '{argument.name}' of {name} is another tensor than the captured one."
                    " A graph reads and writes the tensors that it was captured with: copy into"
                    " them"
                )

    def _refuse(self, why: str) -> NoReturn:
        raise UpdateError(f"update of a task group: {why}. Nothing was changed")

    def commit(self) -> None:
        if self._error is not None:
            raise UpdateError(str(self._error))
        if self._called != len(self._ops):
            self._refuse(
                f"{self._called} of its {len(self._ops)} operators were called; the next is"
                f" {self._ops[self._called]}"
            )
        self._content.table.update_slots(self._values)


def _places_in(captured: str, schema: Any) -> Sequence[int] | None:
    """Return where arguments of a default are in the overload that its handler put in its place."""
    base, _, overload = captured.partition(".")
    if schema.name != base or schema.overload_name or handler_for(base) is None:
        return None
    names = [argument.name for argument in torch._C._get_schema(base, overload).arguments]
    try:
        return [names.index(argument.name) for argument in schema.arguments]
    except ValueError:
        return None


def _value_of(argument: Any, index: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if argument.name in kwargs:
        return kwargs[argument.name]
    if not argument.kwarg_only and index < len(args):
        return args[index]
    return argument.default_value


def _tensors_in(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def _results_given(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of an operator that writes its arguments; None for others."""
    schema = func._schema
    written = [
        _value_of(argument, index, args, kwargs)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not written or len(schema.returns) > len(written):
        return None if schema.returns and not written else ()
    return written[0] if len(schema.returns) == 1 else tuple(written[: len(schema.returns)])
