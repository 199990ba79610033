"""Making a captured graph of the file that `save` wrote: no operator runs, nothing is traced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from bringup import _container, settings
from bringup._native import torch_library
from bringup.errors import BringupError, BundleError, first_line
from bringup.graphs._assumptions import watch_modules
from bringup.graphs._content import CapturedContent
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._inputs import Form, Inputs
from bringup.graphs._pool import GraphPool
from bringup.graphs._run import RunUnit
from bringup.graphs._saved_values import (
    KIND,
    VERSIONS,
    binaries_of,
    dtype_of,
    facts,
    layout,
    named_tensors,
    read,
    refuse_in_capture,
)
from bringup.graphs._slots import Record, SlotPlace

# What JSON of another form than `save` writes comes to, and what the builder says of its values.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError)


def load(
    path: str | os.PathLike[str],
    *,
    modules: Mapping[str, torch.nn.Module] | None = None,
    optimize: int | None = None,
) -> CapturedGraph:
    """Return the captured graph of a file that `save` wrote, in whatever process.

    Nothing of it runs before the first replay, and neither the model's code nor a compiler is
    needed: operators are found by name, so what defines them has to be imported, and kernels are in
    the file. The file is mapped, and must not change as long as the graph is there. Load files only
    of people whose programs you would run: a file holds kernels.

    Args:
        path: of the file.
        modules: what the file takes weights and buffers from by name: those that `save` was given.
        optimize: as of `CapturedGraph`; as it was saved by default.

    Returns:
        A graph that replays, runs and is updated as the saved one; its results are zeros until it
        is replayed. Results and inputs of other classes than list, tuple and dict are dicts.

    Raises:
        BundleError: it is no such file, it is damaged or for another torch, processor, device or
            driver, an operator is not defined here, or `modules` are not those that it wants.
        CaptureError: a capture is under way on this thread.
        OSError: it cannot be read.

    Examples:
        >>> import tempfile
        >>> from bringup import graphs
        >>> graph, model, x = graphs.CapturedGraph(), torch.nn.Linear(2, 1), torch.ones(1, 2)
        >>> with torch.no_grad(), graphs.capture(graph):
        ...     y = model(x)
        >>> path = tempfile.mkdtemp() + "/linear.bgraph"
        >>> graphs.save(graph, path, modules={"model": model})
        >>> loaded = graphs.load(path, modules={"model": model})
        >>> torch.equal(loaded.run(x), y)
        True
    """
    refuse_in_capture("load")
    graph = CapturedGraph(optimize)
    sections = _container.read(path, KIND, facts(True), VERSIONS)
    node = ""
    try:
        document = json.loads(bytes(sections["graph"]))
        reader = _Reader(document, sections["weights"], modules or {}, os.fspath(path))
        if len(sections["kernels"]) > 0:
            reader.take_kernels(bytes(sections["kernels"]))
        for number, row in enumerate(document["nodes"]):
            node = f"node {number}, {row['name'][0]}: "
            reader.add(row)
        node = ""
        if optimize is None:
            graph = CapturedGraph(document["level"])
        graph._content, graph._unit = reader.finish(graph._level)
    except BundleError:
        raise
    except (*_WRONG, BringupError, RecursionError, MemoryError) as error:
        raise BundleError(f"{path} cannot be loaded: {node}{first_line(error)}") from error
    if graph._level == 2:
        from bringup.graphs._fuse_build import fuse

        graph._content.fusing = fuse(graph._content.native)
    return graph


class _Reader:
    def __init__(
        self,
        document: dict[str, Any],
        weights: memoryview,
        modules: Mapping[str, torch.nn.Module],
        path: str,
    ) -> None:
        self._document = document
        self._modules = modules
        self._path = path
        self._pool = GraphPool()
        self._native = torch_library("graphs.load").graphs
        device = document["device"]
        self._device = None if device is None else torch.device(facts(True)["device"], int(device))
        self._builder = self._native.GraphBuilder(self._pool._native, f"loaded from {path}", device)
        self._rows = document["memories"]
        self._check_size()
        self._weights = _Weights(weights)
        self._memories = [self._memory(row) for row in self._rows]
        used = {module for row in self._rows for module, *_ in row.get("named", ())}
        if unused := modules.keys() - used:
            raise BundleError(f"{path} takes nothing of modules[{min(unused)!r}]")
        self._parts: dict[tuple[int, int, int], torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._owned: list[torch.Tensor] = []  # what run takes and gives, in memory that is written

    def _check_size(self) -> None:
        wanted = sum(row["size"] for row in self._rows)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if any(row["size"] <= 0 for row in self._rows) or wanted > there:
            raise BundleError(
                f"{self._path} wants {wanted} bytes of memory, and this machine has {there}"
            )

    def take_kernels(self, content: bytes) -> None:
        """Take the kernels into the cache."""
        from bringup.jit.store.active_cache import take_bundle

        take_bundle(content, self._path)

    def _memory(self, row: dict[str, Any]) -> torch.Tensor:
        """Return the bytes of one memory."""
        if "named" in row:
            return self._of_modules(row)
        if "weights" not in row:
            return self._builder.allocate(row["size"], row["on_device"])
        content = self._weights.bytes_of(row["weights"], row["size"])
        return content.to(self._device) if row["on_device"] else content

    def _of_modules(self, row: dict[str, Any]) -> torch.Tensor:
        """Return the tensor that modules have by the names of one memory."""
        tensors = [self._named(row, *one) for one in row["named"]]
        if any(tensor.data_ptr() != tensors[0].data_ptr() for tensor in tensors):
            names = " and ".join(repr(name) for _, name, _ in row["named"])
            raise BundleError(f"{self._path} takes {names} as one tensor, and they are several")
        return tensors[0]

    def _named(self, row: dict[str, Any], key: str, name: str, wanted: list[Any]) -> torch.Tensor:
        module = self._modules.get(key)
        if module is None:
            raise BundleError(
                f"{self._path} has not the weights of {key!r}: give"
                f" load(..., modules={{{key!r}: ...}})"
            )
        found = named_tensors(module).get(name)
        where = f"{name!r} of modules[{key!r}]"
        if found is None:
            raise BundleError(f"{self._path} takes {where}, which is not there")
        tensor, like = found.detach(), layout(found)
        whole = tensor.untyped_storage().nbytes() == row["size"]
        if like != wanted or not whole or tensor.is_cpu is row["on_device"]:
            raise BundleError(
                f"{self._path} takes {where} as {' '.join(map(str, wanted))} with memory of"
                f" its own, and it is {' '.join(map(str, like))} on {tensor.device}"
            )
        return tensor

    def _is_own(self, memory: int) -> bool:
        """Return whether the graph alone has a memory, or it is none (-1)."""
        return memory < 0 or not {"weights", "named"} & self._rows[memory].keys()

    def _part(self, place: list[int]) -> tuple[torch.Tensor, int]:
        """Return the memory whose storage a node's tensor has, and where in it that begins."""
        number, offset, size = place
        if not self._is_own(number):
            return self._memories[number], offset
        key = (number, offset, size)
        if key not in self._parts:
            self._parts[key] = self._native.part(self._memories[number], offset, size)
        return self._parts[key], 0

    def _host_memory(self, number: int) -> torch.Tensor:
        if number < 0:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        return self._builder.host_view(self._memories[number])

    def _made(self, number: int, *, owns: bool = False) -> torch.Tensor:
        """Return a tensor; one that `owns` keeps the graph's memory."""
        place, as_host, name, sizes, strides, offset, *lazy = self._document["tensors"][number]
        dtype = dtype_of(name)
        if place[0] < 0:
            device = "cpu" if as_host else self._device
            memory, begin = torch.empty(0, dtype=torch.uint8, device=device), 0
        elif owns:
            memory, begin = self._memories[place[0]], place[1]
        else:
            memory, begin = self._part(place)
        if begin % dtype.itemsize:
            raise ValueError("a tensor between two elements")
        begin = offset + begin // dtype.itemsize
        return self._native.view(memory, dtype, sizes, strides, begin, *lazy)

    def _tensor(self, number: int) -> torch.Tensor:
        """Return a tensor as nodes have it."""
        if number not in self._tensors:
            found = self._made(number)
            is_view = self._document["tensors"][number][1]
            self._tensors[number] = self._builder.host_view(found) if is_view else found
        return self._tensors[number]

    def _given(self, number: int) -> torch.Tensor:
        """Return a tensor that run takes or gives."""
        tensor = self._made(number, owns=True)
        memory = self._document["tensors"][number][0][0]
        if memory >= 0 and (self._is_own(memory) or self._rows[memory]["written"]):
            self._owned.append(tensor)
        return tensor

    def _used(self, op: str, number: int) -> torch.Tensor:
        """Return a tensor that a node has, and tell of memory that is not the graph's."""
        memory = self._document["tensors"][number][0][0]
        if not self._is_own(memory):
            self._builder.use(self._memories[memory], op)
        return self._tensor(number)

    def add(self, row: dict[str, Any]) -> None:
        """Add a node."""
        kind, name = row["kind"], tuple(row["name"])
        used = self._tensor if kind == "constant" else partial(self._used, name[0])
        self._builder.add(
            name,
            kind,
            row["operator"] and tuple(row["operator"]),
            [read(one, used) for one in row["arguments"]],
            [(used(one), bool(fixed)) for one, fixed in row["outputs"]],
            [(index, read(one, self._tensor)) for index, one in row["slots"]],
            [(self._host_memory(number), *at) for number, *at in row["allocations"]],
            bool(row["updatable"]),
            row["target"],
        )

    def finish(self, level: int) -> tuple[CapturedContent, RunUnit]:
        """Return the graph, and what run takes and gives."""
        document = self._document
        given = document["inputs"]
        values = read(given.pop("values"), self._given)
        kept = {str(name): str(why) for name, why in given.pop("kept").items()}
        outputs = read(document["outputs"], self._given)
        watch = self._builder.watch
        rows = zip(self._memories, self._rows, strict=True)
        written = [memory for memory, row in rows if row["written"]] + self._owned
        native = self._builder.finish(
            written, bool(document["copies_to_host"]), level, settings.graph_verify() or 0
        )
        watch_modules(watch, (), self._modules.values())
        inputs = Inputs(Form(**given), values)
        inputs.kept = kept
        unit = RunUnit.of_file(inputs, outputs, native)
        unit.watch_inputs(watch)
        self._check_kernels(native)
        places = [SlotPlace(*row) for row in document["places"]]
        for place in places:
            if place.argument not in {row[0] for row in native.host_values(place.node)}:
                raise ValueError(f"the slot {place.name} is no argument that an update writes")
        records = [Record(op, slots) for op, slots in document["records"]]
        content = CapturedContent(native, watch, (), (), self._pool, named=(places, records))
        if self._device is not None:  # of its memory zeros and weights
            torch.accelerator.synchronize(self._device)
        return content, unit

    def _check_kernels(self, native: Any) -> None:
        """Require that the kernels are those that the graph was captured with."""
        keys = {n: row["key"] for n, row in enumerate(self._document["nodes"]) if "key" in row}
        if not keys:
            return
        binaries = binaries_of(native)
        for number, key in keys.items():
            if number not in binaries or binaries[number].key != key:
                op = self._document["nodes"][number]["name"][0]
                raise BundleError(
                    f"{self._path} was saved with another kernel of {op} than is defined here:"
                    " its source or its compiler's options differ"
                )


class _Weights:
    """The section `weights`, in the format of safetensors."""

    def __init__(self, section: memoryview) -> None:
        size = int.from_bytes(section[:8], "little")
        self._rows = json.loads(bytes(section[8 : 8 + size]))
        self._data = section[8 + size :]

    def bytes_of(self, name: str, size: int) -> torch.Tensor:
        """Return the bytes of one tensor, where they lie."""
        begin, end = self._rows[name]["data_offsets"]
        if not 0 <= begin < end <= len(self._data) or end - begin != size:
            raise ValueError(f"the weights {name!r} are not where they should be")
        return torch.frombuffer(self._data[begin:end], dtype=torch.uint8)
