"""A C driver becomes a torch.device.

`load_driver` makes a driver torch's PrivateUse1 backend, which nothing here claims before:
`torch.device("npu")` then works like any other, and `torch.npu` has streams, random state and
memory statistics. `installed_drivers`: the names; `PythonDriver`: a driver in Python.

`set_fallback_policy`, `fallback_policy`, `fallback_report`: operators that run on the host.
`kernel`, `OperatorTable`, `pointwise_kernels`: kernels for operators (`bringup.ops` has them).

`replay_trace` makes the calls of a trace on a driver; `sim.faults` makes the simulated NPU fail;
`dispatch_stubs`, `explain`, `dispatch_table`, `dispatch_trace` say which kernel runs;
`set_metadata`, `metadata`: a package's facts of a tensor; `check_driver`, `list_checks`: a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup._device_attributes import register_module_attribute
from bringup._lazy import lazily
from bringup.devices import sim
from bringup.devices._dispatch import (
    DispatchEntry,
    DispatchTable,
    KernelKind,
    Registration,
    dispatch_table,
)
from bringup.devices._dispatch_stubs import DispatchStub, dispatch_stubs
from bringup.devices._dispatch_trace import DispatchTrace, TracedCall, dispatch_trace
from bringup.devices._driver_check import (
    CheckResult,
    DeviceDescription,
    DriverCheck,
    DriverDescription,
    KnownCheck,
    check_driver,
    describe_driver,
    list_checks,
)
from bringup.devices._driver_discovery import driver_library, installed_drivers
from bringup.devices._explain import CallExplanation, TensorExplanation, explain
from bringup.devices._external_memory import (
    PointerInfo,
    PointerKind,
    pointer_info,
    register_host_memory,
)
from bringup.devices._fallback import (
    FallbackAction,
    FallbackReport,
    FallbackRow,
    NativeRow,
    fallback_policy,
    fallback_report,
    set_fallback_policy,
)
from bringup.devices._load import DriverInfo, device_name_problem, load_driver, loaded
from bringup.devices._metadata import metadata, set_metadata
from bringup.devices._python_driver import DeviceProps, PythonDriver
from bringup.devices._replay_process import ReplayDifference, ReplayReport, replay_trace

# What a package above this one offers here, imported at first use.
if TYPE_CHECKING:
    kernel: Any
    OperatorKernel: Any
    Operator: Any
    OperatorTable: Any
    POINTWISE: Any
    pointwise_kernels: Any
else:
    __getattr__ = lazily(
        __name__,
        {
            "bringup.ops.operators.operator_kernel": "kernel OperatorKernel",
            "bringup.ops.operators.pointwise_table": "POINTWISE pointwise_kernels",
            "bringup.ops.operators.table": "Operator OperatorTable",
        },
    )

__all__ = [
    "POINTWISE", "CallExplanation", "CheckResult", "DeviceDescription", "DeviceProps",
    "DispatchEntry", "DispatchStub", "DispatchTable", "DispatchTrace", "DriverCheck",
    "DriverDescription", "DriverInfo", "FallbackAction", "FallbackReport", "FallbackRow",
    "KernelKind", "KnownCheck", "NativeRow", "Operator", "OperatorKernel", "OperatorTable",
    "PointerInfo", "PointerKind", "PythonDriver", "Registration", "ReplayDifference",
    "ReplayReport", "TensorExplanation", "TracedCall", "check_driver", "describe_driver",
    "device_name_problem", "dispatch_stubs", "dispatch_table", "dispatch_trace", "driver_library",
    "explain", "fallback_policy", "fallback_report", "installed_drivers", "kernel", "list_checks",
    "load_driver", "loaded", "metadata", "pointer_info", "pointwise_kernels",
    "register_host_memory", "register_module_attribute", "replay_trace", "set_fallback_policy",
    "set_metadata", "sim",
]  # fmt: skip
