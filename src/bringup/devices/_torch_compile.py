"""What torch.compile has to know of a device: its interface for Dynamo, and that Inductor, which
generates code for devices that it knows, has none for this one.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from bringup._after_import import after_import
from bringup.errors import DeviceError


def register_for_compilers(name: str, module: Any) -> None:
    """Tell Dynamo and Inductor of the device when they are imported; nothing imports them here.

    Args:
        name: of the device.
        module: its `torch.<name>`.
    """
    after_import("torch._dynamo.device_interface", partial(_register_interface, name, module))
    after_import("torch._inductor.codegen.common", partial(_refuse_code_generation, name))


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
        **{
            function: getattr(module, function)
            for function in (
                "current_device",
                "set_device",
                "device_count",
                "is_available",
                "stream",
                "current_stream",
                "set_stream",
                "synchronize",
                "memory_allocated",
                "device",
            )
        },
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


def _refuse_code_generation(name: str) -> None:
    common = importlib.import_module("torch._inductor.codegen.common")
    if common.get_scheduling_for_device(name) is not None:
        return  # other code generates code for it

    class NoCode:
        """Inductor's scheduling and wrapper of the device, whichever it asks for first."""

        supports_caching = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.create()

        @staticmethod
        def create(*args: Any, **kwargs: Any) -> None:
            raise DeviceError(
                f"Inductor generates no code for device {name!r}: compile with"
                " torch.compile(..., backend='bringup'), which runs the device's kernels and fuses"
                " by passes, or with backend='aot_eager'; a vendor's code generator is registered"
                " by torch._inductor.codegen.common.register_backend_for_device"
            )

    common.register_backend_for_device(name, NoCode, NoCode, NoCode, NoCode)
    common.register_device_op_overrides(name, common.DeviceOpOverrides())
