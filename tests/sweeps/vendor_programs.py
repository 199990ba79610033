"""Kernels of somebody else's for every operator that the kit registers one for on the device:
prints, as JSON, whose kernel runs, before and after the vendor's library goes.

A process for each way to register them, forked behind the imports.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.sweeps.support import part

from bringup import devices

WAYS = {
    "python, before": (True, "python"),
    "python, after": (False, "python"),
    "c++, before": (True, "c++"),
    "c++, after": (False, "c++"),
}
FILE = "vendor_kernels.cpp"

# Of the kit's own registrations those that are no entries of the fallback.
_OWN = """
_copy_from _copy_from_and_resize _efficientzerotensor _empty_affine_quantized
_has_compatible_shallow_copy_type
_to_copy _unsafe_view alias clone detach
_empty_per_channel_affine_quantized _nested_from_padded _nested_from_padded_and_nested_example
_nested_tensor_from_mask _nested_tensor_from_tensor_list _nested_view_from_buffer
_nested_view_from_buffer_copy _local_scalar_dense _reshape_alias as_strided empty.memory_format
empty_quantized empty_strided fill_.Scalar fill_.Tensor is_set_to quantize_per_channel
quantize_per_tensor quantize_per_tensor.tensor_qparams quantize_per_tensor.tensors
quantize_per_tensor_dynamic record_stream resize_ set_.source_Storage
set_.source_Storage_storage_offset set_.source_Tensor view view.dtype zero_
batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
batch_norm_gather_stats_with_counts batch_norm_stats
"""
OF_THE_KIT = frozenset(_OWN.split())


def told(name: str) -> str:
    """Where the kernel for the device comes from, as `devices.explain` says."""
    entry = devices.explain(name)["PrivateUse1"]  # type: ignore[index]
    return f"{entry.kind.value} {entry.source}"


def registered() -> list[str]:
    """What has a kernel for the device."""
    return sorted(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))


def in_python(names: list[str]) -> Callable[[], None]:
    """Registers kernels; the result takes them out."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nobody calls it")

    library = torch.library.Library("aten", "IMPL")
    for name in names:
        library.impl(name.removeprefix("aten::"), kernel, "PrivateUse1")
    return library._destroy


_KEPT: list[Any] = [FILE.encode()]  # what the dispatcher has by address


def in_cpp(names: list[str]) -> Callable[[], None]:
    """The same as STABLE_TORCH_LIBRARY_IMPL does it."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    kernel = prototype(lambda *_: None)
    _KEPT.append(kernel)
    library = ctypes.c_void_p()
    made = torch_cpu.aoti_torch_library_init_impl(
        b"aten", b"PrivateUse1", _KEPT[0], ctypes.c_uint32(1), ctypes.byref(library)
    )
    assert made == 0
    for name in names:
        assert torch_cpu.aoti_torch_library_impl(library, name.encode(), kernel) == 0
    return lambda: torch_cpu.aoti_torch_delete_library_object(library) and None


def way(name: str, names: list[str]) -> dict[str, Any]:
    """Whose kernels run with the vendor's library, and when it is gone."""
    before, language = WAYS[name]
    register = in_python if language == "python" else in_cpp
    if not before:
        devices.load_driver("sim")
    remove = register(names)
    if before:
        devices.load_driver("sim")
    loaded = {one: told(one) for one in names}
    remove()
    devices.load_driver("sim")
    return {"loaded": loaded, "removed": {one: told(one) for one in names}}


def plain() -> dict[str, Any]:
    """The kit's own names, and whose kernels run without a vendor."""
    missing = registered()
    devices.load_driver("sim")
    names = [name for name in registered() if name not in missing]
    return {name: told(name) for name in names}


def forked(run: Callable[[], dict[str, Any]], file: Path) -> Any:
    """What a function returns in a process of its own."""
    process = os.fork()
    if process == 0:
        file.write_text(json.dumps(run()))
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    return json.loads(file.read_text()) if status == 0 else f"status {status}"


def main() -> None:
    """Prints the report on this run's part of the names."""
    folder = Path(sys.argv[1])
    kit = forked(plain, folder / "plain.json")
    always = [f"aten::{name}" for name in sorted(OF_THE_KIT)]
    names = part([name for name in kit if name not in always], always)
    report = {w: forked(lambda: way(w, names), folder / f"{i}.json") for i, w in enumerate(WAYS)}  # noqa: B023
    json.dump({"kit": kit, "ways": report}, sys.stdout)


if __name__ == "__main__":
    main()
