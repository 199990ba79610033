"""On which devices an operator's kernel runs, and what it is built for there: the CPU, the loaded
driver's, or torch's own CUDA, where it is a host entry that launches for itself.
"""

from __future__ import annotations

import torch

from bringup import devices, jit
from bringup.errors import DeviceError

_CUDA_MARKS = (b".nv_fatbin", b"libcudart.so", b"libcuda.so")


def runs_on_cuda(template: jit.Template) -> bool:
    """Return whether it can run for CUDA tensors: others than CUDA's would read a GPU's memory."""
    source = template.source
    if template.kind == "device":
        return False
    if source.is_library:
        content = source.content()
        return any(mark in content for mark in _CUDA_MARKS)
    return source.language == "cuda"


def target_for(name: str, template: jit.Template, device: str) -> str:
    """Return what the kernel of `name` is built for on a device, "npu:1". Raises `DeviceError`."""
    if device == "cpu":
        return "cpu"
    if device == "cuda" and runs_on_cuda(template):
        models = _gpus()
        return f"cuda:{models}" if models else "cuda"
    if device == "cuda" or devices.loaded() is None:
        raise DeviceError(
            f"{name}: bringup has no driver for device {device.partition(':')[0]!r}; a kernel "
            "operator runs on cpu, on the device of devices.load_driver(), and from a .cu file on "
            "cuda"
        )
    if template.kind == "host":
        return "cpu"
    return jit.target_of_arch(architecture(device))


def architecture(device: str) -> str:
    """Return what the device is called where results are tuned for it; "" for the CPU."""
    if device == "cuda":
        return _gpus()
    if device == "cpu" or devices.loaded() is None:
        return ""
    module = torch.get_device_module(device)
    return str(module.get_device_properties(torch.device(device)).arch)


def _gpus() -> str:
    """Return the models that this process sees, as nvcc calls them; "" without any."""
    found = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return "+".join(f"sm_{major}{minor}" for major, minor in sorted(set(found)))
