"""The captured graph: replay it, read and write its slots, reset it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch

from bringup import settings
from bringup.errors import CaptureError, UpdateError
from bringup.graphs._content import CapturedContent
from bringup.graphs._describe import (
    GraphDiff,
    GraphMemory,
    chrome_trace,
    diff_graphs,
    dot_text,
    named_nodes,
    node_table,
    shown,
    value_words,
)
from bringup.graphs._dispatch_records import DispatchRecord, HandledRecord
from bringup.graphs._pieces import Piece, piece_numbers, pieces_of
from bringup.graphs._pool import GraphPool
from bringup.graphs._run import RunUnit
from bringup.graphs._slots import HostValue, NodeInfo, NodeLevel, Record, Slot, UpdateReport

__all__ = ["CapturedGraph", "NodeLevel", "Slot", "UpdateReport"]


class CapturedGraph:
    """A run, captured by `graphs.capture`, that can be replayed with almost no host cost.

    Replays read the tensors that the run read, at the same addresses (write new input values into
    them with `copy_`), and write the same outputs.

    Args:
        optimize: how a replay runs its operators; results are the same, bit for bit. 0: as torch
            calls them. 1, the default (`BRINGUP_GRAPH_OPTIMIZE`): torch's kernels are called with
            iterators, sizes and strides that were prepared once. 2: besides, consecutive
            elementwise operators are one function each, compiled in the background; until it is
            there, and where there is no compiler, level 1 runs them. `levels` says which node does.

        keep_graph: changes nothing, as `instantiate`; for programs written for CUDA graphs.

    Raises:
        ValueError: `optimize` is neither.
        SettingError: `BRINGUP_GRAPH_OPTIMIZE` is neither.
    """

    _capture: ClassVar[Callable[..., Any]]  # graphs.capture, which knows this class

    def __init__(self, optimize: int | None = None, *, keep_graph: bool = False) -> None:
        del keep_graph  # every capture is kept as its nodes
        if optimize not in (None, 0, 1, 2):
            raise ValueError(f"optimize is 0, 1 or 2, got {optimize!r}")
        self._level = settings.graph_optimize() if optimize is None else int(optimize)
        self._content: CapturedContent | None = None
        self._write: Any = None  # what updates of named slots call, once they are named
        self._unit: RunUnit | None = None  # from the beginning of the capture
        self._block: Any = None  # between capture_begin and capture_end
        self._keep_block: Callable[[], object]  # when the graph goes

    def capture_begin(
        self, pool: object | None = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        """Start a capture that `capture_end` ends, on the same thread: `graphs.capture` without a
        `with` block. What fails in between has to be followed by `reset`, or by the end of the
        graph itself, else the thread goes on capturing.

        Args:
            pool: as for `graphs.capture`.
            capture_error_mode: as for `graphs.capture`.
            options: its other arguments, by name.

        Raises:
            CaptureError: this graph holds a capture, or a capture is under way.
            TypeError: an option is none of `graphs.capture`.
            ValueError: as `graphs.capture`.
        """
        self._begin_block(sys._getframe(1), pool, capture_error_mode=capture_error_mode, **options)

    def _begin_block(self, caller: FrameType, pool: object | None, **options: Any) -> None:
        if self._block is not None:
            raise CaptureError("this graph is being captured already: call capture_end() first")
        block = self._capture(self, pool, **options)
        self._keep_block = block._begin_for(self, caller)
        self._block = block

    def capture_end(self) -> None:
        """End the capture that `capture_begin` started.

        Raises:
            CaptureError: none was started on this graph; or the captured code did something that a
                replay could not repeat. The graph stays empty.
        """
        if self._block is None:
            raise CaptureError("capture_end: call capture_begin() before")
        self._taken_block().__exit__(None, None, None)

    def _taken_block(self) -> Any:
        """Return the capture that `capture_begin` started, or None; the caller has to end it."""
        block, self._block = self._block, None
        if block is not None:
            self._keep_block()
        return block

    def run(self, *args: Any, slots: Mapping[str, HostValue] | None = None, **kwargs: Any) -> Any:
        """Copy inputs in, replay, and give copies of the results: one unit, safe from any thread.
        Runs of one graph take turns.

        Takes and gives what was declared (`capture(g, inputs=...)`, `g.outputs = ...`), or else
        what the only module call of the captured block took and gave: the same arguments, tensors
        of the same shapes, dtypes and devices; arguments that are no tensors may be left out. The
        captured input tensors are overwritten. On a device everything is in order with the
        current stream.

        Args:
            args, kwargs: the inputs.
            slots: written as by `update` before this replay; later ones see these values too. When
                run fails before the replay begins, they are as they were; when an operator failed,
                they are written.

        Returns:
            The results in the captured nest; they share no memory with the graph or one another,
            and have no gradient.

        Raises:
            ContractError: an input has another shape, dtype, device, value or field than the
                captured one, requires a gradient while gradients are on, or is a weight, is
                written by the graph or shares memory with another input and is not the captured
                tensor itself.
            TypeError: an input is missing or was not there when the graph was captured.
            CaptureError: what run takes and gives is not known and was not declared; another
                thread called `replay()`; and whatever `replay` raises.
            UpdateError: `slots` was refused; nothing was changed.
        """
        content, unit = self._captured("run"), self._run_unit()
        update = None if slots is None else (lambda: content.table.update(_as_dict(slots)))
        return unit.run(content.native, args, kwargs, update)

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the tensors that `run` copies into, by name."""
        self._captured("inputs")
        return dict(self._run_unit().inputs.tensors)

    @property
    def outputs(self) -> Any:
        """Return the graph's own results, which `run` copies and replays overwrite. Set it inside
        the `with` block, or later, to any nest of the block's tensors.

        Raises:
            CaptureError: nothing is captured; what was set cannot be copied, or holds a tensor that
                has nothing to do with the graph.
        """
        self._captured("outputs")
        return self._run_unit().outputs.value

    @outputs.setter
    def outputs(self, value: Any) -> None:
        if self._unit is None:
            self._captured("outputs")
        self._run_unit().declare_outputs(value, self._content and self._content.native)

    def _run_unit(self) -> RunUnit:
        assert self._unit is not None
        return self._unit

    def replay(self) -> None:
        """Run the captured operators again, in whatever thread: one at a time. Writing inputs,
        replay and reading results belong together; where several threads do it, use `run`.

        Raises:
            CaptureError: nothing is captured, or a capture is under way on this thread.
            CaptureError: another thread replays or runs this graph right now. Raised in both.
            CaptureError: what the capture took as given is different now: a tensor that the
                graph reads has other memory or another shape, a parameter, buffer or submodule of
                a module that ran was replaced, a module was switched between training and
                evaluation, a frozen weight was written, a gradient is missing or was none, an
                optimizer has other state. The message names it.
            RuntimeError: an operator failed; the message names it.
        """
        self._captured("replay").native.replay()

    def update(
        self,
        values: Mapping[str, HostValue] | Sequence[Mapping[str, HostValue]] | None = None,
        *,
        cpu_update_input: Sequence[Mapping[str, HostValue]] | None = None,
    ) -> UpdateReport:
        """Write slots, all or none, for the next replays; return which.

        Args:
            values: slot names, or patterns with `*` (one segment) and `**` (any number), and their
                values.
            cpu_update_input: torch_npu's form, for operators with a registered handler: one dict
                for all captured calls, or one for each of them in capture order, by the handler's
                keys.

        Raises:
            UpdateError: an unknown or ambiguous name, or another type or length; nothing changed.
            CaptureError: nothing is captured.
        """
        write = self._write
        if write is not None and type(values) is dict and cpu_update_input is None:
            return write(values)  # type: ignore[no-any-return]
        content = self._captured("update")
        if isinstance(values, (list, tuple)) and cpu_update_input is None:
            values, cpu_update_input = None, values
        if (values is None) == (cpu_update_input is None):
            raise UpdateError(
                "update takes either named slots or cpu_update_input. Nothing was changed"
            )
        if values is not None:
            self._write = content.table.update
            return content.table.update(_as_dict(values))  # type: ignore[no-any-return]
        assert cpu_update_input is not None
        with content.updating:
            pairs = _by_record(content.records, cpu_update_input)
            return content.table.update_slots(pairs)  # type: ignore[no-any-return]

    def instantiate(self) -> None:
        """Do nothing: a capture ends with a graph that can be replayed. For programs written for
        CUDA graphs, as are `enable_debug_mode` and `register_generator_state`.

        Raises:
            CaptureError: nothing is captured.
        """
        self._captured("instantiate")

    def raw_cuda_graph(self) -> int:
        """Return the driver's handle of the graph, for its own functions.

        Raises:
            CaptureError: nothing is captured; the graph runs on the cpu, or is several of the
                driver's (control flow, host entries).
        """
        handles = self._captured("raw_cuda_graph").native.driver_graphs
        if len(handles) != 1:
            raise CaptureError(
                f"raw_cuda_graph: this graph is made of {len(handles)} graphs of a driver"
            )
        return int(handles[0])

    def enable_debug_mode(self) -> None:
        """Do nothing: `debug_dump` needs nothing that is not kept anyhow."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Do nothing: replays draw from the generators that captured operators drew from, as these
        are then.

        Args:
            generator: that the captured code draws from.

        Raises:
            TypeError: it is no `torch.Generator`.
        """
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"a torch.Generator is registered, got {type(generator).__name__}")

    def refresh(self) -> None:
        """Read again what the graph took as given, and take it as it is for given.

        A replay looks at version counters and a few elements of weights that a compiled function
        froze. This reads all their elements: it finds sparse writes that bypass the counter
        (through `.data`, NumPy), and accepts weights that were written and have the content that
        was folded, such as a checkpoint loaded a second time. It does not fold anything anew, and
        cannot accept tensors that moved or were replaced: the graph has the address of the former
        ones. Unfrozen weights need no refresh, a replay reads what they contain.

        The state of an optimizer that steps in the graph (after its `load_state_dict`, or entries
        that were replaced) is copied into the captured tensors, which the optimizer has again then.

        Raises:
            CaptureError: something differs from what was captured; the message names it. Of
                optimizers: other parameters, groups or kinds of state, or another number, such as
                `lr`, that a step was captured with.
        """
        content = self._captured("refresh")
        for take in [optimizer.refresh() for optimizer in content.optimizers]:
            take()
        content.native.refresh()

    def reset(self) -> None:
        """Drop what was captured; memory goes with the last tensor that uses it. Another capture
        may follow. Between `capture_begin` and `capture_end` it ends the capture and puts back what
        the code changed.
        """
        block = self._taken_block()
        if block is not None:
            block.__exit__(CaptureError, CaptureError("reset() was called"), None)
        self._content = self._write = None
        self._unit = None

    @property
    def slots(self) -> dict[str, Slot]:
        """Return every argument that `update` can write, by name, with its value now."""
        content = self._captured("slots")
        found: dict[str, Slot] = {}
        pieces = list(piece_numbers(row[0] for row in content.native.nodes()))
        for place in content.places:
            for index, _, type_, value in content.native.host_values(place.node):
                if index == place.argument:
                    piece = pieces[place.node]
                    found[place.name] = Slot(place.name, type_, value, place.op, piece)
        return found

    @property
    def dispatch_records(self) -> tuple[DispatchRecord, ...]:
        """Return the captured calls whose handler took part, in order, with the arguments that they
        have now. For reading; `update` writes.
        """
        records = self._captured("dispatch_records").records
        return tuple(one.record() for one in records if isinstance(one, HandledRecord))

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return what one replay does, in order. Views need no node."""
        rows = self._captured("nodes").native.nodes()
        pieces = piece_numbers(row[0] for row in rows)
        return tuple(NodeInfo(*(*row, piece)) for row, piece in zip(rows, pieces, strict=True))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Return what one replay launches, in order: stretches of nodes with a call of an operator
        of `split_at` behind all but the last one.

        Raises:
            CaptureError: nothing is captured.

        Examples:
            >>> from bringup import graphs
            >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
            >>> with graphs.capture(graph, split_at=["aten::cumsum"]):
            ...     y = (x * 2).cumsum(0) + 1
            >>> graph.pieces
            (Piece(nodes=range(0, 1), then='aten::cumsum'), Piece(nodes=range(2, 3), then=''))
        """
        nodes = self.nodes
        return pieces_of([node.kind for node in nodes], [node.op for node in nodes])

    def levels(self) -> tuple[NodeLevel, ...]:
        """Return for each node, in replay order, at which level it runs and why at no higher one.

        Raises:
            CaptureError: nothing is captured.

        Examples:
            >>> from bringup import graphs
            >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
            >>> with graphs.capture(graph):
            ...     y = (x + 1).cumprod(0)
            >>> [(node.op, node.level) for node in graph.levels()]
            [('aten::add.Tensor', 1), ('aten::cumprod', 0)]
        """
        return tuple(
            NodeLevel(number, node.op, node.level, node.reason, node.piece)
            for number, node in enumerate(self.nodes)
        )

    def wait_for_functions(self, timeout: float | None = None) -> bool:
        """Wait until what level 2 compiles in the background is there, or has failed, which
        `levels` tells. At another level there is nothing to wait for.

        Args:
            timeout: the most seconds to wait; None is for as long as it takes.

        Returns:
            False where it is not there yet.

        Raises:
            CaptureError: nothing is captured.

        Examples:
            >>> from bringup import graphs
            >>> graph, x = graphs.CapturedGraph(optimize=2), torch.ones(2)
            >>> with graphs.capture(graph):
            ...     y = (x + 1) * x
            >>> graph.wait_for_functions()
            True
            >>> [node.level for node in graph.levels()]
            [2, 2]
        """
        fusing = self._captured("wait_for_functions").fusing
        return fusing is None or fusing.done.wait(timeout)

    def to_dot(self) -> str:
        """Return the graph in the DOT language, the same text for the same capture.

        A box is a node with its number, operator, scope and slots; an ellipse is memory that was
        there before the capture. An edge leads from who filled a memory last to who reads it; a
        dashed one to memory from before the capture that a node writes. Where the capture was
        split, a frame is a piece, and what runs eagerly is outside of them.

        Raises:
            CaptureError: nothing is captured.
        """
        content = self._captured("to_dot")
        return dot_text(self.nodes, content.accesses(), self._slots_by_node())

    def debug_dump(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file: as JSON where its name ends with `.json` (nodes in replay
        order with operator, scope, method, what they read and write, and slots with types and
        values), in the DOT language otherwise.

        Args:
            path: of the file, which is written anew.

        Raises:
            CaptureError: nothing is captured.
            OSError: the file cannot be written.
        """
        if not os.fspath(path).endswith(".json"):
            Path(path).write_text(self.to_dot())
            return
        content, slots = self._captured("debug_dump"), self._slots_by_node()
        nodes = [
            {
                **asdict(info),
                "accesses": [asdict(access) for access in accesses],
                "slots": {
                    name: {"type": slot.type, "value": shown(slot.value)}
                    for name, slot in slots.get(number, {}).items()
                },
            }
            for number, (info, accesses) in enumerate(
                zip(self.nodes, content.accesses(), strict=True)
            )
        ]
        memory = {"memory_bytes": self.memory_bytes, "memory": asdict(self.memory)}
        written = {**memory, "nodes": nodes}
        Path(path).write_text(json.dumps(written, indent=1) + "\n")

    def diff(self, other: CapturedGraph) -> GraphDiff:
        """Return what `other` has in addition, lacks, or does in another way; printing it tells.

        Raises:
            TypeError: `other` is no `CapturedGraph`.
            CaptureError: one of the two holds no capture.
        """
        if not isinstance(other, CapturedGraph):
            raise TypeError(f"diff takes a CapturedGraph, got {type(other).__name__}")
        ours, theirs = (graph._node_words() for graph in (self, other))
        our_slots, their_slots = (
            {name: f"{slot.type} {value_words(slot.value)}" for name, slot in graph.slots.items()}
            for graph in (self, other)
        )
        return diff_graphs(ours, theirs, our_slots, their_slots)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Replay once, each node after the one before has ended, and write when each ran as a
        Chrome trace (Perfetto, chrome://tracing): nodes within their scopes, with operator, line,
        method and slots.

        On a device the times contain the launch and the wait for it; nodes of an ordinary replay
        follow one another without either.

        Args:
            path: of the JSON file, which is written anew.

        Raises:
            CaptureError, RuntimeError: as `replay`.
            OSError: the file cannot be written.
        """
        content = self._captured("trace")
        times = content.native.replay_timed()
        Path(path).write_text(chrome_trace(self.nodes, times, self._slots_by_node()))

    def _slots_by_node(self) -> dict[int, dict[str, Slot]]:
        slots: dict[int, dict[str, Slot]] = {}
        for place, slot in zip(self._captured("slots").places, self.slots.values(), strict=True):
            slots.setdefault(place.node, {})[place.name] = slot
        return slots

    @property
    def memory(self) -> GraphMemory:
        """Return the memory that the graph holds, in bytes by kind."""
        return GraphMemory(*self._captured("memory").native.memory_use)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of the graph's outputs and intermediates, without captured inputs."""
        return int(self._captured("memory_bytes").native.reserved_bytes)

    def pool(self) -> GraphPool:
        """Return the memory of this graph, for the captures of others that share it.

        Raises:
            CaptureError: nothing is captured.
        """
        return self._captured("pool").pool

    def __repr__(self) -> str:
        content = self._content
        if content is None:
            return "CapturedGraph(empty)"
        pieces = "" if len(self.pieces) == 1 else f" in {len(self.pieces)} pieces"
        counts = f"{content.native.node_count} nodes{pieces}, {len(content.places)} slots"
        return f"CapturedGraph({counts}, {self.memory_bytes} bytes)"

    def _repr_html_(self) -> str:
        nodes = () if self._content is None else self.nodes
        return node_table(repr(self), nodes, self._slots_by_node() if nodes else {})._repr_html_()

    def _node_words(self) -> dict[str, str]:
        content = self._captured("diff")
        return named_nodes(self.nodes, content.accesses())

    def _captured(self, what: str) -> CapturedContent:
        if self._content is None:
            raise CaptureError(
                f"CapturedGraph.{what}: nothing is captured (never was, or reset);"
                " use `with graphs.capture(g):`"
            )
        return self._content


def _as_dict(values: Any) -> dict[str, HostValue]:
    try:
        return dict(values)
    except (TypeError, ValueError):
        raise UpdateError(
            f"update takes a dict of slot names and values, got {values!r}. Nothing was changed"
        ) from None


def _by_record(
    records: Sequence[Record | HandledRecord], inputs: Sequence[Mapping[str, Any]]
) -> list[tuple[int, Any]]:
    """Return torch_npu's list of dicts as (slot, value) pairs."""
    if not isinstance(inputs, (list, tuple)) or not (
        {*map(type, inputs)} == {dict} or all(isinstance(entry, Mapping) for entry in inputs)
    ):
        raise UpdateError(
            f"cpu_update_input is a list of dicts, got {inputs!r}. Nothing was changed"
        )
    if not records:
        raise UpdateError(
            "cpu_update_input: no captured operator has a handler; register one with "
            "@graphs.register_graph_handler before the capture, or update named slots. Nothing "
            "was changed"
        )
    shared = len(inputs) == 1
    if not shared and len(inputs) != len(records):
        raise UpdateError(
            f"cpu_update_input has {len(inputs)} dicts for {len(records)} records: "
            f"{_listed(records)}. Give one dict for all or one for each. Nothing was changed"
        )
    pairs: list[tuple[int, Any]] = []
    left = set(inputs[0]) if shared else set()
    entries = repeat(inputs[0]) if shared else inputs
    keys: Set[str]
    for number, (record, entry) in enumerate(zip(records, entries, strict=False)):
        if isinstance(record, HandledRecord):
            found, keys = record.stage(entry)
            pairs += found
            is_known = entry.keys() <= keys
        else:
            slots, before = record.slots, len(pairs)
            for key, value in entry.items():  # quicker than a comprehension
                if key in slots:
                    pairs.append((slots[key], value))
            keys, is_known = slots.keys(), len(pairs) - before == len(entry)
        if left:
            left.difference_update(keys)
        if not is_known and not shared:
            unknown = next(key for key in entry if key not in keys)
            raise UpdateError(
                f"record {number}, {record.op}, takes {_keys_of(record)}, not '{unknown}'. "
                "Nothing was changed"
            )
    for key in inputs[0] if left else ():
        if key in left:
            raise UpdateError(
                f"no record takes '{key}'; records: {_listed(records)}. Nothing was changed"
            )
    return pairs


def _listed(records: Sequence[Record | HandledRecord]) -> str:
    return ", ".join(f"{record.op} ({_keys_of(record)})" for record in records)


def _keys_of(record: Record | HandledRecord) -> str:
    if isinstance(record, HandledRecord):
        return f"what {record.handler.__name__}.update_args reads"
    return ", ".join(record.slots)
