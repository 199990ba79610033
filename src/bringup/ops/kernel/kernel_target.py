"""On which devices an operator's kernel runs, and what it is built for there: the CPU, the loaded
driver's, or torch's own CUDA, where it is a host entry that launches for itself or device code that
the driver of NVIDIA GPUs starts.
"""

from __future__ import annotations

import functools

import torch

from bringup import _native, jit, settings
from bringup.errors import DeviceError, DriverError

_CUDA_MARKS = (b".nv_fatbin", b"libcudart.so", b"libcuda.so")


def runs_on_cuda(template: jit.Template) -> bool:
    """Return whether it can run for CUDA tensors: others than CUDA's would read a GPU's memory."""
    source = template.source
    if template.kind == "device":
        return source.language == "cuda" and template.abi == "values"
    if source.is_library:
        content = source.content()
        return any(mark in content for mark in _CUDA_MARKS)
    return source.language == "cuda"


def target_for(name: str, template: jit.Template, device: str) -> str:
    """Return what the kernel of `name` is built for on a device, "npu:1". Raises `DeviceError`."""
    family = device.partition(":")[0]
    if family == "cpu":
        return "cpu"
    if family == "cuda" and runs_on_cuda(template):
        if template.kind == "device":
            _open_cuda_launcher(name)
            return jit.target_of_arch(f"nv-{architecture(device)}")
        models = _gpus()
        return f"cuda:{models}" if models else "cuda"
    from bringup import devices  # not for an operator of the CPU alone

    if family == "cuda" or devices.loaded() is None:
        raise DeviceError(
            f"{name}: bringup has no driver for device {family!r}; a kernel "
            "operator runs on cpu, on the device of devices.load_driver(), and from a .cu file on "
            "cuda, where device code has block="
        )
    if template.kind == "host":
        return "cpu"
    return jit.target_of_arch(architecture(device))


def architecture(device: str) -> str:
    """Return what the device is called where results are tuned for it; "" for the CPU."""
    family, _, index = device.partition(":")
    if family == "cuda":
        return _model(int(index)) if index else _gpus()
    if family == "cpu":
        return ""
    from bringup import devices

    if devices.loaded() is None:
        return ""
    module = torch.get_device_module(device)
    return str(module.get_device_properties(torch.device(device)).arch)


def _gpus() -> str:
    """Return the models that this process sees, as nvcc calls them; "" without any."""
    return "+".join(sorted(set(map(_model, range(torch.cuda.device_count())))))


def _model(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _open_cuda_launcher(name: str) -> None:
    """Let the driver of NVIDIA GPUs start device code in torch's streams. Raises `DeviceError`."""
    try:
        _cuda_launcher()
    except (DriverError, FileNotFoundError, RuntimeError) as error:
        raise DeviceError(
            f"{name}: device code for CUDA tensors is started by the driver of NVIDIA GPUs, of the "
            f"package bringup-cuda (drivers/cuda): {error}"
        ) from error


@functools.cache
def _cuda_launcher() -> None:
    from bringup import devices

    native = _native.torch_library("device code on torch's CUDA tensors").devices
    native.open_cuda_launcher(str(devices.driver_library("cuda")))
    native.set_launch_blocking(settings.launch_blocking())
