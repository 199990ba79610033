"""A dtype that a driver says its device lacks: no tensor of it, however it comes to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

PREAMBLE = """
import io, json, sys, warnings
import numpy as np
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
D = "minimal"
f32 = torch.ones(4, device=D)
i64 = torch.ones(4, device=D, dtype=torch.int64)
host64 = torch.ones(4, dtype=torch.float64)
saved = io.BytesIO()
torch.save(host64, saved)

def with_default_dtype(make):
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)
"""

REFUSED = """
refused = {
    "empty": lambda: torch.empty(2, dtype=torch.float64, device=D),
    "empty of no elements": lambda: torch.empty(0, dtype=torch.float64, device=D),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), dtype=torch.float64, device=D),
    "empty_like": lambda: torch.empty_like(f32, dtype=torch.float64),
    "ones": lambda: torch.ones(2, dtype=torch.float64, device=D),
    "full": lambda: torch.full((2,), 1.5, dtype=torch.float64, device=D),
    "arange": lambda: torch.arange(3, dtype=torch.float64, device=D),
    "randn": lambda: torch.randn(3, dtype=torch.float64, device=D),
    "scalar_tensor": lambda: torch.scalar_tensor(1.0, dtype=torch.float64, device=D),
    "tensor": lambda: torch.tensor([1.5], dtype=torch.float64, device=D),
    "tensor of numpy": lambda: torch.tensor(np.ones(2), device=D),
    "as_tensor": lambda: torch.as_tensor(np.ones(2), device=D),
    "new_zeros": lambda: f32.new_zeros(2, dtype=torch.float64),
    "to device": lambda: host64.to(D),
    "to device without waiting": lambda: host64.to(D, non_blocking=True),
    "to dtype": lambda: f32.to(torch.float64),
    "double": lambda: f32.double(),
    "type": lambda: f32.type(torch.float64),
    "device context": lambda: device_context(),
    "module": lambda: torch.nn.Linear(2, 2, dtype=torch.float64).to(D),
    "module in double": lambda: torch.nn.Linear(2, 2).to(D).double(),
    "buffer": lambda: torch.nn.BatchNorm1d(2).double().to(D),
    "view of bytes": lambda: f32.view(torch.float64),
    "set_": lambda: torch.empty(0, dtype=torch.float64, device=D).set_(f32.untyped_storage()),
    "load": lambda: (saved.seek(0), torch.load(saved, map_location=D)),
    "default dtype": lambda: with_default_dtype(lambda: torch.ones(2, device=D)),
    "integers divided": lambda: with_default_dtype(lambda: i64 / 2),
    "python number": lambda: with_default_dtype(lambda: i64 * 1.5),
    "promoted by a scalar of the host": lambda: i64 + torch.tensor(1.5, dtype=torch.float64),
    "added as a function": lambda: torch.add(i64, torch.tensor(1.5, dtype=torch.float64)),
    "sum": lambda: f32.sum(dtype=torch.float64),
    "cumsum": lambda: f32.cumsum(0, dtype=torch.float64),
    "softmax": lambda: torch.softmax(f32, 0, dtype=torch.float64),
    "zeros_like": lambda: torch.zeros_like(f32, dtype=torch.float64),
    "zero gradient": lambda: torch._efficientzerotensor((2,), dtype=torch.float64, device=D),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128, device=D),
    "complex128 to device": lambda: torch.ones(2, dtype=torch.complex128).to(D),
    "cdouble": lambda: f32.cdouble(),
    "view of bytes as complex128": lambda: f32.view(torch.complex128),
}

def device_context():
    with torch.device(D):
        return torch.zeros(2, dtype=torch.float64)

outcome = {}
for name, make in refused.items():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            outcome[name] = ["made", str(make())]
        except Exception as error:
            outcome[name] = [type(error).__name__, f"{error} {[str(w.message) for w in warned]}"]
