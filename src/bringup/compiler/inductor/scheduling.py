"""Which of Inductor's nodes become one kernel of a device, and what the wrapper says of it."""

from __future__ import annotations

import re
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import config

from bringup.compiler.inductor.kernel import LoopKernel
from bringup.compiler.inductor.launch import dtypes_of, language_of
from bringup.compiler.inductor.nests import Nests
from bringup.compiler.inductor.torch_private import (
    OrderedSet,
    PythonWrapperCodegen,
    SIMDScheduling,
    SubgraphPythonWrapperCodegen,
    V,
    check,
    get_fused_kernel_name,
    get_kernel_metadata,
)

_MOST_BUFFERS = 40  # of one kernel: a call of a C function has room for some sixty words
_LONGEST_NAME = 100  # of the operators in a kernel's name, which is a file's too


class LoopScheduling(SIMDScheduling):  # type: ignore[misc]
    """Makes loop nests in the language of the device's target."""

    def __init__(self, scheduler: Any, device_type: str) -> None:
        super().__init__(scheduler)
        check()
        self._device_type = device_type
        self._nests = Nests()

    def get_backend_features(self, device: Any) -> Any:
        return OrderedSet()

    @classmethod
    def get_tiling_and_scores(
        cls,
        node_schedule: Any,
        numel: Any,
        reduction_numel: Any = sympy.S.One,
        coalesce_analysis: Any = None,
    ) -> tuple[Any, None]:
        """Return one dimension of results and one that is reduced."""
        return cls.create_tiling([numel], [reduction_numel]), None

    def can_fuse(self, node1: Any, node2: Any) -> bool:
        """Return whether two nodes become one kernel: as SIMD kernels do, unless it has too many
        arguments.
        """
        buffers = {
            dependency.name for node in (node1, node2) for dependency in node.read_writes.reads
        } | {name for node in (node1, node2) for name in node.get_buffer_names()}
        return len(buffers) <= _MOST_BUFFERS and bool(super().can_fuse(node1, node2))

    can_fuse_vertical = can_fuse
    can_fuse_horizontal = can_fuse

    def create_kernel_choices(
        self, kernel_features: Any, kernel_args: Any, kernel_kwargs: Any
    ) -> list[LoopKernel]:
        device = V.graph.get_current_device_or_throw()
        facts = {"language": language_of(device), "dtypes": dtypes_of(device), "device": device}
        made: type[LoopKernel] = type("LoopKernel", (LoopKernel,), facts)
        return [made(*kernel_args, **kernel_kwargs)]

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: LoopKernel) -> str:
        """Keep the nest of a node for a launch with others, after those that it cannot share."""
        scheduler, node = self.scheduler, self.scheduler.current_node
        if not self._nests.takes(kernel, node):
            scheduler.current_node = self._nests.last
            self.flush()
            later = scheduler.buffer_names_to_free & node.last_usage
            scheduler.buffer_names_to_free -= later
            scheduler.free_buffers()  # as of the node before, whose memory this one may get
            scheduler.buffer_names_to_free |= later
            scheduler.current_node = node
        nodes = [one for one in node_schedule if getattr(one, "node", None) is not None]
        self._nests.add(kernel, src_code, nodes, node)
        return ""

    def _launch_kernel_and_cleanup(
        self, kernel: LoopKernel, base_scheduler_nodes: Any, *, free_buffers: bool = True
    ) -> None:
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove
        if config.nan_asserts or config.generate_intermediate_hooks:
            self.flush()
        if config.nan_asserts:
            kernel.codegen_nan_check()

    def free_buffers_in_scheduler(self) -> None:
        """Free nothing: what waits for its launch reads it."""

    def ready_to_flush(self) -> bool:
        """Return whether the next node may be another stream's."""
        return bool(self.scheduler._has_multi_stream_nodes())

    def flush(self) -> None:
        nests, self._nests = self._nests, Nests()
        if not nests.nodes:
            return
        name, wrapper = self._defined(nests), V.graph.wrapper_code
        self.codegen_comment(nests.nodes, name)
        for size in nests.sizes:
            wrapper.ensure_size_computed(size)
        values = [one.value for one in nests.parameters]
        wrapper.writeline(f"{name}({', '.join([nests.work(), *values])})")

    def _defined(self, nests: Nests) -> str:
        """Write the wrapper's line that makes a kernel, once for equal text; return its name."""
        wrapper = V.graph.wrapper_code
        device = str(nests.device)
        text, kinds = nests.text(), "".join(one.kind for one in nests.parameters)
        known = (text, kinds, tuple(nests.faults), device)
        if known in wrapper.src_to_kernel:
            return str(wrapper.src_to_kernel[known])
        fused = get_fused_kernel_name(nests.nodes, "original_aten")[:_LONGEST_NAME]
        name = f"{self._device_type}_{fused}_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[known] = name
        origins, _ = get_kernel_metadata(nests.nodes, wrapper)
        lines = [
            "from bringup.compiler.inductor.launch import generated_kernel",
            origins.rstrip(),
            f"{name} = generated_kernel({name!r}, r'''",
            f"{text}''',",
            f"    device={device!r}, parameters={kinds!r}, faults={nests.faults!r},",
            f"    lines={_lines(nests.nodes)!r})",
            "",
        ]
        wrapper.header.splice("\n".join(lines))
        return name


def _lines(nodes: Any) -> list[str]:
    """Return the innermost lines of the program that the nodes are of."""
    traces = [o.meta.get("stack_trace") or "" for one in nodes for o in one.node.get_origins()]
    found = [re.findall(r'File "([^"]+)", line (\d+)', trace)[-1:] for trace in traces]
    return sorted({f"{file}:{line}" for last in found for file, line in last})


_ALLOCATION = r"(\w+ = )empty_strided\((.*, )device='{type}', dtype=([\w.]+)\)(.*)"
_HEADER = """
from bringup._native import torch_library
empty_on_device = torch_library().compiler.empty_strided
"""


class _OnOneDevice:
    """Allocates on the device of a buffer: torch's wrapper says its type alone."""

    def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
        line: str = super().make_allocation(name, device, *args, **kwargs)  # type: ignore[misc]
        generic = re.fullmatch(_ALLOCATION.format(type=device.type), line)
        if generic is None:
            return line.replace(f"device='{device.type}'", f"device='{device}'")
        before, layout, dtype, behind = generic.groups()
        index = -1 if device.index is None else device.index
        return f"{before}empty_on_device({layout}{dtype}, {index}){behind}"


class Wrapper(_OnOneDevice, PythonWrapperCodegen):  # type: ignore[misc]
    """Writes the code around kernels, as torch does for every device."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None
    ) -> Any:
        if is_subgraph:
            return SubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return Wrapper()

    def write_header(self) -> None:
        super().write_header()
        self.header.splice(_HEADER)


class SubgraphWrapper(_OnOneDevice, SubgraphPythonWrapperCodegen):  # type: ignore[misc]
    """The same for the graph of a branch or a loop."""
