"""Writing a captured graph into a file: its nodes, the memory that they work in, its kernels."""

from __future__ import annotations

import bisect
import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from bringup import _container
from bringup._native import torch_library
from bringup.errors import CaptureError, first_line
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._saved_values import (
    KIND,
    SAFETENSORS,
    VERSIONS,
    binaries_of,
    facts,
    layout,
    named_tensors,
    refuse_in_capture,
    written,
)

_HOST_FUNCTION = "bringup_graphs::host_function"


def save(
    graph: CapturedGraph,
    path: str | os.PathLike[str],
    *,
    modules: Mapping[str, torch.nn.Module] | None = None,
) -> None:
    """Write a captured graph into a file, from which `load` makes it in another process.

    The file has the graph's operators by name, the sizes of its memory, the content of the tensors
    that it reads as it is now (as safetensors), the kernels of `kernel_op` and `devices.kernel`
    that it calls, and the names and values of its slots. Runs of other threads wait for it; no
    replay or update may be at the same time.

    Args:
        graph: holds a capture, whose inputs and results `run` knows.
        path: of the file, `.bgraph` by convention; one that is there is replaced.
        modules: whose weights and buffers are not written, but taken by name from the modules of
            `load`.

    Raises:
        CaptureError: nothing is captured, or a node or a value is bound to this process; the
            message says which and why. A capture is under way on this thread. No file is written.
        OSError: the file cannot be written.
        TypeError: `graph` is no `CapturedGraph`.

    Examples:
        >>> import tempfile
        >>> from bringup import graphs
        >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
        >>> with graphs.capture(graph, inputs=(x,)):
        ...     graph.outputs = x * 2
        >>> path = tempfile.mkdtemp() + "/twice.bgraph"
        >>> graphs.save(graph, path)
        >>> graphs.load(path).run(torch.tensor([3.0, 4.0]))
        tensor([6., 8.])
    """
    if not isinstance(graph, CapturedGraph):
        raise TypeError(f"save takes a CapturedGraph, got {type(graph).__name__}")
    refuse_in_capture("save")
    writer = _Writer(graph, modules or {})
    turn = writer.native.PoolTurn(writer.graph.memory_pool)  # runs of other threads wait
    try:
        writer.write(path)
    finally:
        del turn


_Place = tuple[bool, int, int]
"""Of memory: whether the host does not reach it, its address, its size."""


@dataclass
class _Memory:
    """Bytes that tensors of the graph have in common."""

    isolated: bool
    begin: int
    end: int
    tensors: list[torch.Tensor] = field(default_factory=list)
    on_device: bool = False
    is_given: bool = False
    is_written: bool = False
    named: list[list[Any]] = field(default_factory=list)  # modules, names and what these are

    @property
    def size(self) -> int:
        return self.end - self.begin

    def described(self, number: int) -> dict[str, Any]:
        """Return what the section `graph` says of it."""
        row = {"size": self.size, "on_device": self.on_device, "written": self.is_written}
        if self.named:
            return row | {"named": self.named}
        return row | {"weights": str(number)} if self.has_weights else row

    @property
    def has_weights(self) -> bool:
        """Return whether it is more than room for results, and no module has it."""
        return not self.named and (self.is_given or not self.is_written)

    def content(self) -> bytes | memoryview:
        """Return what lies there now."""
        if not self.isolated:
            return memoryview((ctypes.c_ubyte * self.size).from_address(self.begin)).cast("B")
        whole = max(self.tensors, key=lambda one: one.untyped_storage().nbytes())
        every = torch.empty(0, dtype=torch.uint8, device=whole.device)
        found = bytes(every.set_(whole.untyped_storage()).cpu().untyped_storage())
        if len(found) != self.size:
            raise CaptureError(
                "save: memory that only the device reaches, and no storage has whole"
            )
        return found

    def filled_by(self) -> tuple[str, list[int]]:
        """Return dtype and shape of a tensor that is all of it, for other readers of the file."""
        for tensor in self.tensors:
            whole = tensor.nbytes == self.size and tensor.is_contiguous()
            if whole and tensor.dtype in SAFETENSORS:
                return SAFETENSORS[tensor.dtype], list(tensor.shape)
        return "U8", [self.size]


