"""A C driver becomes a torch.device.

`load_driver` makes a driver torch's PrivateUse1 backend: afterwards `torch.device("npu")` works
like any other, and `torch.npu` has streams, events, random state and memory statistics. Nothing
here claims PrivateUse1 before that. `installed_drivers` says which drivers have a name. A driver
can be written in Python first (`PythonDriver`).

An operator without a kernel on the device runs on the host: `set_fallback_policy` and
`fallback_policy` say which may, `fallback_report` what it cost. `kernel` gives an operator one,
`OperatorTable` those of a package, `pointwise_kernels` those of the table `POINTWISE`
(`bringup.ops` implements them, which is imported when they are first asked for).

`replay_trace` makes the calls of a trace (`BRINGUP_DRIVER_TRACE`) on a driver, without torch.
`sim.faults` makes the simulated NPU fail, for tests of what a program does then.
`dispatch_stubs` lists what `REGISTER_PRIVATEUSE1_DISPATCH` can register.
`explain` says which kernel an operator, a call or a tensor gets; `dispatch_table` is an operator's;
`dispatch_trace` lists the calls that a program makes.
`set_metadata` attaches a package's own facts to a tensor, `metadata` reads them.
`check_driver` tests a driver's library in processes of its own; `list_checks` says what it asks.
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
