"""torch.distributed on a driver's device: the backend `bringup`, by the driver or gloo, registered
when `torch.distributed` is imported. Its native module is loaded with the first group.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

from bringup import _native, settings
from bringup._after_import import after_import
from bringup._settings import torchrun_restarts
from bringup.errors import NativeLibraryError

BACKEND = "bringup"


def register(name: str) -> None:
    """Offer the backend for the device of this name, now or when torch.distributed is imported."""
    for module, action in (
        ("torch.distributed.distributed_c10d", _register),
        ("torch.nn.parallel.distributed", _allow_bfloat16_hooks),
    ):
        after_import(module, functools.partial(action, name))


def is_pending(tensor: Any) -> bool:
    """Return whether a collective by gloo has yet to write the tensor's memory."""
    if _module.cache_info().currsize == 0:
        return False
    torch: Any = importlib.import_module("torch")
    has_memory = torch._C._has_storage(tensor)
    return has_memory and bool(_module().is_pending(tensor.untyped_storage()._cdata))


def _register(name: str) -> None:
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    if not c10d.is_gloo_available():
        return
    c10d.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[name])
    _complete_defaults(c10d, name)


def _complete_defaults(c10d: Any, name: str) -> None:
    """Give a group without a named backend one for tensors on cpu too, and each its default.

    For the first torch takes the accelerator's alone, and calls gloo the group's default, which DDP
    asks for; with "cpu:gloo,npu:bringup" it finds none.
    """
    initialise, make_group = c10d.BackendConfig.__init__, c10d._new_process_group_helper

    @functools.wraps(initialise)
    def with_cpu(self: Any, backend: Any) -> None:
        initialise(self, backend)
        chosen = self.device_backend_map
        if str(backend) == c10d.Backend.UNDEFINED and chosen.get(name) == BACKEND:
            self.device_backend_map = {"cpu": c10d.Backend(c10d.Backend.GLOO), **chosen}

    @functools.wraps(make_group)
    def with_default(
        size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        there = getattr(kwargs.get("device_id"), "type", "") == name
        if there and name not in c10d.BackendConfig(backend).get_device_backend_map():
            kwargs["device_id"] = None  # a group of gloo alone cannot have it
        if restarts := torchrun_restarts():
            # torchrun keeps its store, with the addresses of processes that have ended.
            args = (c10d.PrefixStore(f"restart {restarts}", args[0]), *args[1:])
        group, store = made = make_group(size, rank, ranks, backend, *args, **kwargs)
        if store is not None and name in (device.type for device in group._device_types):
            group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return made

    c10d.BackendConfig.__init__ = with_cpu
    c10d._new_process_group_helper = with_default


def _allow_bfloat16_hooks(name: str) -> None:
    """Let DDP take the hooks that torch knows NCCL and XCCL to sum bfloat16 for."""
    parallel: Any = importlib.import_module("torch.nn.parallel.distributed")
    check = parallel.DistributedDataParallel._check_comm_hook

    @functools.wraps(check)
    def check_hook(self: Any, hook: Any) -> Any:
        if self.device_type == name and getattr(hook, "__name__", "").startswith("bf16_compress"):

            def checked(state: Any, bucket: Any) -> Any:
                return hook(state, bucket)

            checked.__annotations__ = hook.__annotations__
            return check(self, checked)  # which knows these hooks by their names
        return check(self, hook)

    parallel.DistributedDataParallel._check_comm_hook = check_hook


def _create(asked: Any, options: Any) -> Any:
    """Return the backend of one group, as torch's extended creators do."""
    native = _module()
    chosen = native.Options(asked.timeout) if options is None else options
    if not isinstance(chosen, native.Options):
        raise TypeError(
            f"pg_options of backend {BACKEND!r}: expected bringup's own or None, got"
            f" {type(options).__name__}"
        )
    chosen.group_name = asked.group_id
    chosen.global_ranks_in_group = list(asked.global_ranks_in_group)
    ranks = asked.group_rank, asked.group_size
    backend = native.Backend(asked.store, *ranks, chosen, _gloo, settings.collectives())
    backend._set_sequence_number_for_group()
    return backend


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    return c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)


@functools.cache
def _module() -> types.ModuleType:
    library = _native.torch_library("torch.distributed on a device")
    folder = Path(str(library.__file__)).parent
    path = next(folder.glob("_distributed*.so"), None)
    spec = path and importlib.util.spec_from_file_location("_distributed", path)
    if not spec or spec.loader is None:
        raise NativeLibraryError(
            f"the native module of torch.distributed is not in {folder}: reinstall bringup"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    devices = library.devices
    waits = devices.waits_in_place_of_events()
    module.use_driver(devices.driver_table(), waits, devices.host_sees_memory())
    atexit.register(module.end_all)
    return module
