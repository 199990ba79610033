"""Kernels become torch operators.

`kernel_op` defines an operator from a kernel file (`KernelOperator`). Its outputs: `empty_like`,
`empty`, `promote`, `at_most`. Its input contract: `same_shape`, `same_dtype`, `shape`, `rank`,
`dtype`, `kernel_checks`. Both serve real, fake and meta tensors. `autotune` measures tile sizes.

`custom_op` defines one from a Python function (`CustomOperator`, mindtorch_v2's `CustomOpHandle`).
`Library` and `impl` are torch's, with the names of dispatch keys that people use; the `register_*`
functions add to any operator, by name or by its callable. `debugging` finds hidden writes.
`triton_op` defines one from a Triton kernel (`TritonOperator`), `adopt` adds what others' operators
lack (`AdoptedOperator`), `ascendc_op` wraps launches.

Kernels without an operator: `ascendc_load`, `KernelLauncher` (`tensor_ptr`, `alloc_like`, typed
numbers such as `i32`) and `TwoPhaseLauncher`, for functions that first ask for a workspace.

`check` calls an operator in every way that torch may (`CheckReport`). `load_op_plugins` defines
those of files on `BRINGUP_OPS_PATH` and of packages. `replace_modules` lets a model's layers run
other functions, `register_attention` offers an operator to transformers.

What is not named here is internal. Its packages, each knowing only those before it:

- `schema`: what an operator takes and gives, as text and as values
- `contract`: sizes, `checks=` and `outputs=`
- `registration`: what can be registered for any operator
- `custom`: Python functions as operators, and registering by name
- `kernel`: kernel files and libraries as operators
- `operators`: kernels for operators that torch has (`devices.kernel`)
- `launch`: kernels without an operator
- `validation`: `check`
- `integration`: operators, kernels, plugins and models of others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._lazy import lazily

if TYPE_CHECKING:
    from bringup.ops.contract.constraints import (
        InputConstraint,
        dtype,
        kernel_checks,
        rank,
        same_dtype,
        same_shape,
        shape,
    )
    from bringup.ops.contract.outputs import OutputRule, at_most, empty, empty_like, promote
    from bringup.ops.custom.custom_op import CustomOperator, CustomOpHandle, custom_op
    from bringup.ops.custom.library import (
        Library,
        impl,
        register_autocast,
        register_autograd,
        register_effect,
        register_fake,
        register_jvp,
        register_kernel,
        register_sharding,
        register_torch_dispatch,
        register_vmap,
    )
    from bringup.ops.integration.adopt import AdoptedOperator, adopt
    from bringup.ops.integration.attention import register_attention
    from bringup.ops.integration.plugins import load_op_plugins, unload_op_plugins
    from bringup.ops.integration.replace import Replacement, replace_modules
    from bringup.ops.integration.triton_op import TritonOperator, triton_op
    from bringup.ops.kernel.autotune import autotune
    from bringup.ops.kernel.kernel_op import KernelOperator, kernel_op
    from bringup.ops.launch.ascendc import ascendc_load
    from bringup.ops.launch.ascendc_op import ascendc_op
    from bringup.ops.launch.launcher import KernelLauncher
    from bringup.ops.launch.memory import alloc_like, tensor_ptr
    from bringup.ops.launch.scalars import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
    from bringup.ops.launch.two_phase import TwoPhaseLauncher
    from bringup.ops.registration.python_kernel import debugging
    from bringup.ops.schema.infer import infer_schema
    from bringup.ops.validation.report import CheckOutcome, CheckReport, CheckRow, check

__all__ = [
    "AdoptedOperator", "CheckOutcome", "CheckReport", "CheckRow", "CustomOpHandle",
    "CustomOperator", "InputConstraint", "KernelLauncher", "KernelOperator", "Library",
    "OutputRule", "Replacement", "TritonOperator", "TwoPhaseLauncher", "adopt", "alloc_like",
    "ascendc_load", "ascendc_op", "at_most", "autotune", "check", "custom_op", "debugging", "dtype",
    "empty", "empty_like", "f32", "f64", "i8", "i16", "i32", "i64", "impl", "infer_schema",
    "kernel_checks", "kernel_op", "load_op_plugins", "promote", "rank", "register_attention",
    "register_autocast", "register_autograd", "register_effect", "register_fake", "register_jvp",
    "register_kernel", "register_sharding", "register_torch_dispatch", "register_vmap",
    "replace_modules", "same_dtype", "same_shape", "shape", "tensor_ptr", "triton_op", "u8",
    "u16", "u32", "u64", "unload_op_plugins",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "contract.constraints": (
                "InputConstraint dtype kernel_checks rank same_dtype same_shape shape"
            ),
            "contract.outputs": "OutputRule at_most empty empty_like promote",
            "custom.custom_op": "CustomOperator CustomOpHandle custom_op",
            "custom.library": (
                "Library impl register_autocast register_autograd register_effect register_fake "
                "register_jvp register_kernel register_sharding register_torch_dispatch "
                "register_vmap"
            ),
            "integration.adopt": "AdoptedOperator adopt",
            "integration.attention": "register_attention",
            "integration.plugins": "load_op_plugins unload_op_plugins",
            "integration.replace": "Replacement replace_modules",
            "integration.triton_op": "TritonOperator triton_op",
            "kernel.autotune": "autotune",
            "kernel.kernel_op": "KernelOperator kernel_op",
            "launch.ascendc": "ascendc_load",
            "launch.ascendc_op": "ascendc_op",
            "launch.launcher": "KernelLauncher",
            "launch.memory": "alloc_like tensor_ptr",
            "launch.scalars": "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64",
            "launch.two_phase": "TwoPhaseLauncher",
            "registration.python_kernel": "debugging",
            "schema.infer": "infer_schema",
            "validation.report": "CheckOutcome CheckReport CheckRow check",
        },
    )


def __dir__() -> list[str]:
    return sorted(__all__)
