"""Other ways to an operator on cpu, each adding or multiplying two small tensors: `Library.impl` in
Python, `TORCH_LIBRARY` and `autograd::Function` in C++, tvm-ffi, nanobind. Those in C++ are built
once, and come from the cache of jit afterwards.
"""

from __future__ import annotations

import importlib.util
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

from bringup import jit

__all__ = ["TENSORS", "cpp_operators", "library_impl", "nanobind_functions", "tvm_functions"]

_SOURCES = Path(__file__).parent / "csrc"
_NANOBIND = "bringup_benchmark_nanobind"

TENSORS = "abcdefgh"  # of the call with 14 arguments; the last one is written
_TVM = f"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
using tvm::ffi::TensorView;
void many({", ".join(f"TensorView {name}" for name in TENSORS)}, int64_t i, int64_t, int64_t,
          int64_t, double u, double) {{
  const auto* first = static_cast<const float*>(a.data_ptr());
  const auto* last = static_cast<const float*>(g.data_ptr());
  auto* out = static_cast<float*>(h.data_ptr());
  for (int64_t k = 0; k < h.size(0); ++k) out[k] = (first[k] + last[k]) * u + i;
}}
void add_out(TensorView x, TensorView y, TensorView z) {{
  const auto* a = static_cast<const float*>(x.data_ptr());
  const auto* b = static_cast<const float*>(y.data_ptr());
  auto* out = static_cast<float*>(z.data_ptr());
  for (int64_t k = 0; k < z.size(0); ++k) out[k] = a[k] + b[k];
}}
"""


@cache
def library_impl() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """An operator of `torch.library.Library` whose kernel is `torch.add`."""
    library = torch.library.Library("bringup_benchmark_impl", "DEF")
    library.define("add(Tensor x, Tensor y) -> Tensor")
    library.impl("add", torch.add, "CPU")
    library_impl.library = library  # type: ignore[attr-defined] # its end would undefine them
    operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    operator = torch.ops.bringup_benchmark_impl.add.default
    return operator


@cache
def cpp_operators() -> ModuleType:
    """`torch.ops` namespace with `add` and `mul`, both in C++, `mul` with its derivative.

    Raises:
        CompileError: torch's headers do not compile here.
    """
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    headers = [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
    flags = ["-std=c++20", "-O2", *headers, "-Wl,--no-as-needed", *libraries]
    binary = jit.compile(
        jit.Source(_SOURCES / "op_peers.cpp", entry="op_peers", abi="function"),
        flags=[*flags, "-lc10", "-ltorch_cpu"],
    )
    torch.ops.load_library(binary.path)
    namespace: ModuleType = torch.ops.bringup_benchmark_cpp
    return namespace


@cache
def nanobind_functions() -> ModuleType | None:
    """A nanobind module with `add` and `add_out`; None where nanobind is not installed.

    Raises:
        CompileError: its headers or those of Python do not compile here.
    """
    if importlib.util.find_spec("nanobind") is None:
        return None
    import nanobind

    sources = Path(nanobind.source_dir())
    folders = [
        nanobind.include_dir(),
        sources,
        sources.parent / "ext" / "robin_map" / "include",
        sysconfig.get_path("include"),
    ]
    headers = [f"-isystem{folder}" for folder in folders]
    binary = jit.compile(
        jit.Source(_SOURCES / "nanobind_peer.cpp", entry=f"PyInit_{_NANOBIND}", abi="function"),
        # what is undefined is in the interpreter that loads it
        flags=["-std=c++20", "-DNDEBUG", "-fno-strict-aliasing", "-Wl,-z,undefs", *headers],
    )
    loader = ExtensionFileLoader(_NANOBIND, str(binary.path))
    spec = importlib.util.spec_from_file_location(_NANOBIND, binary.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@contextmanager
def tvm_functions() -> Iterator[ModuleType | None]:
    """A tvm-ffi module with `many` and `add_out`; None where tvm-ffi is not installed."""
    if importlib.util.find_spec("tvm_ffi") is None:
        yield None
        return
    import tvm_ffi.cpp

    with tempfile.TemporaryDirectory() as folder:
        yield tvm_ffi.cpp.load_inline(
            "many", cpp_sources=_TVM, functions=["many", "add_out"], build_directory=folder
        )
