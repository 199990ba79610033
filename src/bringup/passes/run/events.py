"""What happens while passes run, as structured events: for logs, tools and profilers.

`BRINGUP_LOG=passes:json` prints every event as one line of JSON; `subscribe` hands them to a
function. A profiler gives `profile_with` its ranges.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from bringup import settings


class EventKind(str, Enum):
    """What happened to an instance, a pass or a match."""

    CREATED = "created"
    EXECUTED = "executed"
    MATCHED = "matched"
    REPLACED = "replaced"
    FAILED = "failed"


@dataclass(frozen=True)
class PassEvent:
    """One event of one pass on one graph.

    Attributes:
        kind: what happened.
        pass_name, version, stage: which pass.
        graph: the graph's name.
        instance_id: the session, unique in the process.
        details: by kind. created: pass_kind, and the operators that the graph has then; executed:
            status, seconds, matches, nodes, inputs and outputs (shapes); matched and replaced:
            pattern, nodes, captures (the names of the captured values of a match), and new_nodes;
            failed: message.
        descriptor_key: of the pass: module, class and name.
        graph_id: of the graph, unique in the process; names of graphs are not.
    """

    kind: EventKind
    pass_name: str
    version: str
    stage: str
    graph: str
    instance_id: int
    details: Mapping[str, object] = field(default_factory=dict)
    descriptor_key: str = ""
    graph_id: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return one flat dict of plain values."""
        return {
            "event": self.kind.value, "pass": self.pass_name, "version": self.version,
            "stage": self.stage, "descriptor_key": self.descriptor_key, "graph": self.graph,
            "graph_id": self.graph_id, "instance_id": self.instance_id, **self.details,
        }  # fmt: skip


Listener: TypeAlias = Callable[[PassEvent], None]

_LISTENERS: list[Listener] = []
_PROFILER: list[Callable[[str], AbstractContextManager[object]]] = []


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Hand every event of every thread to `listener` in this block; a pass raises its errors."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def is_wanted() -> bool:
    """Return whether there are listeners: events need not be made otherwise."""
    return bool(_LISTENERS) or settings.logger("passes.events").isEnabledFor(logging.INFO)


def emit(event: PassEvent) -> None:
    """Log the event as JSON if that is asked for, and hand it to all listeners."""
    logger = settings.logger("passes.events")
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", json.dumps(event.as_dict(), default=str))
    for listener in tuple(_LISTENERS):
        listener(event)


def profile_with(range_of: Callable[[str], AbstractContextManager[object]] | None) -> None:
    """Put every run of a pass into a range that `range_of(name)` makes; None: no ranges."""
    _PROFILER[:] = [] if range_of is None else [range_of]


def profiled(name: str) -> AbstractContextManager[object]:
    """Return the profiler's range of this name, or one that does nothing."""
    return _PROFILER[0](name) if _PROFILER else nullcontext()
