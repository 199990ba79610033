"""The private members of torch 2.13 that the code generator uses, and a check of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bringup.errors import DeviceError

_COUNTED_ON = (
    "which bringup's code generator for Inductor counts on: use the version of torch that bringup "
    "was built for, or backend='bringup'"
)

try:
    from torch._inductor.codegen.common import (
        CSE,
        DTYPE_TO_COMPUTATION_DTYPE,
        CSEVariable,
        DeferredLine,
        IndentedBuffer,
        OpOverrides,
        SizeArg,
        TensorArg,
        pointwise_overrides_data,
    )
    from torch._inductor.codegen.simd import SIMDKernel, SIMDScheduling
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import Pointwise, StorageBox
    from torch._inductor.ops_handler import OpsHandler
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.utils import (
        get_bounds_index_expr,
        get_fused_kernel_name,
        get_kernel_metadata,
    )
    from torch._inductor.virtualized import V, ops
    from torch.utils._ordered_set import OrderedSet
    from torch.utils._sympy.printers import CppPrinter
except ImportError as error:
    raise DeviceError(f"torch {torch.__version__}: {error}, {_COUNTED_ON}") from error

__all__ = [
    "CSE",
    "DTYPE_TO_COMPUTATION_DTYPE",
    "CSEVariable",
    "CppPrinter",
    "DeferredLine",
    "IndentedBuffer",
    "OpOverrides",
    "OpsHandler",
    "OrderedSet",
    "PythonWrapperCodegen",
    "SIMDKernel",
    "SIMDScheduling",
    "SizeArg",
    "SubgraphPythonWrapperCodegen",
    "TensorArg",
    "V",
    "get_bounds_index_expr",
    "get_fused_kernel_name",
    "get_kernel_metadata",
    "ops",
    "pointwise_overrides_data",
]

# What is overridden or called, with the parameters that are counted on.
EXPECTED: tuple[tuple[Callable[..., Any], str], ...] = (
    (SIMDKernel.__init__, "self tiling features"),
    (SIMDKernel.load, "self name index"),
    (SIMDKernel.store, "self name index value mode"),
    (SIMDKernel.store_reduction, "self name index value"),
    (SIMDKernel.reduction, "self dtype src_dtype reduction_type value"),
    (SIMDKernel.check_bounds, "self expr size lower upper"),
    (SIMDKernel.device_assert_async, "self cond msg"),
    (SIMDKernel.codegen_body, "self"),
    (SIMDKernel.codegen_iteration_ranges_entry, "self entry"),
    (SIMDKernel.call_kernel, "self name node deallocate_ws"),
    (SIMDKernel.prepare_indexing, "self index"),
    (SIMDKernel.rename_indexing, "self index"),
    (SIMDKernel.finalize_indexing, "self indices"),
    (SIMDKernel.get_strides_of_load, "self index"),
    (SIMDKernel.swap_buffers, "self lb cb sb"),
    (SIMDScheduling.define_kernel, "self src_code node_schedule kernel"),
    (SIMDScheduling.can_fuse, "self node1 node2"),
    (SIMDScheduling.get_tiling_and_scores, "node_schedule numel reduction_numel"),
    (SIMDScheduling.create_tiling, "pw_tiling reduction_tiling"),
    (CSE.generate, "self buffer expr bounds write assignment dtype shape"),
    (CSE.invalidate, "self keep_vars"),
    (PythonWrapperCodegen.next_kernel_suffix, "self"),
    (PythonWrapperCodegen.make_allocation, "self name device"),
    (
        PythonWrapperCodegen.create,
        "is_subgraph subgraph_name parent_wrapper partition_signatures",
    ),
    (GraphLowering.decide_layout_opt, "gm is_inference"),
    (CompiledFxGraph.post_compile, "self example_inputs constants graph_kwargs"),
    (StorageBox.should_realize_on_reuse, "self users graph_reuse"),
    (Pointwise.inner_fn_opcount, "self"),
)


@functools.cache
def check() -> None:
    """Raise `DeviceError` where a member of torch has other parameters than are counted on."""
    for member, parameters in EXPECTED:
        found = list(inspect.signature(member).parameters)
        if missing := [name for name in parameters.split() if name not in found]:
            raise DeviceError(
                f"torch {torch.__version__}: {member.__qualname__} has no parameter "
                f"{', '.join(missing)}, {_COUNTED_ON}"
            )


def keep_layouts_of(device_type: str) -> None:
    """Let Inductor choose no layouts for convolutions of the device: its eager operators decide."""
    decide = GraphLowering.decide_layout_opt

    @functools.wraps(decide)
    def decided(gm: Any, *, is_inference: bool) -> bool:
        if device_type in _devices_of_convolutions(gm.graph.nodes):
            return False
        return bool(decide(gm, is_inference=is_inference))

    GraphLowering.decide_layout_opt = staticmethod(decided)


_COSTLY = frozenset(["exp", "expm1", "log", "log1p", "log2", "log10", "sigmoid", "tanh", "erf"])


def compute_once_on(device_type: str, applies: Callable[[torch.device], bool]) -> None:
    """Let Inductor keep values of costly functions with several users (`applies`)."""
    decide = StorageBox.should_realize_on_reuse

    @functools.wraps(decide)
    def decided(self: Any, users: int, *, graph_reuse: bool = True) -> bool:
        if users > 1 and isinstance(self.data, Pointwise) and _is_costly(self.data):
            device = self.get_device()
            if device.type == device_type and applies(device):
                return True
        return bool(decide(self, users, graph_reuse=graph_reuse))

    StorageBox.should_realize_on_reuse = decided


def _is_costly(data: Any) -> bool:
    return not _COSTLY.isdisjoint(data.inner_fn_opcount().used_ops)


def replay_calls_of(device_type: str) -> None:
    """Let replays stand for calls of the device's graphs where `mode=` asks for CUDA's graphs."""
    complete = CompiledFxGraph.post_compile

    @functools.wraps(complete)
    def completed(self: Any, *args: Any, **kwargs: Any) -> None:
        complete(self, *args, **kwargs)
        if torch._inductor.config.triton.cudagraphs and device_type in self.device_types:
            from bringup.compiler.inductor.replays import replayed

            self.current_callable = replayed(self, self.current_callable)

    CompiledFxGraph.post_compile = completed


def _devices_of_convolutions(nodes: Iterable[Any]) -> set[str]:
    convolution = torch.ops.aten.convolution.default
    return {
        value.device.type
        for node in nodes
        if node.target is convolution and isinstance(value := node.meta.get("val"), torch.Tensor)
    }
