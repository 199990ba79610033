"""Loading a driver: finding its library, checking it, and making it torch's PrivateUse1 backend."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import re
import time
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from bringup import _autoload, _native, settings
from bringup._after_import import after_import
from bringup._settings import FLOAT64_POLICIES, inherited
from bringup.devices import _dispatch_trace, _fallback
from bringup.devices._driver_discovery import driver_library
from bringup.devices._probe import Probed, require_probed, require_same
from bringup.devices._python_driver import PythonDriver
from bringup.errors import DriverError

Float64Policy = Literal["error", "warn", "cpu"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_AUTOGRAD_OBJECT = "context"  # what torch.autograd.graph calls the object it keeps for a backward
_RELEASE_SECONDS = 5.0
_OWNERS = {"npu": "torch_npu", "ocl": "pytorch_dlprim"}  # of names that drivers have, too


@dataclass(frozen=True)
class DriverInfo:
    """A loaded driver.

    Attributes:
        device_name: what torch calls its device, e.g. "npu".
        path: its shared library.
        description: what the driver says of itself.
        device_count: number of devices.
        host_visible: whether the host reaches device memory; the fallback copies nothing then.
        downcast_float64: what becomes of float64 tensors where a device has none.
        takes_plain_values: whether its code is not the host's, and gets addresses and numbers: the
            form of the kernels that `devices.kernel` writes entries for.
    """

    device_name: str
    path: Path
    description: str
    device_count: int
    host_visible: bool
    downcast_float64: Float64Policy
    takes_plain_values: bool = False


_loaded: DriverInfo | None = None
_source: Path | PythonDriver | None = None  # what it was loaded from


def loaded() -> DriverInfo | None:
    """Return the driver that `load_driver` loaded in this process, or None."""
    return _loaded


def load_driver(
    driver: str | Path | PythonDriver | None = None,
    name: str | None = None,
    *,
    downcast_float64: Float64Policy | None = None,
) -> DriverInfo:
    """Make a driver torch's PrivateUse1 backend, so that `torch.device(name)` exists; return what
    was loaded, also where it is loaded already.

    Args:
        driver: the path of a driver's shared library, or a name: "sim" (the simulated NPU), one on
            `BRINGUP_DRIVER_PATH`, or that of an entry point in the group `bringup.drivers`; an
            object of a class made from `PythonDriver`; None for the setting `BRINGUP_DRIVER`.
        name: what torch shall call the device; None for the name that the driver gives.
        downcast_float64: what becomes of float64 and complex128 tensors on a device without them.
            "error": TypeError. "warn": they are float32 and complex64, with a warning. "cpu": they
            are on cpu, with a warning. None for the setting `BRINGUP_DOWNCAST_FLOAT64`.

    Raises:
        DriverError: the library cannot be loaded or breaks the contract of `bringup/driver.h`, as
            far as a short test in another process sees (`BRINGUP_DRIVER_PROBE`) and at once; the
            device name cannot be used, another driver is loaded, or another package owns
            PrivateUse1, or `downcast_float64` is none of the three.

    Examples:
        >>> from bringup import devices
        >>> devices.load_driver("sim").device_name
        'npu'
        >>> torch.ones(2, device="npu").sum().item()
        2.0
    """
    global _loaded, _source
    source = driver if isinstance(driver, PythonDriver) else _library(driver)
    with _autoload.paused():  # torch is imported here, and this call says what is loaded
        native = _native.torch_library("devices.load_driver").devices
    if _loaded is not None:
        info = _same_or_refuse(_loaded, source, name, downcast_float64)
        native.restore_kit_kernels()
        return info
    _require_free_backend()
    policy = _float64_policy(downcast_float64)
    trace_to = settings.dispatch_trace()
    native.set_wait_limit(settings.wait_timeout(), settings.wait_abort())
    asked = settings.driver_trace()
    if asked is not None:
        native.set_driver_trace(str(asked.file), asked.payload, asked.limit or 0)
    info = _open(native, source, name, policy)
    native.set_float64_policy(getattr(native.Float64Policy, policy))
    _install(native, info)
    _loaded, _source = info, source
    _warn_of_allocator_options(info.device_name)
    _dispatch_trace.trace_process(trace_to)
    return info


def _warn_of_allocator_options(device_name: str) -> None:
    asked = inherited(f"PYTORCH_{device_name.upper()}_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    for variable, options in asked.items():
        if options.strip():
            warnings.warn(
                f"{variable}={options} changes nothing on device {device_name!r}: its allocator"
                " has no options, and drivers have no memory that a segment could grow into",
                RuntimeWarning,
                stacklevel=3,
            )


def _open(
    native: ModuleType, source: Path | PythonDriver, name: str | None, policy: Float64Policy
) -> DriverInfo:
    """Open a driver that is still to be installed; refused, it is closed again."""
    path = source.path if isinstance(source, PythonDriver) else source
    probed = None if isinstance(source, PythonDriver) else require_probed(source)
    try:
        if isinstance(source, PythonDriver):
            facts = native.open_driver_table(source.table_address(), str(path))
        else:
            facts = native.open_driver(str(path))
    except RuntimeError as error:
        raise DriverError(f"{error}") from None
    if not isinstance(source, PythonDriver):
        told = (facts["driver_version"], facts["host_visible_memory"], facts["functions"])
        require_same(source, probed, Probed(*told))
    try:
        device_name = _checked_name(facts["device_name"] if name is None else name, path)
    except DriverError:
        native.close_driver()
        raise
    return DriverInfo(
        device_name=device_name,
        path=path,
        description=facts["description"],
        device_count=facts["device_count"],
        host_visible=facts["host_visible"],
        downcast_float64=policy,
        takes_plain_values=facts["takes_plain_values"],
    )


def _float64_policy(given: str | None) -> Float64Policy:
    policy = settings.downcast_float64() if given is None else given
    if policy not in FLOAT64_POLICIES:
        raise DriverError(f"downcast_float64={policy!r}: expected 'error', 'warn' or 'cpu'")
    return cast(Float64Policy, policy)


def _same_or_refuse(
    info: DriverInfo, source: Path | PythonDriver, name: str | None, downcast_float64: str | None
) -> DriverInfo:
    path = source.path if isinstance(source, PythonDriver) else source
    if source != _source:
        raise DriverError(
            f"the driver {info.path} is already loaded as device {info.device_name!r},"
            f" so {path} cannot be: torch has one PrivateUse1 device a process"
        )
    if name is not None and name != info.device_name:
        raise DriverError(
            f"the driver {path} is already loaded as device {info.device_name!r},"
            f" so it cannot become {name!r}"
        )
    if downcast_float64 is not None and downcast_float64 != info.downcast_float64:
        raise DriverError(
            f"the driver {path} is already loaded with"
            f" downcast_float64={info.downcast_float64!r}, so it cannot be {downcast_float64!r}"
        )
    return info


def _require_free_backend() -> None:
    torch = importlib.import_module("torch")
    owner = torch._C._get_privateuse1_backend_name()
    if owner != "privateuseone":
        raise DriverError(
            f"torch's PrivateUse1 device is already {owner!r}, registered by another package"
            f"{f', as {_OWNERS[owner]} does' if owner in _OWNERS else ''}:"
            " only one can own it. jit, ops, passes and graphs on cpu work all the same; to load a"
            " driver, start a process without that package (TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps"
            " backends from loading themselves)"
        )


def device_name_problem(name: str) -> str:
    """Return why torch cannot call a device `name`, or "". Imports torch."""
    torch = importlib.import_module("torch")
    if _NAME.fullmatch(name) is None:
        return "expected lower case letters, digits and underscores, beginning with a letter"
    if name.startswith(("cpu", "cuda")):
        return "torch cannot load tensors of a device whose name starts with 'cpu' or 'cuda'"
    if hasattr(torch, name):
        return f"torch.{name} already exists, choose another"
    try:
        torch.device(name)
    except RuntimeError:
        return ""
    return "torch has a device of that name, choose another"


def _checked_name(name: str, path: Path) -> str:
    if problem := device_name_problem(name):
        how = " with load_driver(..., name=...)" if problem.endswith("another") else ""
        raise DriverError(f"the driver {path} cannot be device {name!r}: {problem}{how}")
    return name


def _receive(path: str, name: str, *ticket: Any) -> Any:
    """Return a storage that another process sent, whose driver this is."""
    load_driver(path, name)
    from bringup.devices import _shared_memory

    return _shared_memory.open_storage(name, *ticket)


def _install(native: ModuleType, info: DriverInfo) -> None:
    name = info.device_name
    torch = importlib.import_module("torch")
    try:
        late: bool = native.install_driver()
    except RuntimeError as error:
        native.close_driver()  # so that another call can open it
        raise DriverError(f"{error}") from None
    native.set_launch_blocking(settings.launch_blocking())
    _fallback.apply_setting()
    torch.utils.rename_privateuse1_backend(name)
    # Imported here: the module imports torch, which `import bringup.devices` does not.
    from bringup.devices import (
        _tensor_sharing,
        _torch_compile,
        _torch_module,
        _torch_patches,
        distributed,
    )

    module = _torch_module.DeviceModule(name)
    torch._register_device_module(name, module)
    _torch_compile.register_for_compilers(name, module)
    _native.torch_library("a device").graphs.register_accelerator_graph(name)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _name_dlpack_device(torch, name)
    _print_without_float64(torch, name, module)
    _tensor_sharing.hand_over(name, functools.partial(_receive, str(info.path), name))
    _torch_patches.complete(name)
    distributed.register(name)
    atexit.register(_drain, native, name)
    after_import("torch._functorch.partitioners", functools.partial(_offer_random_state, name))
    if late:
        _await_autograd_threads(native, name)


def _name_dlpack_device(torch: ModuleType, name: str) -> None:
    """Let `Tensor.__dlpack_device__` know a renamed PrivateUse1 device by its name."""
    original = torch.Tensor.__dlpack_device__
    device_type = importlib.import_module("torch.utils.dlpack").DLDeviceType.kDLExtDev

    @functools.wraps(original)
    def dlpack_device(self: Any) -> tuple[Any, int]:
        if self.device.type != name or torch.overrides.has_torch_function_unary(self):
            return original(self)  # type: ignore[no-any-return]
        return device_type, self.device.index

    torch.Tensor.__dlpack_device__ = dlpack_device


def _print_without_float64(torch: ModuleType, name: str, module: Any) -> None:
    """Print tensors on a device without float64, in which torch formats numbers."""
    printing: Any = importlib.import_module("torch._tensor_str")
    original = printing.tensor_totype

    @functools.wraps(original)
    def tensor_totype(tensor: Any) -> Any:
        there = tensor.device.type == name
        if there and torch.float64 not in module.get_device_properties(tensor.device).dtypes:
            return tensor.float()
        return original(tensor)

    printing.tensor_totype = tensor_totype


def _offer_random_state(name: str) -> None:
    """Let a compiled forward and its recomputation draw the same numbers on this device."""
    utils = importlib.import_module("torch._functorch._aot_autograd.utils")
    utils.register_graphsafe_rng_device_type(name)
    prims: Any = importlib.import_module("torch._prims.rng_prims")
    fakes = importlib.import_module("torch._higher_order_ops.utils").registered_hop_fake_fns
    torch = importlib.import_module("torch")
    module = torch.get_device_module(name)

    def saved(op: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return module.get_rng_state(), op(*args, **kwargs)

    def run_with(state: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        now = module.get_rng_state()
        module.set_rng_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            module.set_rng_state(now)

    def here_or(former: Any, ours: Any, first: int) -> Any:
        def chosen(*args: Any, **kwargs: Any) -> Any:
            is_ours = prims.get_device(args[first:], kwargs) == name
            return (ours if is_ours else former)(*args, **kwargs)

        return chosen

    keys = torch._C.DispatchKey
    for called, ours, first in (
        (prims.run_and_save_rng_state, saved, 1),
        (prims.run_with_rng_state, run_with, 2),
    ):
        called.py_impl(keys.PrivateUse1)(ours)
        called.py_kernels[keys.BackendSelect] = here_or(
            called.py_kernels[keys.BackendSelect], ours, first
        )
        called._dispatch_cache.clear()
    fake = fakes[prims.run_and_save_rng_state]
    fakes[prims.run_and_save_rng_state] = here_or(fake, saved, 1)


def _await_autograd_threads(native: ModuleType, name: str) -> None:
    """Let autograd's new threads take the GIL once: a first time at shutdown aborts."""
    torch = importlib.import_module("torch")
    for index in range(native.device_count()):
        leaf = torch.ones((), device=f"{name}:{index}", requires_grad=True)
        with torch.enable_grad():
            leaf.clone().backward()


