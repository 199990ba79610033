"""What a capture made: the native graph and the names of its slots."""

from __future__ import annotations

import bisect
import functools
import gc
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from bringup._native import torch_library
from bringup.errors import CaptureError
from bringup.graphs._describe import Access
from bringup.graphs._dispatch_records import HandledCall, HandledRecord, handled_nodes
from bringup.graphs._handlers import gives_all_arguments, handler_for
from bringup.graphs._optimizers import GivenOptimizer
from bringup.graphs._pieces import EAGER
from bringup.graphs._pool import GraphPool
from bringup.graphs._slots import (
    HostValue,
    Record,
    SlotPlace,
    UpdatableCall,
    UpdateReport,
    name_slots,
    resolve,
)
from bringup.ops.registration.handle_lifetime import hold

if TYPE_CHECKING:
    from bringup.graphs._fuse_build import Fusing


class CapturedContent:
    """The native graph that a capture made and its slots' names, which are half of a capture's
    cost: made when asked for, but at once where handlers have a say, whose mistakes then raise.
    """

    def __init__(
        self,
        native: Any,
        watch: Any,
        handled: Sequence[HandledCall],
        kept: Sequence[Any],
        pool: GraphPool,
        optimizers: Sequence[GivenOptimizer] = (),
        named: tuple[list[SlotPlace], Sequence[Record]] | None = None,
    ) -> None:
        self.native = native
        self.pool = pool
        self.optimizers = optimizers  # that stepped
        self.kept = kept  # what nodes use
        self.watch = watch  # also the graph's own; here the garbage collector finds it
        operators = native.operators()
        self._held = [hold(op) for op in operators]  # nodes have handles
        self._handled = handled
        self._naming = threading.Lock()
        self.updating = threading.RLock()  # of records, which read what they write
        self.fusing: Fusing | None = None  # at level 2
        if named is not None:  # by the process that captured it
            self._make_table(*named)
        elif handled or any(handler_for(op) or gives_all_arguments(op) for op in operators):
            self._name_slots()

    def __getattr__(self, name: str) -> Any:
        if name not in ("places", "records", "table"):
            raise AttributeError(name)
        self._name_slots()
        return self.__dict__[name]

    def _name_slots(self) -> None:
        with self._naming:
            if "table" in self.__dict__:
                return
            native = self.native
            in_groups = {node for one in self.kept for node in getattr(one, "nodes", ())}
            of_node = handled_nodes(self._handled, [row[1] for row in native.nodes()])
            eager = {number for number, row in enumerate(native.nodes()) if row[0] == EAGER}
            calls = [
                UpdatableCall(
                    node,
                    op,
                    scope,
                    native.host_values(node),
                    node in in_groups or node in eager or native.is_kernel(node),
                    node in eager,
                    of_node.get(node),
                    functools.partial(_values_by_name, native, node),
                )
                for node, op, scope in native.updatable()
            ]
            self._make_table(*name_slots(calls))

    def _make_table(
        self, places: list[SlotPlace], records: Sequence[Record | HandledRecord]
    ) -> None:
        self.places, self.records = places, records  # in the order of nodes
        names = [place.name for place in places]
        table = torch_library("a captured graph").graphs.SlotTable(
            self.native, lambda key: resolve(key, names), UpdateReport
        )
        for place in places:
            table.add(place.node, place.argument, place.name, place.variable_length)
        self.table = table

    @property
    def handled_operators(self) -> list[str]:
        """Return the operators of calls in which a handler took part, in order."""
        of_node = handled_nodes(self._handled, [row[1] for row in self.native.nodes()])
        return [self.native.nodes()[node][1] for node in sorted(of_node)]

    def places_of(self, node: int) -> list[SlotPlace]:
        """Return the slots of one node."""
        first = bisect.bisect_left(self.places, node, key=lambda place: place.node)
        after = bisect.bisect_right(self.places, node, key=lambda place: place.node)
        return self.places[first:after]

    def accesses(self) -> list[list[Access]]:
        """Return what every node reads and writes, in replay order."""
        return [[Access(*row) for row in rows] for rows in self.native.accesses()]


def _values_by_name(native: Any, node: int) -> dict[str, HostValue]:
    return {name: value for _, name, _, value in native.host_values(node)}


def check_outputs(recorder: Any) -> None:
    """Require that nodes write every tensor that outlives the block: replay leaves others stale."""
    unwritten = recorder.unwritten()
    if not unwritten:
        return
    gc.collect()
    unwritten = dict(recorder.unwritten())
    if not unwritten:
        return
    tensors = [
        f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor) and _address(tensor) in unwritten
    ]
    what = ", ".join(tensors) or ", ".join(f"{size} bytes" for size in unwritten.values())
    raise CaptureError(
        f"no captured operator writes this result of the capture: {what}. It was made by code that"
        " the recorder cannot see (a kernel that torch.compile generated, a raw launch, numpy), or"
        ' never filled. Compile with backend="bringup" or "eager", make it before the capture, or'
        " declare it with graphs.constant(tensor)"
    )


def _address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0  # no memory of its own: sparse, fake, meta
