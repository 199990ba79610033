"""What Inductor knows of a driver's device; the generator is imported with the first graph."""

from __future__ import annotations

import importlib
from typing import Any


def register(device_type: str) -> None:
    """Register the code generator for a device, unless other code generates code for it."""
    common: Any = importlib.import_module("torch._inductor.codegen.common")
    if common.get_scheduling_for_device(device_type) is not None:
        return
    fallback = importlib.import_module("bringup.compiler.inductor.fallback")

    class Scheduling:
        """Inductor asks for a class; the one that it gets objects of is imported with the first."""

        def __new__(cls, scheduler: Any) -> Any:
            from bringup.compiler.inductor.scheduling import LoopScheduling

            return LoopScheduling(scheduler, device_type)

    common.register_backend_for_device(
        device_type,
        Scheduling,
        _Wrapper,
        device_custom_pass=fallback.EagerNodes(device_type),
    )
    common.register_device_op_overrides(
        device_type, _lines_for(common.DeviceOpOverrides, device_type)
    )
    from bringup._after_import import after_import

    def decide() -> None:
        from bringup.compiler.inductor import launch, torch_private

        torch_private.keep_layouts_of(device_type)
        torch_private.replay_calls_of(device_type)
        torch_private.compute_once_on(device_type, launch.has_lanes)

    after_import("torch._inductor.compile_fx", decide)


class _Wrapper:
    """Inductor's wrapper for Python, imported when it is asked for."""

    supports_caching = True

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any:
        from bringup.compiler.inductor.scheduling import Wrapper

        return Wrapper.create(*args, **kwargs)


def _lines_for(base: Any, device_type: str) -> Any:
    """Return the lines of a wrapper that have to do with a device."""
    module = f"torch.{device_type}"

    class Lines(base):  # type: ignore[misc]
        def import_get_raw_stream_as(self, name: str) -> str:
            return f"def {name}(index): return {module}.current_stream(index).native_handle"

        def set_device(self, device_idx: int) -> str:
            return f"{module}.set_device({device_idx})"

        def synchronize(self) -> str:
            return f"{module}.synchronize()"

        def device_guard(self, device_idx: int) -> str:
            return f"{module}.device({device_idx})"

        def current_stream(self) -> str:
            return f"{module}.current_stream()"

    return Lines()
