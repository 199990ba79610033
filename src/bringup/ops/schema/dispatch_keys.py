"""The names of dispatch keys and devices, by what people write; "NPU" is PrivateUse1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from bringup.errors import SchemaError, did_you_mean

_NAMED = ("CPU", "CUDA", "XPU", "MPS", "HPU", "Meta")  # devices are called as these are
_BACKENDS = (*_NAMED, "PrivateUse1", "PrivateUse2")
_AUTOGRAD = (
    "Autograd", "AutogradOther", "AutogradNestedTensor", *(f"Autograd{b}" for b in _BACKENDS),
)  # fmt: skip
_ALIASES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
_OTHERS = (
    "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutogradNestedTensor",
    "BackendSelect", "ADInplaceOrView", "Functionalize", "FuncTorchBatched", "Python",
    "AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1", "SparseCPU",
    "SparseCUDA", "SparsePrivateUse1", "QuantizedCPU", "QuantizedCUDA", "QuantizedPrivateUse1",
    "NestedTensorCPU", "NestedTensorCUDA",
)  # fmt: skip
_KEYS: dict[str, str] = {
    **{name: name for name in (*_BACKENDS, *_AUTOGRAD, *_ALIASES, *_OTHERS)},
    "NPU": "PrivateUse1",
    "AutogradNPU": "AutogradPrivateUse1",
    "AutocastNPU": "AutocastPrivateUse1",
}
_DEVICES: dict[str, str] = {
    **{name.lower(): name for name in _NAMED},
    "npu": "PrivateUse1",
    "privateuseone": "PrivateUse1",
}

# The keys at which a kernel of another library would come before one at `Autograd`, and that one.
AUTOGRAD_KEYS = frozenset(_AUTOGRAD)


def dispatch_key(name: str) -> str:
    """torch's name of the dispatch key `name`; `SchemaError` naming the known ones for another."""
    found = _KEYS.get(name)
    if found is None:
        raise SchemaError(_unknown("dispatch key", name, _KEYS))
    return found


def device_type(name: str) -> str:
    """torch's name of the device type `name`: "npu" is whatever PrivateUse1 is called just now."""
    if device_key(name) == "PrivateUse1":
        return str(torch._C._get_privateuse1_backend_name())
    return name


def device_key(name: str) -> str:
    """Return the key of a device type, "npu" or another. Raises `SchemaError` naming known ones."""
    found = _DEVICES.get(name)
    if found is not None:
        return found
    if name == torch._C._get_privateuse1_backend_name():
        return "PrivateUse1"
    raise SchemaError(_unknown("device", name, _DEVICES))


def listed(devices: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return one device type or several as a tuple; None stays what it is."""
    if devices is None:
        return None
    return (devices,) if isinstance(devices, str) else tuple(devices)


def device_keys(devices: Sequence[str] | None) -> list[str]:
    """Return the dispatch keys of several device types; None stands for all that have none."""
    return ["CompositeExplicitAutograd"] if devices is None else [*map(device_key, devices)]


def autocast_key(device: str) -> str:
    """Return the autocast key of a device type; `SchemaError` without one."""
    found = f"Autocast{device_key(device)}"
    if found not in _KEYS:
        raise SchemaError(f"device {device!r} has no autocast; expected cpu, cuda, xpu, mps or npu")
    return found


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known) or "."
    return f"{name!r} is no {what}{hint} Known are {', '.join(known)}"
