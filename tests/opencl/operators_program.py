"""A program's start: the driver with its operators, and comparisons with the CPU."""

LOADED = """
import sys
import torch
from bringup import devices
torch.set_num_threads(1)
sys.path.insert(0, ROOT)
import bringup_opencl
devices.load_driver(sys.argv[1])
bringup_opencl.load()


def moved(value, device):
    if isinstance(value, torch.Tensor):
        spread = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return value if value.device.type == device else spread.copy_(value)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one, device) for one in value)
    return value


def compare(function, *arguments, falls_back=False, rtol=2e-5, atol=2e-6):
    '''The device's results are the CPU's, and by the device's own kernels.'''
    wanted = function(*arguments)
    on_device = moved(arguments, "ocl")
    devices.fallback_report(reset=True)
    with devices.fallback_policy("allow" if falls_back else "forbid"):
        given = function(*on_device)
    report = devices.fallback_report()
    assert bool(report.rows) == falls_back, report
    several = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    got = given if isinstance(given, (list, tuple)) else [given]
    for left, right in zip(got, several, strict=True):
        assert left.device.type == "ocl" and left.dtype == right.dtype
        torch.testing.assert_close(left.cpu(), right, rtol=rtol, atol=atol, equal_nan=True)
"""
