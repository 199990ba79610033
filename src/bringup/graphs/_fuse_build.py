"""Level 2 of a replay: functions are compiled in the background; the next replay uses them."""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from bringup import jit, settings
from bringup.errors import BringupError
from bringup.graphs._fuse import (
    Group,
    Uses,
    Writer,
    Written,
    as_call,
    dead_in,
    groups_of,
)
from bringup.graphs._fuse_device import DeviceGroup, DeviceWriter, DeviceWritten, as_device_call

_log = settings.logger("graphs")
_PENDING = "its function is not compiled yet"

_PRELUDE = """\
#include <stdint.h>
#include <string.h>
typedef _Float16 half_t;
typedef uint16_t bfloat16_t;
typedef union { float f; uint32_t u; } float_bits;
typedef union { double f; int64_t i; } double_bits;
static inline float load_bfloat16(bfloat16_t v) { return ((float_bits){.u = (uint32_t)v << 16}).f; }
static inline bfloat16_t store_bfloat16(float v) {
  const uint32_t u = ((float_bits){.f = v}).u;
  return (bfloat16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#define FMA(a, b, c) __builtin_fma(a, b, c)
#define FMAF(a, b, c) __builtin_fmaf(a, b, c)
#define FABS(a) __builtin_fabs(a)
#define FABSF(a) __builtin_fabsf(a)
static inline int32_t BITSF(float v) { return (int32_t)((float_bits){.f = v}).u; }
static inline int64_t BITS(double v) { return ((double_bits){.f = v}).i; }
/* Negative for NaN: numbers of the type's width, so that loops with them are vectors. */
static inline int32_t NANF(float v) { return 0x7f800000 - (BITSF(v) & INT32_MAX); }
static inline int64_t NAN(double v) { return 0x7ff0000000000000 - (BITS(v) & INT64_MAX); }
/* Negative for two zeros of which one is negative. */
static inline int32_t ZEROSF(float a, float b) {
  return (((BITSF(a) | BITSF(b)) & INT32_MAX) - 1) & (BITSF(a) ^ BITSF(b));
}
static inline int64_t ZEROS(double a, double b) {
  return (((BITS(a) | BITS(b)) & INT64_MAX) - 1) & (BITS(a) ^ BITS(b));
}
/* Negative where bits differ. */
static inline int32_t DIFFERF(float a, float b) { return -(BITSF(a) != BITSF(b)); }
static inline int64_t DIFFER(double a, double b) { return -(int64_t)(BITS(a) != BITS(b)); }
static inline double LEAST(double a, double b) { return a > b ? b : a; }
static inline float LEASTF(float a, float b) { return a > b ? b : a; }
"""


class Fusing:
    """The functions of one graph, which is not kept, from the capture on."""

    def __init__(self, native: Any) -> None:
        self._native = weakref.ref(native)
        self.done = threading.Event()

    def run(self) -> None:
        """Write and compile, and hand over; leaves the graph as it is where that fails."""
        try:
            native = self._native()
            if native is None:
                return None
            rows, arguments, uses = native.fusable()
            groups, reasons = groups_of(rows, _read)
            del rows  # with tensors
            used = Uses(*uses)
            kernels = [
                DeviceWriter(group, dead_in(group, used)).write()
                for group in groups
                if isinstance(group, DeviceGroup)
            ]
            groups = [group for group in groups if not isinstance(group, DeviceGroup)]
            written = [Writer(group, dead_in(group, used)).write() for group in groups]
            if not written and not kernels:
                native.fuse([], [], reasons, arguments)
                return None
            del native  # while it compiles, nothing keeps the graph
            try:
                functions = compile_bodies([one.body for one in written]) if written else []
                numbers = [one.kernel_id() for one in kernels]
            except (BringupError, OSError) as error:
                return self._give_up(error)
            if (native := self._native()) is not None:
                runs = _host_runs(groups, written, functions)
                try:
                    native.fuse(runs, _device_runs(kernels, numbers), reasons, arguments)
                except RuntimeError as error:  # the driver's
                    self._give_up(error)
        except Exception:
            self._leave("its function was not written")
            raise
        finally:
            self.done.set()

    def _give_up(self, error: Exception) -> None:
        _warn(error)
        self._leave(f"its function was not compiled: {error}")

    def _leave(self, why: str) -> None:
        """Leave the graph as it is, for good."""
        if (native := self._native()) is not None:
            native.do_not_fuse(why)


