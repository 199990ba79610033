"""`dispatch_trace`: which operators all threads call, and the kernels that each call passes."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bringup import _native
from bringup.devices._dispatch import (
    DispatchEntry,
    KernelKind,
    call_chain,
    dispatch_table,
    key_names,
)
from bringup.errors import DeviceError

_LIMIT = 1_000_000
_COMPUTED = "the kernels of each call are computed from the dispatch table, not observed"


@dataclass(frozen=True)
class TracedCall:
    """One observed call.

    Attributes:
        operator: with its overload, "aten::add.Tensor".
        keys: the dispatch keys of arguments and thread at the call, asked first first: observed.
        chain: the kernels that such a call passes, outermost first: computed, as by `explain`, from
            the table at the end of the trace.
        depth: how many observed calls it is made by: 0 for one that the program itself makes.
        backward: the autograd node that calls it, such as "AddmmBackward0"; "" outside a backward.
        thread: torch's number of the thread.
    """

    operator: str
    keys: tuple[str, ...]
    chain: tuple[DispatchEntry, ...]
    depth: int
    backward: str
    thread: int


@dataclass
class DispatchTrace:
    """The calls of a `dispatch_trace`, there when it has ended.

    Attributes:
        calls: in the order in which they began.
        lost: how many more there were than the limit allowed.
    """

    calls: list[TracedCall] = field(default_factory=list)
    lost: int = 0

    def counts(self) -> list[tuple[str, tuple[DispatchEntry, ...], int]]:
        """Return operator, chain and number of calls, the most frequent first."""
        found = Counter((call.operator, call.chain) for call in self.calls)
        return [(name, chain, count) for (name, chain), count in found.most_common()]

    def to_dict(self) -> dict[str, Any]:
        """Return the trace for JSON: chains once each, calls with the index of theirs."""
        chains: dict[tuple[DispatchEntry, ...], int] = {}
        calls = [
            {**vars(call), "chain": chains.setdefault(call.chain, len(chains))}
            for call in self.calls
        ]
        rows = [
            [{"key": e.key, "kind": e.kind.value, "where": e.where} for e in chain]
            for chain in chains
        ]
        return {"computed": ["chains"], "chains": rows, "calls": calls, "lost": self.lost}

    def __str__(self) -> str:
        lines = [f"{'calls':>8}  {'operator':44}kernels"]
        for name, chain, count in self.counts():
            kernels = ", ".join(f"{entry.key} ({entry.kind.value})" for entry in chain)
            lines.append(f"{count:>8,}  {name:44}{kernels}")
        if self.lost:
            lines.append(f"{self.lost:,} more calls were not kept: the limit was reached")
        lines.append(_COMPUTED)
        return "\n".join(lines)


@contextmanager
def dispatch_trace(*, limit: int = _LIMIT) -> Iterator[DispatchTrace]:
    """Observe the operators that are called within a `with` block, in all threads of the process.

    Seen is every call that enters the dispatcher: from Python, from C++ and from autograd's
    threads, and those that a kernel makes in turn (`depth`). Not seen is what does not enter it:
    calls of one kernel by another in C++ (`at::native::`, `at::cpu::`), a kernel's hand-over to the
    next key, the few operators that torch exempts (`aten::size`, `aten::is_leaf`), and the nodes of
    a captured graph in a replay; calls that are being captured are seen. Kernel operators take
    their slow path, as under a profiler.

    Args:
        limit: calls that are kept, about 40 bytes each until the end; further ones are counted.

    Yields:
        The trace; its calls are there after the block.

    Raises:
        DeviceError: a limit below 1.
        NativeLibraryError: the process runs without the library that links torch.
    """
    if limit < 1:
        raise DeviceError(f"dispatch_trace(limit={limit}): expected at least 1")
    native = _devices()
    found = DispatchTrace()
    tracer = native.start_dispatch_trace(limit)
    try:
        yield found
    finally:
        _take(native, tracer, found)


def _take(native: ModuleType, tracer: Any, into: DispatchTrace) -> None:
    """End a trace and compute the chains of its calls."""
    names, calls, into.lost = native.stop_dispatch_trace(tracer)
    chains: dict[tuple[int, int, str], tuple[tuple[str, ...], tuple[DispatchEntry, ...]]] = {}
    key_set = importlib.import_module("torch")._C.DispatchKeySet
    for op, node, raw, factory, thread, depth in calls:
        call = (op, raw, factory)
        if call not in chains:
            keys = key_set.from_raw_repr(raw)
            chains[call] = key_names(keys), _chain(names[op], keys, factory)
        into.calls.append(TracedCall(names[op], *chains[call], depth, names[node], thread))


def _chain(operator: str, keys: Any, factory: str) -> tuple[DispatchEntry, ...]:
    try:
        table = dispatch_table(operator)
    except DeviceError:  # its library was destroyed in the meantime
        return (DispatchEntry("Undefined", KernelKind.MISSING),)
    return call_chain(table, keys, factory)


def trace_process(file: Path | None) -> None:
    """Trace this process to its end, into `file`, as `settings.dispatch_trace` gives it."""
    if file is None:
        return
    native = _devices()
    tracer = native.start_dispatch_trace(_LIMIT)

    def finish() -> None:
        found = DispatchTrace()
        _take(native, tracer, found)
        _write(found, file)

    atexit.register(finish)


def _write(found: DispatchTrace, file: Path) -> None:
    if file == Path("-"):
        print(f"bringup: BRINGUP_DISPATCH_TRACE\n{found}", file=sys.stderr)
        return
    path = Path(str(file).replace("%p", str(os.getpid())))
    try:
        path.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:  # the program is at its end: there is no caller
        print(f"bringup: BRINGUP_DISPATCH_TRACE={file}: {error}", file=sys.stderr)


def _devices() -> Any:
    return _native.torch_library("devices.dispatch_trace").devices
