"""The simulated NPU for every test of this folder."""

from __future__ import annotations

import pytest

from bringup import devices


@pytest.fixture(scope="session", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")