def _read(node: int, row: Any) -> Any:
    return as_device_call(node, row) if len(row) == 5 else as_call(node, row)


def _device_runs(kernels: Sequence[DeviceWritten], numbers: Sequence[int]) -> list[Any]:
    return [
        (
            *(*one.nodes, one.name, number),
            *(list(map(tuple, one.given)), list(one.reads), list(one.results)),
        )
        for one, number in zip(kernels, numbers, strict=True)
    ]


def _host_runs(
    groups: Sequence[Group], written: Sequence[Written], functions: Sequence[int]
) -> list[Any]:
    return [
        (
            function,
            group.calls[0].node,
            len(group.calls),
            list(one.addresses),
            [number.value for number in one.numbers],
            [
                (number.node, number.argument, position, most)
                for position, (number, most) in enumerate(zip(one.numbers, one.most, strict=True))
                if number.updatable
            ],
            (one.turns, one.elements),
            list(one.writes),
            list(one.saved),
        )
        for group, one, function in zip(groups, written, functions, strict=True)
    ]


def source_of(bodies: Sequence[str]) -> tuple[str, list[int]]:
    """Return the text of functions with these bodies, equal ones once, and which one each is."""
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(body, len(numbers)) for body in bodies]
    parameters = "char* const* p, const double* n, int64_t first, int64_t last"
    lines = [_PRELUDE]
    for body, number in numbers.items():
        lines.append(f"static int32_t f{number}({parameters}) {{\n{body}\n}}")
    names = ", ".join(f"f{number}" for number in numbers.values())
    lines.append(f"static int32_t (*const functions[])({parameters}) = {{{names}}};")
    lines.append("const void* run(int32_t i) { return (const void*)functions[i]; }\n")
    return "\n".join(lines), which


def compile_bodies(bodies: Sequence[str]) -> list[int]:
    """Return the addresses of functions with these bodies."""
    text, which = source_of(bodies)
    source = jit.Source(text=text, name="replay.c", abi="function")
    # What these do about conditional values leaves loops that are no vectors.
    flags = ("-Wno-unused", "-fno-strict-aliasing", "-fno-thread-jumps", "-fno-tree-pre")
    binary = jit.compile(source, flags=flags)
    run = ctypes.CDLL(str(binary.path)).run  # never closed: graphs have addresses
    run.restype, run.argtypes = ctypes.c_void_p, [ctypes.c_int32]
    return [run(number) for number in which]


class _Worker:
    """One thread that fuses graphs in turn. A process that ends waits for the graph in work, for
    the interpreter would end the thread amid native code. A forked child has its own; graphs
    that wait there keep their level.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        for fusing in getattr(self, "pending", ()):
            fusing.done = threading.Event()  # another thread may have been about to set it
            fusing.done.set()
        self.pending: set[Fusing] = set()
        self._ended = threading.Event()
        self._queue: queue.SimpleQueue[Fusing | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.warned = False

    def give(self, fusing: Fusing) -> None:
        self.pending.add(fusing)
        self._queue.put(fusing)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(self._queue,), name="bringup-replay", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self, waiting: queue.SimpleQueue[Fusing | None]) -> None:
        while (fusing := waiting.get()) is not None and not self._ended.is_set():
            try:
                fusing.run()
            except Exception:
                if self._ended.is_set():  # nothing can be compiled any more
                    return
                _log.exception("level 2 of a captured graph failed: it stays at level 1")
            finally:
                self.pending.discard(fusing)


worker = _Worker()
os.register_at_fork(after_in_child=worker.reset)
atexit.register(worker.end)


def _warn(error: Exception) -> None:
    if not worker.warned:
        worker.warned = True
        _log.warning(
            "functions of captured graphs cannot be compiled, which stay at level 1: %s", error
        )


def fuse(native: Any) -> Fusing:
    """Let the graph run at level 2 as soon as its functions are there."""
    native.do_not_fuse(_PENDING)
    fusing = Fusing(native)
    worker.give(fusing)
    return fusing