print(json.dumps(outcome))
"""

ALLOWED = """
allowed = {
    "python number": lambda: (f32 * 1.5, torch.float32),
    "scalar of the host": lambda: (f32 + torch.tensor(1.5, dtype=torch.float64), torch.float32),
    "numpy number": lambda: (f32 * np.float64(2.5), torch.float32),
    "integer divided": lambda: (i64 / 2, torch.float32),
    "full": lambda: (torch.full((2,), 1.5, device=D), torch.float32),
    "cast on the way": lambda: (host64.to(D, torch.float32), torch.float32),
    "copied into": lambda: (torch.empty(4, device=D).copy_(host64), torch.float32),
    "filled": lambda: (torch.empty(4, device=D).fill_(host64[0]), torch.float32),
    "assigned": lambda: (assigned(), torch.float32),
    "to the host": lambda: (f32.to("cpu", torch.float64), torch.float64),
    "item": lambda: (torch.tensor(f32.sum().item(), dtype=torch.float64), torch.float64),
    "where": lambda: (torch.where(f32 > 0, f32, 0.5), torch.float32),
    "complex64": lambda: (torch.complex(f32, f32), torch.complex64),
    "half": lambda: (f32.half(), torch.float16),
    "statistics": lambda: (torch.stack([f32.mean(), f32.std(), f32.var()]), torch.float32),
    "linspace": lambda: (torch.linspace(0, 1, 5, device=D), torch.float32),
    "layer_norm": lambda: (torch.nn.functional.layer_norm(f32, (4,)), torch.float32),
    "norm clipped": lambda: (clipped(), torch.float32),
    "trained": lambda: (trained(), torch.float32),
}

def assigned():
    target = f32.clone()
    target[1] = host64[0]
    return target

def clipped():
    p = torch.nn.Parameter(torch.ones(3, device=D))
    (p * 5).sum().backward()
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    return p.grad

def trained():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.1))
    net = net.to(D)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3, 4, device=D)).square().sum().backward()
    optimizer.step()
    return net[0].weight

outcome = {}
for name, make in allowed.items():
    try:
        tensor, wanted = make()
        outcome[name] = "fine" if tensor.dtype == wanted else str(tensor.dtype)
    except Exception as error:
        outcome[name] = f"{type(error).__name__}: {error}"
print(json.dumps(outcome))
"""


@pytest.fixture(params=["NO_FLOAT64", "NO_FLOAT64 HOST_VISIBLE"])
def without_float64(request: pytest.FixtureRequest, build_driver: Callable[..., Path]) -> Path:
    return build_driver(*request.param.split())


def test_float64_and_complex128_tensors_are_refused_with_dtype_device_and_remedy(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    outcome = json.loads(fresh_python(PREAMBLE + REFUSED, str(without_float64)).splitlines()[-1])
    assert len(outcome) > 30
    for name, (kind, words) in outcome.items():
        assert kind == "TypeError", (name, kind, words)
        dtype, remedy = "float64", "float32"
        if "complex" in name or name == "cdouble":
            dtype, remedy = "complex128", "complex64"
        for told in ("device 'minimal:0'", f"torch.{dtype}", f"expected torch.{remedy}", "cpu"):
            assert told in words, (name, told, words)


def test_scalars_and_casts_of_the_host_stay_fine_on_a_device_without_float64(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    outcome = json.loads(fresh_python(PREAMBLE + ALLOWED, str(without_float64)).splitlines()[-1])
    assert {name: what for name, what in outcome.items() if what != "fine"} == {}


def test_a_refused_tensor_changes_nothing(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
net = torch.nn.Linear(2, 2, dtype=torch.float64)
before = torch.minimal.memory_allocated()
try:
    net.to(D)
except TypeError:
    pass
print({p.device.type for p in net.parameters()}, torch.minimal.memory_allocated() - before)
"""
    assert fresh_python(PREAMBLE + code, str(without_float64)) == "{'cpu'} 0"


def test_the_capability_that_torch_asks_for_lacks_the_same_dtypes(
    without_float64: Path, fresh_python: Callable[..., str]
) -> None:
    code = """
has = torch.accelerator.get_device_capability(0)["supported_dtypes"]
print({torch.float64, torch.complex128} & has, torch.float32 in has, torch.int64 in has)
"""
    assert fresh_python(PREAMBLE + code, str(without_float64)) == "set() True True"


def test_a_device_with_float64_has_it() -> None:
    import torch

    assert torch.ones(2, device="npu", dtype=torch.float64).sum().item() == 2
    assert torch.float64 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_a_tensor_is_printed_on_a_device_without_float64(fresh_python: Callable[..., str]) -> None:
    told = fresh_python(
        """
import torch
from bringup import devices
devices.load_driver("sim")
for values in ([1.0, 2.5], [1e-9, 1e9], [], [float("nan"), 1.0], [3.0, 4.0], [1 + 2j], [1]):
    x = torch.tensor(values)
    print(str(x.to("npu")).replace(", device='npu:0'", "") == str(x))
""",
        BRINGUP_SIM_FAULTS="hidden_dtypes=float64",
    )
    assert set(told.split()) == {"True"}
