"""Kernels become torch operators.

In reading order: `kernel_op` defines an operator from a kernel file and returns its callable
(`KernelOperator`). `empty_like` and `empty` say how its outputs are allocated, with a dtype by
`promote`, or up to `at_most` as many rows as the kernel counts; `same_shape`,
`same_dtype`, `shape`, `rank`, `dtype` and `kernel_checks` are its input contract. Both are written
once and serve real, fake and meta tensors. Within `autotune` the tile sizes of templates are
measured.

Python functions as operators: `custom_op` defines one and returns its callable (`CustomOperator`,
which mindtorch_v2 calls `CustomOpHandle`).
`Library` and `impl` are torch's, with the names of dispatch keys that people use; `register_fake`,
`register_kernel`, `register_autograd`, `register_jvp`, `register_vmap`, `register_autocast`,
`register_effect`, `register_sharding` and `register_torch_dispatch` add to any operator, by name or
by its callable. Within `debugging` hidden writes are found.

A Triton kernel as an operator: `triton_op` (`TritonOperator`), where triton is installed.

Operators of others: `adopt` gives a handle (`AdoptedOperator`) that adds what they lack.

Kernels without an operator: `ascendc_load` builds AscendC sources, `KernelLauncher` starts kernels
of a built library with raw arguments (`tensor_ptr`, `alloc_like`, typed numbers such as `i32`),
`TwoPhaseLauncher` calls functions that first ask for a workspace. `ascendc_op` makes an operator of
a function that launches them.

`check` calls an operator in every way that torch may call it and says what is wrong
(`CheckReport`).

`load_op_plugins` defines the operators of files on `BRINGUP_OPS_PATH` and of installed packages.

Into a model without a graph: `replace_modules` lets its layers run other functions,
`register_attention` offers an operator to transformers.

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
