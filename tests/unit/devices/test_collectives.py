"""Collectives in a group without a backend for the device: torch's error, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

GROUP = """
import os
import sys
import torch
import torch.distributed as dist
from bringup import devices
devices.load_driver("sim")
x = torch.ones(3, device="npu")
"""
GLOO = """
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
"""


def test_a_collective_without_a_backend_names_the_device_and_says_what_to_do(
    fresh_python: Callable[..., str], tmp_path: Path
) -> None:
    code = f"""{GROUP}{GLOO}
model = torch.nn.Linear(2, 2).to("npu")
for call in (
    lambda: dist.all_reduce(x),
    lambda: dist.broadcast(x, 0),
    lambda: dist.all_gather_into_tensor(torch.empty(3, device="npu"), x),
    lambda: torch.nn.parallel.DistributedDataParallel(model),
):
    try:
        call()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    said = fresh_python(code, str(tmp_path / "store")).splitlines()
    assert len(said) == 4
    for line in said:
        assert line.startswith("No backend type associated with device type npu: ")
        assert 'init_process_group("cpu:gloo,npu:bringup")' in line
    assert "c10d::allreduce_ needs" in said[0]


def test_a_backend_that_refuses_the_device_says_the_same(
    fresh_python: Callable[..., str], tmp_path: Path
) -> None:
    code = f"""{GROUP}{GLOO.replace('"gloo"', '"npu:gloo"')}
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print(error)
"""
    said = fresh_python(code, str(tmp_path / "store"))
    assert "unsupported device type npu: this process group has no backend" in said


def test_collectives_of_tensors_on_cpu_and_other_failures_are_torchs_own(
    fresh_python: Callable[..., str], tmp_path: Path
) -> None:
    code = f"""{GROUP}{GLOO}
there = x.cpu()
dist.all_reduce(there)
print(there.tolist())
try:
    dist.broadcast(there, 7)
except Exception as error:
    print("npu:bringup" in str(error))
"""
    assert fresh_python(code, str(tmp_path / "store")).splitlines() == ["[1.0, 1.0, 1.0]", "False"]


def test_a_backend_of_the_device_is_called(fresh_python: Callable[..., str]) -> None:
    code = f"""{GROUP}
from torch.testing._internal.distributed import fake_pg
dist.Backend.register_backend("own", fake_pg._create_fake_pg, extended_api=True, devices=["npu"])
dist.init_process_group("own", rank=0, world_size=2, store=fake_pg.FakeStore())
with torch.profiler.profile() as profile:
    dist.all_reduce(x)
print(x.device, [event.name for event in profile.events() if "allreduce" in event.name])
"""
    assert fresh_python(code) == "npu:0 ['c10d::allreduce_']"
