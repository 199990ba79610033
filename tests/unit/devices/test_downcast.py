"""`downcast_float64`: what becomes of float64 on a device whose driver says that it has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import devices
from bringup.errors import DriverError

PREAMBLE = """
import io, sys, warnings
import torch
from bringup import devices
info = devices.load_driver(sys.argv[1], downcast_float64=sys.argv[2])
assert info.downcast_float64 == sys.argv[2]
D = "minimal"
f32 = torch.ones(4, device=D)
host64 = torch.arange(4, dtype=torch.float64) / 3

def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = make()
    (told,) = {str(w.message) for w in caught}
    return value, told
"""
MADE = """
made = [
    lambda: torch.zeros(2, dtype=torch.float64, device=D),
    lambda: torch.empty_strided((2, 2), (1, 2), dtype=torch.float64, device=D),
    lambda: torch.tensor([1.5, 2], dtype=torch.float64, device=D),
    lambda: torch._efficientzerotensor((2,), dtype=torch.float64, device=D),
    lambda: host64.to(D),
    lambda: f32.double(),
    lambda: f32.sum(dtype=torch.float64),
    lambda: f32.cumsum(0, dtype=torch.float64),
    lambda: f32.long() + torch.tensor(1.5, dtype=torch.float64),
    lambda: torch.eye(2, dtype=torch.float64).to(D).to_sparse(),
]
"""


@pytest.fixture(params=["NO_FLOAT64", "NO_FLOAT64 HOST_VISIBLE"])
def without_float64(request: pytest.FixtureRequest, build_driver: Callable[..., Path]) -> Path:
    return build_driver(*request.param.split())


def test_warn_makes_every_such_tensor_float32_and_says_so(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
for make in made:
    value, told = warned(make)
    assert (value.device.type, value.dtype) == (D, torch.float32), (value.device, value.dtype)
    assert "so this one is torch.float32" in told and "torch.float64" in told
value, _ = warned(lambda: torch.ones(2, dtype=torch.complex128, device=D))
assert value.dtype == torch.complex64
torch.testing.assert_close(warned(lambda: host64.to(D))[0].cpu(), host64.float())
assert warned(lambda: f32.sum(dtype=torch.float64))[0].item() == 4
x = f32.clone().requires_grad_()
(warned(lambda: x.double())[0] * 3).sum().backward()
assert x.grad.tolist() == [3] * 4 and x.grad.dtype == torch.float32
model, _ = warned(lambda: torch.nn.Linear(2, 2).double().to(D))
assert {p.dtype for p in model.parameters()} == {torch.float32}
print("fine")
"""
    told = fresh_python(PREAMBLE + MADE + code, str(without_float64), "warn")
    assert told == "fine"


def test_warn_warns_once_a_line_of_code(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    for _ in range(3):
        f32.double()
    f32.double()
print(len(caught))
"""
    assert fresh_python(PREAMBLE + code, str(without_float64), "warn") == "2"


def test_warn_never_reads_bytes_of_float64_as_float32(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
file = io.BytesIO()
torch.save(host64, file)
bytes_there = torch.zeros(32, dtype=torch.uint8, device=D).untyped_storage()
def load():
    file.seek(0)
    return torch.load(file, map_location=D)
for make in (
    load,
    lambda: torch.empty(0, dtype=torch.float64, device=D).set_(bytes_there),
    lambda: torch.empty_strided((0,), (1,), dtype=torch.float64, device=D).set_(bytes_there),
    lambda: f32.view(torch.float64),
):
    try:
        print(make())
    except TypeError as error:
        assert "has no tensors of torch.float64" in str(error)
file.seek(0)
print(torch.load(file).equal(host64))
"""
    assert fresh_python(PREAMBLE + code, str(without_float64), "warn") == "True"


def test_cpu_leaves_every_such_tensor_on_the_host_in_its_dtype_and_says_so(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
for make in made[:-1]:
    value, told = warned(make)
    assert (value.device.type, value.dtype) == ("cpu", torch.float64), (value.device, value.dtype)
    assert "so this one is on the cpu" in told
total = warned(lambda: f32.sum(dtype=torch.float64))[0]
kept = [warned(lambda: f32.cumsum(0, dtype=torch.float64))[0] for _ in range(50)]
del f32
torch.minimal.empty_cache()
assert all(k.tolist() == [1, 2, 3, 4] for k in kept) and total.item() == 4
assert warned(lambda: host64.to(D))[0].equal(host64)
x = torch.ones(4, device=D, requires_grad=True)
(warned(lambda: x.double())[0] * 3).sum().backward()
assert x.grad.tolist() == [3] * 4 and x.grad.device.type == D
try:  # a mixture of devices is refused, as ever
    torch.ones(4, device=D) + kept[0]
except RuntimeError as error:
    print("same device" in str(error))
"""
    assert fresh_python(PREAMBLE + MADE + code, str(without_float64), "cpu") == "True"


def test_a_device_with_float64_keeps_it_whatever_is_said(fresh_python: Callable[..., str]) -> None:
    code = """
import torch
from bringup import devices
print(devices.load_driver("sim").downcast_float64)
with __import__("warnings").catch_warnings():
    __import__("warnings").simplefilter("error")
    print(torch.ones(2, dtype=torch.float64, device="npu").dtype)
"""
    assert fresh_python(code, BRINGUP_DOWNCAST_FLOAT64="cpu") == "cpu\ntorch.float64"


def test_what_is_none_of_the_three_is_refused() -> None:
    with pytest.raises(DriverError, match=r"downcast_float64='error', so it cannot be 'warn'"):
        devices.load_driver("sim", downcast_float64="warn")


def test_an_unknown_word_is_refused_before_anything_is_loaded(
    fresh_python: Callable[..., str],
) -> None:
    code = """
from bringup import devices
try:
    devices.load_driver("sim", downcast_float64="float32")
except Exception as error:
    print(error, devices.loaded())
"""
    assert "expected 'error', 'warn' or 'cpu' None" in fresh_python(code)
