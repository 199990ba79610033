"""What stands in the way of a capture, and what two captures of one function differ in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bringup.errors import CaptureError
from bringup.graphs._capture import capture, current_recorder, rehearsal
from bringup.graphs._equality import same_value
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._slots import HostValue, keyword_only_of


@dataclass(frozen=True)
class Refusal:
    """Something that a capture refuses.

    Attributes:
        message: what `CaptureError` would say, with the user's line where there is one.
        count: how often it happened.
    """

    message: str
    count: int

    def __str__(self) -> str:
        return self.message + (f"\n  {self.count} times" if self.count > 1 else "")


def lint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Refusal, ...]:
    """Return what a capture of the call would refuse, found by one run, in order.

    What is refused runs on uncaptured, so that what comes after it is looked at too. What no run
    can go on after ends the search: an exception of the function, or a refusal that is no
    operator's, such as waiting for a device. Afterwards tensors and random generators are as they
    were.

    Args:
        function: what the `with` block of a capture would call.
        args, kwargs: its arguments.

    Returns:
        Nothing when the call can be captured. What only the end of a capture finds, code that the
        recorder cannot see, is looked for when there is nothing else.

    Raises:
        CaptureError: a capture is under way already.
        Exception: what `function` raises where nothing was refused before it.
    """
    if current_recorder() is not None:
        raise CaptureError("lint: a capture is under way on this thread; call it outside")
    found: list[str] = []
    try:
        with rehearsal(lambda error: found.append(str(error))):
            function(*args, **kwargs)
    except Exception as error:
        if not found and not isinstance(error, CaptureError):
            raise
        found.append(
            str(error)
            if isinstance(error, CaptureError)
            else f"after this the call raised {type(error).__name__}: {error}"
        )
    if not found:
        try:
            with capture(CapturedGraph()):
                kept = function(*args, **kwargs)
            del kept
        except CaptureError as error:
            found.append(str(error))
    return tuple(Refusal(message, found.count(message)) for message in dict.fromkeys(found))


@dataclass(frozen=True)
class DetectedUpdate:
    """A host argument that had two values.

    Attributes:
        op: the operator, as `"ns::op.overload"`.
        node: its number in both graphs.
        spec: as `UPDATE_SPECS` of a handler has it.
        first, second: its values.
        slot: the name of the slot that is there already, or None.

    Examples:
        >>> from bringup import graphs
        >>> def scaled(x, by):
        ...     return torch.add(x, x, alpha=by)
        >>> found = graphs.detect_updates(scaled, (torch.ones(3), 2), (torch.ones(3), 5))
        >>> update: graphs.DetectedUpdate
        >>> (update,) = found.arguments
        >>> update.op, update.first, update.second
        ('aten::add.Tensor', 2, 5)
    """

    op: str
    node: int
    spec: tuple[str, int | str, str]
    first: HostValue
    second: HostValue
    slot: str | None


@dataclass(frozen=True)
class DetectedUpdates:
    """What the captures of one function with two inputs differ in. Its text is what to do.

    Attributes:
        arguments: host arguments with two values.
        constants: numbers of nodes that bring data of Python, with another content: no update
            reaches them, so make them tensors that both captures read.

    Examples:
        >>> from bringup import graphs
        >>> inputs = (torch.ones(2, 3), 0), (torch.ones(2, 3), 1)
        >>> found: graphs.DetectedUpdates = graphs.detect_updates(torch.cumsum, *inputs)
        >>> print(found)
        These need a handler before the capture:
            @graphs.register_graph_handler(['aten::cumsum'])
            class Handler(graphs.GraphOpHandler):
                UPDATE_SPECS = {'aten::cumsum': [('arg', 1, 'dim')]}
    """

    arguments: tuple[DetectedUpdate, ...]
    constants: tuple[int, ...]

    @functools.cached_property
    def missing_specs(self) -> Mapping[str, list[tuple[str, int | str, str]]]:
        """`UPDATE_SPECS` of a handler for what no update reaches yet."""
        specs: dict[str, list[tuple[str, int | str, str]]] = {}
        for found in self.arguments:
            if found.slot is None and found.spec not in specs.setdefault(found.op, []):
                specs[found.op].append(found.spec)
        return {op: found for op, found in specs.items() if found}

    def __str__(self) -> str:
        lines = []
        slots = {found.slot: found.second for found in self.arguments if found.slot is not None}
        if slots:
            lines += ["These are slots; before a replay with the second input:"]
            lines += [f"    graph.update({slots!r})"]
        if self.missing_specs:
            lines += ["These need a handler before the capture:"]
            lines += [f"    @graphs.register_graph_handler({list(self.missing_specs)!r})"]
            lines += ["    class Handler(graphs.GraphOpHandler):"]
            lines += [f"        UPDATE_SPECS = {dict(self.missing_specs)!r}"]
        for node in self.constants:
            lines += [
                f"Node {node} is data of Python with another content, which no update reaches:"
                " make it a tensor outside of the function"
            ]
        return "\n".join(lines) or "Both captures have the same host values: nothing to update"


def detect_updates(
    function: Callable[..., Any], first: tuple[Any, ...], second: tuple[Any, ...]
) -> DetectedUpdates:
    """Return which host values a function computes from its inputs, by capturing it with two of
    them: a replay of one capture would compute with those of its own.

    Args:
        function: what is to be captured.
        first, second: two tuples of arguments, with tensors of the same shapes and everything else
            that changes from call to call.

    Raises:
        CaptureError: a call cannot be captured, or the two run other operators.
    """
    graphs = []
    for inputs in (first, second):
        graph = CapturedGraph()
        with capture(graph):
            kept = function(*inputs)
        del kept
        graphs.append(graph)
    one, two = graphs
    _check_same_operators(one, two)
    contents = [graph._captured("detect_updates") for graph in graphs]
    natives = [content.native for content in contents]
    places = {(place.node, place.argument): place.name for place in contents[0].places}
    arguments = [
        DetectedUpdate(
            info.op, number, _spec(info.op, index, name), before, after, places.get((number, index))
        )
        for number, info in enumerate(one.nodes)
        for (index, name, _, before), (_, _, _, after) in zip(
            *(native.host_values(number) for native in natives), strict=True
        )
        if not isinstance(before, torch.Tensor) and not _same(before, after)
    ]
    constants = [
        number
        for number, info in enumerate(one.nodes)
        if info.kind == "constant" and not torch.equal(*(n.constant(number) for n in natives))
    ]
    return DetectedUpdates(tuple(arguments), tuple(constants))


def _check_same_operators(one: CapturedGraph, two: CapturedGraph) -> None:
    ours, theirs = ([info.op for info in graph.nodes] for graph in (one, two))
    if ours == theirs:
        return
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    here, there = (ops[at] if at < len(ops) else "nothing" for ops in (ours, theirs))
    raise CaptureError(
        f"detect_updates: the two calls run other operators: node {at} is {here} with the first"
        f" input and {there} with the second. A capture serves one of them"
    )


def _spec(op: str, index: int, name: str) -> tuple[str, int | str, str]:
    return ("kwarg", name, name) if name in keyword_only_of(op) else ("arg", index, name)


def _same(before: HostValue, after: HostValue) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same_value, before, after))
    return before is after or same_value(before, after)
