"""An operator's own kernel, called through tvm-ffi: results are allocated first and passed last."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bringup import jit
from bringup.errors import BringupError
from bringup.ops.kernel.kernel_op import definition_of
from bringup.ops.validation.samples import Sample

_TYPES = {"Tensor": torch.Tensor, "int": int, "float": float, "bool": bool}
# tvm-ffi's calling convention (tvm/ffi/c_api.h, TVMFFISafeCallType) around kernel.h's. A kernel
# cannot be stopped within a call, so what tvm-ffi does not have is an error afterwards.
_SOURCE = """#include <tvm/ffi/c_api.h>
#include <bringup/kernel.h>
static bringup_kernel_fn kernel;
static const char* error;
static void set_error(const bringup_ctx* ctx, const char* message) { error = message; }
static void* workspace(const bringup_ctx* ctx, size_t bytes) {
  error = "it asks for bringup's workspace";
  return 0;
}
static void parallel_for(const bringup_ctx* ctx, int64_t n, int64_t grain,
                         void (*body)(int64_t, int64_t, void*), void* user) {
  error = "it asks for bringup's threads";
  body(0, n, user);
}
static const bringup_ctx ctx = {sizeof(bringup_ctx), BRINGUP_KERNEL_ABI, 0, {kDLCPU, 0}, 0, 1,
                                set_error, workspace, parallel_for, 0};
#define EXPORT(name) __attribute__((visibility("default"))) int __tvm_ffi_##name( \\
    void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result)
EXPORT(open) {
  kernel = (bringup_kernel_fn)args[0].v_int64;
  return 0;
}
EXPORT(call) {
  void* given[64];
  for (int32_t i = 0; i < n; ++i)
    given[i] = args[i].type_index == kTVMFFIDLTensorPtr ? args[i].v_ptr
               : args[i].type_index == kTVMFFITensor
                   ? (void*)((char*)args[i].v_obj + sizeof(TVMFFIObject))
                   : (void*)&args[i].v_int64;
  error = 0;
  if (kernel(given, n, &ctx) != 0 && error == 0) error = "the kernel failed";
  if (error == 0) return 0;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", error);
  return -1;
}
"""


def is_installed() -> bool:
    return importlib.util.find_spec("tvm_ffi") is not None


def peer(operator: str, sample: Sample, fresh: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """Return a call of the kernel for such arguments and results. Raises `BringupError`."""
    definition = definition_of(operator)
    if definition is None:
        raise BringupError("it is no operator of ops.kernel_op")
    schema, abi = definition.schema, definition.template.abi
    if sample.kwargs or len(sample.args) != len(schema.arguments):
        raise BringupError("it takes all arguments, by position")
    for argument, value in zip(schema.arguments, sample.args, strict=True):
        if type(value) is not _TYPES.get(argument.type) or "Tensor[]" in schema.return_types:
            raise BringupError(f"{argument.name} is {argument.type}, given {type(value).__name__}")
    params = definition.params(*sample.args)
    binary = definition.built(definition.template.compile, "cpu", params)
    function = _exported(binary) if abi == "tvm_ffi" else _called(binary)

    def call(*args: Any) -> Any:
        results = [torch.empty_like(one) for one in fresh]
        function(*args, *results)
        following = iter(results)
        returned = [next(following) if index < 0 else args[index] for index in schema.returns]
        return returned[0] if len(returned) == 1 else tuple(returned)

    return call


def _exported(binary: jit.Binary) -> Callable[..., Any]:
    import tvm_ffi

    function: Callable[..., Any] = tvm_ffi.load_module(str(binary.path))[binary.entry]
    return function


def _called(binary: jit.Binary) -> Callable[..., Any]:
    if binary.binding is not None or binary.kind != "host":
        raise BringupError("a library's function and device code want a wrapper of yours")
    module = _wrapper()
    entry = getattr(ctypes.CDLL(str(binary.path)), binary.entry)
    module["open"](ctypes.cast(entry, ctypes.c_void_p).value)
    function: Callable[..., Any] = module["call"]
    return function


@functools.cache
def _wrapper() -> Any:
    """Return a module of tvm-ffi; like any kernel it is compiled once, and kept in the cache."""
    import tvm_ffi
    from tvm_ffi import libinfo

    source = jit.Source(name="tvm_ffi_call.c", text=_SOURCE, entry="call", abi="tvm_ffi")
    headers = libinfo.find_include_path(), libinfo.find_dlpack_include_path()
    library = libinfo.find_libtvm_ffi()
    flags = [*(f"-isystem{folder}" for folder in headers), f"-L{Path(library).parent}", "-ltvm_ffi"]
    return tvm_ffi.load_module(str(jit.compile(source, flags=flags).path))
