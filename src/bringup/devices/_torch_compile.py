"""A device's interface for Dynamo, and who generates code for it in Inductor."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from bringup._after_import import after_import
from bringup._device_attributes import register_code_generator

_SHARED = (
    "current_device set_device device_count is_available stream current_stream set_stream "
    "synchronize memory_allocated device"
)


def register_for_compilers(name: str, module: Any) -> None:
    """Tell Dynamo and Inductor of the device and its `module` once they are imported by others."""
    after_import("torch._dynamo.device_interface", partial(_register_interface, name, module))
    after_import("torch._inductor.codegen.common", partial(register_code_generator, name))


def _register_interface(name: str, module: Any) -> None:
    dynamo = importlib.import_module("torch._dynamo.device_interface")
    interface = _interface(dynamo.DeviceInterface, name, module)
    dynamo.register_interface_for_device(name, interface)
    for index in range(module.device_count()):
        dynamo.register_interface_for_device(f"{name}:{index}", interface)


def _interface(base: Any, name: str, module: Any) -> Any:
    """Return a DeviceInterface whose static functions are those of `torch.<name>`."""
    worker = {
        function: staticmethod(getattr(module, function))
        for function in ("set_device", "current_device", "get_device_properties")
    }

    def exchange_device(device: int) -> int:
        former: int = module.current_device()
        if device >= 0:  # torch's "no device" leaves it as it is
            module.set_device(device)
        return former

    def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        module.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    functions: dict[str, Any] = {
        **{function: getattr(module, function) for function in _SHARED.split()},
        "exchange_device": exchange_device,
        "maybe_exchange_device": exchange_device,
        "_set_stream_by_id": set_stream_by_id,
        "get_raw_stream": lambda index: module.current_stream(index).native_handle,
        "get_compute_capability": lambda device=None: module.get_device_properties(device).arch,
        "is_bf16_supported": lambda including_emulation=False: module.is_bf16_supported(),
        "is_dtype_supported": lambda dtype, including_emulation=False: (
            dtype in module.get_device_capability()["supported_dtypes"]
        ),
    }
    members = {function: staticmethod(called) for function, called in functions.items()}
    return type(
        f"{name.capitalize()}Interface",
        (base,),
        {
            **members,
            "Event": torch.Event,
            "Stream": torch.Stream,
            "Worker": type("Worker", (), worker),
        },
    )
