"""The simulator with two devices, and a Dynamo and caches that know nothing of other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._inductor.utils import fresh_inductor_cache

from bringup import devices


@pytest.fixture(scope="session", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with fresh_inductor_cache():
        yield
    torch._dynamo.reset()