class _Writer:
    def __init__(self, graph: CapturedGraph, modules: Mapping[str, torch.nn.Module]) -> None:
        self._content = graph._captured("save")
        self._unit = graph._run_unit()
        self._level = graph._level
        self.native = torch_library("graphs.save").graphs
        self.graph = self._content.native
        self._modules = modules
        self._tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}  # of tensors, by id
        self._keys: dict[str, None] = {}
        self._memories: list[_Memory] = []

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raises `CaptureError`, `OSError`."""
        try:
            document = self._document()
        except CaptureError:
            raise
        except RuntimeError as error:  # memory that another graph of the pool has overwritten
            raise CaptureError(f"save: {first_line(error)}") from error
        content = {
            "graph": [json.dumps(document).encode()],
            "kernels": [self._kernels()],
            "weights": self._weights(),
        }
        sections = {
            name: _container.Section(VERSIONS[name], pieces, large=name == "weights")
            for name, pieces in content.items()
        }
        _container.write(path, KIND, facts(document["device"] is not None), sections)

    def _document(self) -> dict[str, Any]:
        self._check()
        nodes = [self._node(i, row[1:5]) for i, row in enumerate(self.graph.nodes())]
        inputs, outputs = self._unit.described(self._written)
        device = self._device()
        if device is not None:
            torch.accelerator.synchronize(device)
        self._settle(nodes)
        for node in nodes:
            node["allocations"] = [self._range((False, *one)) for one in node["allocations"]]
        places = [
            [one.name, one.node, one.argument, one.op, one.variable_length]
            for one in self._content.places
        ]
        return {
            "nodes": nodes,
            "tensors": [self._tensor(tensor) for tensor in self._tensors],
            "memories": [one.described(i) for i, one in enumerate(self._memories)],
            "places": places,
            "records": [[one.op, one.slots] for one in self._content.records],
            "inputs": inputs,
            "outputs": outputs,
            "level": self._level,
            "device": device,
            "copies_to_host": self.graph.shares_host_memory,
        }

    def _check(self) -> None:
        if self._content.optimizers or self.graph.has_gradients:
            raise CaptureError(
                "save: the graph holds a step of training, whose gradients and optimizers belong to"
                " parameters of this process"
            )
        if handled := self._content.handled_operators:
            raise CaptureError(
                f"save: a handler in Python takes part in {handled[0]}, and a file holds no code of"
                " Python"
            )

    def _device(self) -> int | None:
        """Return the index of the graph's device, None for the cpu."""
        found = set(self.graph.devices)
        found |= {tensor.device.index for tensor in self._tensors if not tensor.is_cpu}
        if len(found) > 1:
            raise CaptureError("save: the graph works on several devices, and a file is for one")
        return min(found, default=None)

    def _node(self, number: int, told: tuple[str, str, str, str]) -> dict[str, Any]:
        op, scope, _, line = told
        parts = self.graph.parts(number)
        where = f"save: node {number}, {op}{f', called at {line}' if line else ''},"
        if isinstance(parts, str):
            raise CaptureError(f"{where} {parts}")
        if op.startswith(_HOST_FUNCTION):
            raise CaptureError(f"{where} calls a function of Python, and a file holds none")
        try:
            parts["arguments"] = [self._written(one) for one in parts["arguments"]]
            parts["slots"] = [[index, self._written(one)] for index, one in parts["slots"]]
        except TypeError as error:
            raise CaptureError(f"{where} has an argument that is {error}") from None
        parts["outputs"] = [[self._number(tensor), fixed] for tensor, fixed in parts["outputs"]]
        if parts["kind"] == "kernel":
            parts["key"] = self._kernel(number, where)
        file, _, rest = line.rpartition(":")
        called, _, function = rest.partition(" in ")
        return {"name": [op, scope, file, int(called or 0), function], **parts}

    def _kernel(self, number: int, where: str) -> str:
        """Return the build key of a node's kernel."""
        if number not in self._binaries:
            raise CaptureError(f"{where} runs a kernel that this process did not load by a key")
        binary = self._binaries[number]
        if not binary.prebuilt:
            self._keys[binary.key] = None
        return str(binary.key)

    @cached_property
    def _binaries(self) -> dict[int, Any]:
        return binaries_of(self.graph)

    def _written(self, value: Any) -> Any:
        return written(value, self._number)

    def _number(self, tensor: torch.Tensor) -> int:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError("a tensor that is not strided")
        known = self._numbers.setdefault(id(tensor), len(self._tensors))
        if known == len(self._tensors):
            self._tensors.append(tensor)
        return known

    def _settle(self, nodes: list[dict[str, Any]]) -> None:
        """Find the memories: what overlaps is one."""
        given, writes = self.graph.memory()
        rows: list[tuple[_Place, torch.Tensor | None, bool, bool]] = [
            ((False, *one), None, False, True) for node in nodes for one in node["allocations"]
        ]
        for tensors, *known in (
            (self._tensors, False, False), (given, True, False), (writes, False, True)
        ):  # fmt: skip
            rows += [(self.native.place_of(one), one, *known) for one in tensors]
        for (isolated, begin, size), tensor, is_given, is_written in sorted(
            rows, key=lambda row: row[0]
        ):
            if size == 0:
                continue
            last = self._memories[-1] if self._memories else None
            if last is None or last.isolated != isolated or begin >= last.end:
                last = _Memory(isolated, begin, begin)
                self._memories.append(last)
            last.end = max(last.end, begin + size)
            last.is_given |= is_given
            last.is_written |= is_written
            if tensor is not None:
                last.tensors.append(tensor)
                last.on_device |= not tensor.is_cpu
        self._starts = [(one.isolated, one.begin) for one in self._memories]
        for module, tree in self._modules.items():
            tensors = named_tensors(tree).items()
            found = [self._name(module, name, tensor.detach()) for name, tensor in tensors]
            if not any(found):
                raise CaptureError(
                    f"save: the graph reads no parameter or buffer of modules[{module!r}] that has"
                    " memory of its own"
                )

    def _name(self, module: str, name: str, tensor: torch.Tensor) -> bool:
        """Find the memory that is a module's tensor, all of it."""
        place = self.native.place_of(tensor)
        number = self._at(place)
        if number < 0 or tensor.nbytes != place[2]:
            return False
        memory = self._memories[number]
        if not memory.is_given or (memory.isolated, memory.begin, memory.size) != place:
            return False
        memory.named.append([module, name, layout(tensor)])
        return True

    def _at(self, place: _Place) -> int:
        return bisect.bisect_right(self._starts, place[:2]) - 1

    def _range(self, place: _Place) -> list[int]:
        """Return memory, offset and size."""
        if place[2] == 0:
            return [-1, 0, 0]
        number = self._at(place)
        return [number, place[1] - self._memories[number].begin, place[2]]

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        place = self._range(self.native.place_of(tensor))
        as_host = tensor.is_cpu and (place[0] < 0 or self._memories[place[0]].on_device)
        lazy = [tensor.is_conj(), tensor.is_neg()]
        return [place, as_host, *layout(tensor), *lazy]

    def _kernels(self) -> bytes:
        """Return the bundle of the graph's kernels; nothing where it has none."""
        if not self._keys:
            return b""
        from bringup.jit.store.active_cache import packed_bundle

        return packed_bundle(self._keys)

    def _weights(self) -> Iterator[bytes | memoryview]:
        """Yield the section `weights`, in the format of safetensors, each at 64 bytes."""
        header: dict[str, Any] = {}
        end = 0

        def add(name: str, dtype: str, shape: list[int], size: int) -> None:
            nonlocal end
            header[name] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [end, end := end + size],
            }

        for number, memory in enumerate(self._memories):
            if memory.has_weights:
                add(str(number), *memory.filled_by(), memory.size)
                if room := -end % _container.ALIGNMENT:  # the format has no holes
                    add(f"room.{number}", "U8", [room], room)
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % _container.ALIGNMENT)
        yield len(text).to_bytes(8, "little") + text
        for memory in self._memories:
            if memory.has_weights:
                yield memory.content()
                yield bytes(-memory.size % _container.ALIGNMENT)
