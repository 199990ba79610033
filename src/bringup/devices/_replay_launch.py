"""Kernel launches of a replay: structures made of what a trace has of them."""

from __future__ import annotations

import ctypes as c
from collections import deque
from pathlib import Path
from typing import Any

from bringup.devices import _driver_abi as abi
from bringup.devices._replay_memory import Content, Memory
from bringup.devices._trace import Call, file_sha256

_NONE, _TENSOR, _INT, _FLOAT, _STRING, _INTS, _FLOATS, _TENSORS = range(8)
_ADDRESS = 1
_LAUNCHING = frozenset({
    "launch", "graph_add_kernel", "graph_update_kernel", "launch_values", "graph_add_values",
    "graph_update_values",
})  # fmt: skip


class Launches:
    """Makes the structures of launches, and keeps them until the driver lets go of them."""

    def __init__(self, memory: Memory, handles: dict[tuple[str, int], int | None]) -> None:
        self._memory, self._handles = memory, handles
        self._kept: dict[int, Any] = {}
        self._last: list[Any] = []
        self._released: deque[int] = deque()  # by the driver, from any thread
        self._release = abi.Release(self._released.append)
        self._nothing = abi.Release(lambda _: None)
        self._lost_modules: dict[int, str] = {}
        self._lost_functions: dict[int, str] = {}

    @property
    def nothing(self) -> Any:
        return c.cast(self._nothing, c.c_void_p)

    def reason_to_leave_out(self, call: Call) -> str | None:
        """Return why a call cannot be made because its device code is not what it was; or None."""
        if call.function == "module_load":
            return self._check_module(call)
        if call.function == "module_load_data" and "payload" not in call.facts:
            reason = "a module whose bytes the trace has not"
            self._lost_modules[call.outputs.get("module", 0)] = reason
            return reason
        module = call.arguments.get("module")
        if module in self._lost_modules and call.function in {"get_function", "module_unload"}:
            reason = self._lost_modules[module]
            if call.function == "get_function":
                self._lost_functions[call.outputs.get("fn", 0)] = reason
            return reason
        if call.function not in _LAUNCHING:
            return None
        function = call.arguments["launch"]["fn"]
        if function in self._lost_functions:
            reason = self._lost_functions[function]
        elif function and ("function", function) not in self._handles:
            reason = "a kernel that no get_function gave"
        else:
            return None
        self._write_all(call.arguments["launch"], Content.UNKNOWN)
        return f"a launch of {reason}"

    def _check_module(self, call: Call) -> str | None:
        path = Path(call.arguments["library"])
        digest = file_sha256(path)
        if call.status != 0 or (digest and digest == call.facts.get("sha256")):
            return None
        what = "is gone" if not digest else "is another file now"
        reason = f"a module that cannot be loaded: {path} {what}"
        self._lost_modules[call.outputs.get("module", 0)] = reason
        return reason

    def structure(self, call: Call) -> Any:
        """Return the launch of a call; it stays until the driver releases it."""
        while self._released:
            self._kept.pop(self._released.popleft(), None)
        given = call.arguments["launch"]
        if call.was_accepted:
            self._write_all(given, self._content_after(given))
        if "values" in given:  # read before the call returns
            made, self._last = self._values(given)
        else:
            made, kept = self._blocks(given, call)
            self._kept[call.number] = (made, kept)
        return made

    def _function(self, given: dict[str, Any]) -> int | None:
        return self._handles.get(("function", given["fn"]))

    # --- launches with descriptors

    def _blocks(self, given: dict[str, Any], call: Call) -> tuple[Any, list[Any]]:
        kept: list[Any] = []
        arguments = given["args"]
        places = (c.c_void_p * max(1, len(arguments)))()
        kinds = (c.c_uint8 * max(1, len(arguments)))()
        for index, argument in enumerate(arguments):
            kinds[index], value = self._argument(argument, kept)
            kept.append(value)
            places[index] = None if value is None else c.cast(c.pointer(value), c.c_void_p)
        launch = abi.Launch(
            struct_size=c.sizeof(abi.Launch),
            nargs=len(arguments),
            args=c.cast(places, c.POINTER(c.c_void_p)),
            kinds=c.cast(kinds, c.POINTER(c.c_uint8)),
            fn=self._function(given),
            grid=given["grid"],
            name=given["name"].encode(errors="surrogateescape"),
            owner=call.number,
            release=self._release,
            work_items=given.get("work_items", 0),  # of an older trace: none
        )
        return launch, [*kept, places, kinds]

    def _argument(self, argument: dict[str, Any], kept: list[Any]) -> tuple[int, Any]:
        ((kind, value),) = argument.items()
        if kind == "tensor":
            return _TENSOR, self._tensor(value, kept)
        if kind == "int":
            return _INT, c.c_int64(value)
        if kind == "float":
            return _FLOAT, c.c_double(float(value))
        if kind == "string":
            return _STRING, c.create_string_buffer(value.encode(errors="surrogateescape"))
        if kind == "none":
            return _NONE, None
        if kind == "ints":
            return _INTS, _list((c.c_int64 * len(value))(*value), kept)
        if kind == "floats":
            return _FLOATS, _list((c.c_double * len(value))(*map(float, value)), kept)
        tensors = [self._tensor(tensor, kept) if tensor else None for tensor in value]
        kept.append(tensors)
        pointer = c.POINTER(abi.Tensor)
        filled = [pointer() if tensor is None else pointer(tensor) for tensor in tensors]
        return _TENSORS, _list((pointer * len(filled))(*filled), kept)

    def _tensor(self, given: dict[str, Any], kept: list[Any]) -> abi.Tensor:
        rank = len(given["shape"])
        shape = (c.c_int64 * max(1, rank))(*given["shape"])
        strides = (c.c_int64 * max(1, rank))(*given.get("strides", ()))
        kept += [shape, strides]
        code, bits, lanes = given["dtype"]
        return abi.Tensor(
            data=self._memory.place(given["data"]),
            device_type=given["device"][0],
            device_id=given["device"][1],
            ndim=rank,
            code=code,
            bits=bits,
            lanes=lanes,
            shape=c.cast(shape, c.POINTER(c.c_int64)),
            strides=c.cast(strides, c.POINTER(c.c_int64)),
            byte_offset=given["byte_offset"],
        )

    # --- launches with plain values

    def _values(self, given: dict[str, Any]) -> tuple[Any, list[Any]]:
        values = (abi.Value * max(1, len(given["values"])))()
        for place, value in zip(values, given["values"], strict=False):
            place.kind, place.size = value["kind"], value["size"]
            if value["kind"] == _ADDRESS:
                place.value = self._memory.place(value["address"]) or 0
            else:
                place.value = int.from_bytes(bytes.fromhex(value["bytes"]), "little")
        name = given["name"].encode(errors="surrogateescape")
        launch = abi.LaunchValues(
            struct_size=c.sizeof(abi.LaunchValues),
            nvalues=len(given["values"]),
            values=c.cast(values, c.POINTER(abi.Value)),
            fn=self._function(given),
            grid=abi.Dim3(*given["grid"]),
            block=abi.Dim3(*given["block"]),
            shared_bytes=given["shared_bytes"],
            name=name,
            work_items=abi.Dim3(*given.get("work_items", ())),
            cluster=abi.Dim3(*given.get("cluster", ())),
            flags=given.get("flags", 0),
        )
        return launch, [values, name]

    # --- what a launch does to memory

    def _content_after(self, given: dict[str, Any]) -> Content:
        """Return the content after a kernel, which may write each tensor from all of them."""
        contents = [self._memory.content(at, size) for at, size in self._spans(given)]
        return Content.UNKNOWN if Content.UNKNOWN in contents else Content.KNOWN

    def _write_all(self, given: dict[str, Any], content: Content) -> None:
        for at, size in self._spans(given):
            # How far a plain address reaches is not known: no more is claimed than its first byte.
            exact = content is Content.UNKNOWN or "values" not in given
            self._memory.write(at, size if exact else 1, content)

    def _spans(self, given: dict[str, Any]) -> list[tuple[int, int]]:
        """Return the device memory in reach of arguments: from an address to its block's end."""
        if "values" in given:
            addresses = (x["address"] for x in given["values"] if x["kind"] == _ADDRESS)
            return [(at, rest) for at in addresses if (rest := self._memory.rest(at))]
        tensors = [x["tensor"] for x in given["args"] if "tensor" in x]
        tensors += [tensor for x in given["args"] for tensor in x.get("tensors", ()) if tensor]
        return [span for tensor in tensors if (span := _span(tensor)) is not None]


def _list(items: Any, kept: list[Any]) -> abi.List:
    kept.append(items)
    return abi.List(c.cast(items, c.c_void_p), len(items))


def _span(tensor: dict[str, Any]) -> tuple[int, int] | None:
    shape, strides = tensor["shape"], tensor.get("strides", [])
    if 0 in shape or not tensor["data"]:
        return None
    _, bits, lanes = tensor["dtype"]
    last = sum((extent - 1) * max(stride, 0) for extent, stride in zip(shape, strides, strict=True))
    size = last * bits * lanes // 8 + (bits * lanes + 7) // 8
    return tensor["data"] + tensor["byte_offset"], size
