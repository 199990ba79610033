"""The peers of jit, each doing the same work: from a source to something that can be called.

A peer is a script for a process of its own. It imports what it needs, says that it is ready, and
for each line that it reads (a kernel's text in a file) gets a callable and says how long that took.
Every peer has a cache of its own, and a compiler that notes each build.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["OURS", "TORCH", "TVM", "Peer", "Session", "Workplace", "peers", "workplace"]

_LOOP = """
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter_ns()
    try:
        get(line.strip())
        print(json.dumps({"ns": time.perf_counter_ns() - start}), flush=True)
    except Exception as error:
        print(json.dumps({"error": repr(error)[:200]}), flush=True)
"""

_OURS = """
import json, sys, time
from bringup import _native, jit
_native.core()
def get(path):
    return jit.compile(jit.Source(path)).kernel_id
"""
_TVM = """
import json, sys, time
from pathlib import Path
import tvm_ffi.cpp
def get(path):
    text = Path(path).read_text()
    return tvm_ffi.cpp.load_inline("bench", cpp_sources=text, functions=["add_one"]).add_one
"""
_TORCH = """
import json, os, sys, time
from pathlib import Path
import torch.utils.cpp_extension
def get(path):
    text = Path(path).read_text()
    name = "bench_" + str(text.rpartition("// ")[2].split()[0])
    return torch.utils.cpp_extension.load_inline(name, text, functions=["add_one"]).add_one
"""

_OUR_KERNEL = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + 1;
  return 0;
}
"""
_TVM_KERNEL = """
#include <tvm/ffi/container/tensor.h>
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + 1;
}
"""
_TORCH_KERNEL = """
torch::Tensor add_one(torch::Tensor x) { return x + 1; }
"""

_serial = itertools.count()


@dataclass(frozen=True)
class Peer:
    """A way from a source to a callable: its name, its module, its script, and its kernel."""

    name: str
    module: str
    script: str
    kernel: str
    compiler_variable: str

    @property
    def is_here(self) -> bool:
        """Whether it is installed."""
        return importlib.util.find_spec(self.module) is not None


OURS = Peer("bringup", "bringup", _OURS, _OUR_KERNEL, "BRINGUP_JIT_CXX")
TVM = Peer("tvm-ffi load_inline", "tvm_ffi", _TVM, _TVM_KERNEL, "CXX")
TORCH = Peer("torch load_inline", "torch", _TORCH, _TORCH_KERNEL, "CXX")


def peers(quick: bool) -> list[Peer]:
    """Those that are installed; torch's takes half a minute for each kernel, so not when quick."""
    return [peer for peer in ((TVM,) if quick else (TVM, TORCH)) if peer.is_here]


class Session:
    """One process of a peer, started and imported."""

    def __init__(self, peer: Peer, place: Workplace) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", peer.script + _LOOP],
            env=place.environment(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._next()

    def _next(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(("ready", "{")):  # compilers of peers may print on their own
                return line
        raise RuntimeError("a peer's process ended early")

    def ask(self, source: Path) -> None:
        """Sends a kernel; `answer` waits for what becomes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{source}\n")
        self._process.stdin.flush()

    def answer(self) -> float | None:
        """Nanoseconds to the callable, or None when there is none."""
        nanoseconds: float | None = json.loads(self._next()).get("ns")
        return nanoseconds

    def get(self, source: Path) -> float:
        """Nanoseconds from the kernel's text to its callable."""
        self.ask(source)
        nanoseconds = self.answer()
        assert nanoseconds is not None, "a peer could not compile its own kernel"
        return nanoseconds

    def kill(self) -> None:
        """Ends the process as `kill -9` does; compilers that it started live on."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets the process end."""
        self._process.communicate()


class Workplace:
    """A temporary folder with the kernels and caches of all peers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "builds"
        self._compiler = folder / "c++"
        self._compiler.write_text(
            f'#!/bin/sh\ncase " $* " in *.cpp\\ *|*.cc\\ *) echo >> {self._notes};; esac\n'
            'exec c++ "$@"\n'
        )
        self._compiler.chmod(0o755)

    def environment(self, peer: Peer) -> dict[str, str]:
        """Its own cache, and the compiler that notes builds."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "BRINGUP_JIT_PROGRESS": "0",
            "BRINGUP_CACHE_DIR": str(self.folder / "ours"),
            "TVM_FFI_CACHE_DIR": str(self.folder / "tvm"),
            "TORCH_EXTENSIONS_DIR": str(self.folder / "torch"),
            peer.compiler_variable: str(self._compiler),
        }

    def kernel(self, peer: Peer) -> Path:
        """A kernel of this peer that nobody has seen before."""
        path = self.folder / f"kernel_{next(_serial)}.cpp"
        path.write_text(f"{peer.kernel}// {os.getpid()}_{path.stem}\n")
        return path

    def builds(self) -> int:
        """How many builds began so far."""
        return len(self._notes.read_text().splitlines()) if self._notes.exists() else 0

    @contextmanager
    def session(self, peer: Peer) -> Iterator[Session]:
        """A process of this peer."""
        session = Session(peer, self)
        try:
            yield session
        finally:
            session.close()


@contextmanager
def workplace() -> Iterator[Workplace]:
    """A workplace that goes away with all that was built in it."""
    with TemporaryDirectory(prefix="bringup-bench-") as folder:
        yield Workplace(Path(folder))
