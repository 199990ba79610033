"""What the tests of devices.kernel share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.ops.operators.kernels import source

from bringup import devices


@pytest.fixture(scope="session", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def declare() -> Iterator[Callable[..., devices.OperatorKernel]]:
    """Declares kernels that are closed behind the test."""
    made: list[devices.OperatorKernel] = []

    def kernel(operator: str, text: str, kind: Any = "pointwise", **options: Any) -> Any:
        made.append(devices.kernel(operator, source=source(text), kind=kind, **options))
        return made[-1]

    devices.fallback_report(reset=True)
    yield kernel
    for one in made:
        one.close()