class _Mark:
    """Something whose end can be seen."""


def _await_autograd_release(native: ModuleType, name: str) -> None:
    """Wait until autograd's threads hold no Python object.

    backward() returns before the device's thread released the graph, for which it takes the GIL,
    and at shutdown that aborts. It releases one graph before the next, so one is run and watched.
    """
    if not _has_autograd_threads():
        return
    torch = importlib.import_module("torch")
    for index in range(native.device_count()):
        leaf = torch.ones((), device=f"{name}:{index}", requires_grad=True)
        with torch.enable_grad():
            root = leaf.clone()
        mark = _Mark()
        torch._C._stash_obj_in_tls(_AUTOGRAD_OBJECT, mark)
        torch.autograd.Variable._execution_engine.run_backward(
            (root,), (torch.ones_like(root),), False, False, (leaf,), False, False
        )
        torch._C._stash_obj_in_tls(_AUTOGRAD_OBJECT, None)
        watched = weakref.ref(mark)
        del mark
        deadline = time.monotonic() + _RELEASE_SECONDS
        while watched() is not None and time.monotonic() < deadline:
            time.sleep(0.0001)


def _has_autograd_threads() -> bool:
    """Return whether a backward ran for a device, by torch's names of its threads."""
    for comm in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread may just have ended
            if comm.read_text().startswith("pt_autograd"):
                return True
    return False


def _drain(native: ModuleType, name: str) -> None:
    """Wait while Python still runs (host functions need it), then end the driver."""
    if native.in_forked_child():
        return
    try:
        _await_autograd_release(native, name)
    except RuntimeError as error:  # of a device that is lost, say: nothing is to be waited for
        _warn(f"device {name!r} failed while the process ended: {error}")
    for device in range(native.device_count()):
        status, message = native.synchronize(device)
        if status != 0:
            _warn(f"work on device '{name}:{device}' failed and its result was not read: {message}")
    status, message = native.shut_down_driver()
    if status != 0:
        _warn(f"the driver of device '{name}' did not shut down: {message}")


def _warn(words: str) -> None:
    warnings.warn(words, RuntimeWarning, stacklevel=2)


def _library(driver: str | Path | None) -> Path:
    """Return the library of a driver, or of the one that `BRINGUP_DRIVER` names."""
    if driver is not None:
        return driver_library(driver)
    try:
        return driver_library(settings.driver())
    except DriverError as error:
        raise DriverError(f"BRINGUP_DRIVER={settings.driver()!r}: {error}") from error
