"""From a kernel's source to a callable: never seen before, known on disk, known in memory.

The peer is tvm-ffi's `load_inline` where it is installed (`pip install apache-tvm-ffi`). Without it
a cold compile is set against the bare compiler on the same file, and a warm start against a bare
`dlopen` of a library whose source was hashed: what no kernel cache can go below.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._harness import Row, compare, row
from bringup import jit

KERNEL = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + 1;
  return 0;
}
"""
TVM_KERNEL = """
#include <tvm/ffi/container/tensor.h>
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + 1;
}
"""

OUR_WARM_START = """
import sys, time
from pathlib import Path
from bringup import _native, jit
_native.core()
source = jit.Source(Path(sys.argv[1]))
start = time.perf_counter_ns()
jit.compile(source).kernel_id
print(time.perf_counter_ns() - start)
"""
TVM_WARM_START = """
import sys, time
from pathlib import Path
import tvm_ffi.cpp
text = Path(sys.argv[1]).read_text()
start = time.perf_counter_ns()
tvm_ffi.cpp.load_inline("bench", cpp_sources=text, functions=["add_one"]).add_one
print(time.perf_counter_ns() - start)
"""
DLOPEN_WARM_START = """
import ctypes, hashlib, sys, time
from pathlib import Path
start = time.perf_counter_ns()
hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest()
ctypes.CDLL(sys.argv[2]).run
print(time.perf_counter_ns() - start)
"""

_serial = itertools.count()


def _has_tvm() -> bool:
    return importlib.util.find_spec("tvm_ffi") is not None


@contextmanager
def _own_caches() -> Iterator[Path]:
    names = ("BRINGUP_CACHE_DIR", "TVM_FFI_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({name: f"{folder}/{name}" for name in names})
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _new(text: str) -> str:
    return f"{text}// {os.getpid()} {next(_serial)}\n"


def _cold_peer(folder: Path) -> tuple[str, Iterator[None]]:
    """A name, and something that compiles one more kernel each time it is advanced."""
    if _has_tvm():
        return "tvm-ffi load_inline", _tvm_compiles()
    return "bare c++ of the same file", _bare_compiles(folder)


def _tvm_compiles() -> Iterator[None]:
    import tvm_ffi.cpp

    while True:
        tvm_ffi.cpp.load_inline("bench", cpp_sources=_new(TVM_KERNEL), functions=["add_one"])
        yield


def _bare_compiles(folder: Path) -> Iterator[None]:
    info = jit.toolchain("cpu")
    while True:
        (folder / "bare.cpp").write_text(_new(KERNEL))
        command = [str(info.path), *info.flags, "-o", "bare.so", "bare.cpp"]
        subprocess.run(command, cwd=folder, check=True)
        yield


def _cold(folder: Path, rounds: int) -> Row:
    peer, compiles = _cold_peer(folder)

    def ours() -> object:
        return jit.compile(jit.Source(text=_new(KERNEL), name="bench.cpp")).kernel_id

    return compare(
        "cold compile of a small kernel",
        ours,
        lambda: next(compiles),
        peer_name=peer,
        budget=0.1 if _has_tvm() else None,
        rounds=rounds,
        calls=1,
    )


def _timed_process(script: str, *arguments: str) -> float:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(done.stdout)


def _warm(folder: Path, rounds: int) -> Row:
    source = folder / "bench.cpp"
    source.write_text(KERNEL)
    binary = jit.compile(jit.Source(source))
    tvm_source = folder / "tvm.cpp"
    tvm_source.write_text(TVM_KERNEL)
    if _has_tvm():
        peer, theirs = "tvm-ffi load_inline", (TVM_WARM_START, str(tvm_source))
    else:
        peer, theirs = "bare dlopen", (DLOPEN_WARM_START, str(source), str(binary.path))
    samples: dict[str, list[float]] = {"ours": [], "peer": []}
    _timed_process(*theirs)
    for _ in range(rounds):
        samples["ours"].append(_timed_process(OUR_WARM_START, str(source)))
        samples["peer"].append(_timed_process(*theirs))
    return row(
        "first kernel of a new process, from disk",
        peer,
        samples["ours"],
        samples["peer"],
        budget=0.06 if _has_tvm() else None,
        note="budget: 0.2 ms against 3.5 ms",
    )


def _hit(rounds: int) -> Row:
    source = jit.Source(text=KERNEL, name="bench.cpp")
    macros: dict[str, jit.Macro] = {"ELEMENT_A": "float", "LAYOUT_A": "RowMajor", "TILE": 128}
    known: dict[str, object] = {}

    def hashed() -> object:
        joined = "&".join(f"{name}={value}" for name, value in sorted(macros.items()))
        digest = hashlib.sha256((KERNEL + joined).encode()).hexdigest()
        return known.setdefault(digest, source)

    return compare(
        "hit in memory, sources and compiler checked",
        lambda: jit.compile(source, macros=macros),
        hashed,
        peer_name="source and macros hashed, nothing checked",
        rounds=rounds,
    )


def run(quick: bool = False) -> list[Row]:
    """The rows of this module."""
    with _own_caches() as folder:
        return [_cold(folder, 3 if quick else 9), _warm(folder, 3 if quick else 15), _hit(31)]
