"""A C driver becomes a torch.device.

`load_driver` makes a driver torch's PrivateUse1 backend: afterwards `torch.device("npu")` works
like any other, and `torch.npu` has streams, events, random state and memory statistics. Nothing
here claims PrivateUse1 before that. `installed_drivers` says which drivers have a name.

An operator without a kernel on the device runs on the host: `set_fallback_policy` and
`fallback_policy` say which may, `fallback_report` what it cost.
"""

from __future__ import annotations

from bringup.devices._drivers import driver_library, installed_drivers
from bringup.devices._fallback import (
    FallbackAction,
    FallbackReport,
    FallbackRow,
    fallback_policy,
    fallback_report,
    set_fallback_policy,
)
from bringup.devices._load import DriverInfo, load_driver, loaded
from bringup.devices._registry import register_module_attribute

__all__ = [
    "DriverInfo",
    "FallbackAction",
    "FallbackReport",
    "FallbackRow",
    "driver_library",
    "fallback_policy",
    "fallback_report",
    "installed_drivers",
    "load_driver",
    "loaded",
    "register_module_attribute",
    "set_fallback_policy",
]
