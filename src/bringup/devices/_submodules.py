"""The submodules of `torch.<device>` (amp, graphs, memory, ...), named as CUDA's."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.profiler

from bringup import _device_attributes

_RANDOM = (
    "default_generators", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
)  # fmt: skip
_MEMORY = (
    "caching_allocator_alloc", "caching_allocator_delete", "empty_cache",
    "get_per_process_memory_fraction", "host_empty_cache", "host_memory_stats",
    "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_snapshot", "memory_stats", "memory_summary",
    "reset_accumulated_host_memory_stats", "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats", "reset_peak_memory_stats", "set_per_process_memory_fraction",
    "use_mem_pool",
)  # fmt: skip
_ROWS = (
    ("in tensors", "allocated_bytes.all"),
    ("asked for", "requested_bytes.all"),
    ("and for other streams", "active_bytes.all"),
    ("held by the allocator", "reserved_bytes.all"),
    ("free parts of segments", "inactive_split_bytes.all"),
)
_KINDS = ("current", "peak", "allocated", "freed")


def add_submodules(module: ModuleType, device: str) -> None:
    """Give the device module its submodules, importable under `torch.<device>`."""
    _add(module, "amp", _amp(device))
    _add(module, "random", {name: getattr(module, name) for name in _RANDOM})
    memory = {name: getattr(module, name) for name in _MEMORY}
    for function in (_snapshot, _dump_snapshot, _record_memory_history):
        memory[function.__name__] = functools.partial(function, module)
    _add(module, "memory", memory)
    _add(module, "profiler", _profiler())
    _add_module(module, "graphs", _Graphs(f"{module.__name__}.graphs"))
    _add(module, "_utils", {"_get_device_index": functools.partial(_device_index, module)})


def _add(module: ModuleType, name: str, members: dict[str, Any]) -> None:
    submodule = ModuleType(f"{module.__name__}.{name}")
    submodule.__dict__.update(members, __all__=sorted(n for n in members if n[0] != "_"))
    _add_module(module, name, submodule)


def _add_module(module: ModuleType, name: str, submodule: ModuleType) -> None:
    setattr(module, name, submodule)
    sys.modules[submodule.__name__] = submodule


class _Graphs(ModuleType):
    """Captured graphs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__all__ = [name for name in _device_attributes.GRAPHS if name[0] != "_"]

    def __getattr__(self, name: str) -> object:
        if name not in _device_attributes.GRAPHS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _device_attributes.resolve(name)


def _profiler() -> dict[str, Any]:
    class Profile(torch.profiler.profile):  # type: ignore[misc]
        """`torch.profiler.profile` of the host and this device, where nothing else is said."""

        def __init__(self, *, activities: Iterable[Any] | None = None, **options: Any) -> None:
            both = [
                torch.profiler.ProfilerActivity.CPU,
                torch.profiler.ProfilerActivity.PrivateUse1,
            ]
            super().__init__(activities=both if activities is None else activities, **options)

    Profile.__name__ = Profile.__qualname__ = "profile"
    names = [
        "ProfilerAction", "ProfilerActivity", "record_function", "schedule", "supported_activities",
        "tensorboard_trace_handler",
    ]  # fmt: skip
    return {"profile": Profile, **{name: getattr(torch.profiler, name) for name in names}}


def _amp(device: str) -> dict[str, Any]:
    # Classes, because users ask isinstance(scaler, torch.npu.amp.GradScaler).
    class Autocast(torch.amp.autocast):  # type: ignore[misc]
        """`torch.autocast` of this device."""

        def __init__(
            self,
            enabled: bool = True,
            dtype: torch.dtype | None = None,
            cache_enabled: bool | None = None,
        ) -> None:
            super().__init__(device, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
        """`torch.amp.GradScaler` of this device; the arguments are the same but for the device."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(device, *args, **kwargs)

    return {
        "autocast": Autocast,
        "GradScaler": GradScaler,
        "custom_fwd": functools.partial(torch.amp.custom_fwd, device_type=device),
        "custom_bwd": functools.partial(torch.amp.custom_bwd, device_type=device),
    }


def _device_index(
    module: Any,
    device: int | str | torch.device | None,
    optional: bool = False,
    allow_cpu: bool = False,
) -> int:
    """Return the index that torch.load asks for. Raises `ValueError`, `DeviceError` for none."""
    named = torch.device(device) if isinstance(device, str) else device
    if allow_cpu and isinstance(named, torch.device) and named.type == "cpu":
        return -1
    index = named.index if isinstance(named, torch.device) else named
    if index is None and not optional:
        raise ValueError(f"expected a device with an index, got {device!r}")
    return int(module._index(device))


def _snapshot(module: Any, device: int | str | torch.device | None = None) -> dict[str, Any]:
    """Return `torch.cuda.memory._snapshot`'s form, for `_memory_viz`."""
    segments = module.memory_snapshot()
    if device is not None:
        index = _device_index(module, device, optional=True)
        segments = [segment for segment in segments if segment["device"] == index]
    return {"segments": segments, "device_traces": list(module._native.device_traces())}


def _dump_snapshot(module: Any, filename: str = "dump_snapshot.pickle") -> None:
    Path(filename).write_bytes(pickle.dumps(_snapshot(module)))


def _record_memory_history(
    module: Any, enabled: str | bool | None = "all", *_: Any, max_entries: int = 1 << 20, **__: Any
) -> None:
    """Keep what tensors take and give back for `_snapshot`, without frames; None ends it."""
    module._native.record_memory_history(max_entries if enabled else None)


def memory_summary(stats: dict[str, Any], device: str, free: int, total: int) -> str:
    """Return a table of the allocator's statistics, in bytes."""
    lines = [
        f"memory of {device}: {free:,} of {total:,} bytes free on the device",
        f"{'bytes':24}" + "".join(f"{kind:>18}" for kind in _KINDS),
    ]
    for title, key in _ROWS:
        cells = (f"{stats.get(f'{key}.{kind}', 0):>18,}" for kind in _KINDS)
        lines.append(f"{title:24}" + "".join(cells))
    retries, failures = stats.get("num_alloc_retries", 0), stats.get("num_ooms", 0)
    lines.append(f"allocations tried again: {retries:,}; out of memory: {failures:,}")
    return "\n".join(lines)
