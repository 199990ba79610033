"""OptimizerInfo on the device: every optimizer of torch with its own configurations takes the steps
that it takes on the CPU, as a loop, as lists of tensors and fused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bringup import devices
from bringup.conformance._optimizers import optimizer_cases, optimizer_difference


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


CASES = [pytest.param(*case, id=name) for name, *case in optimizer_cases()]


@pytest.mark.parametrize(("info", "implementation", "options"), CASES)
def test_optimizer_steps_as_a_loop_on_the_cpu(
    info: Any, implementation: str, options: dict[str, Any], sweep_counts: Counter[str]
) -> None:
    sweep_counts["configurations"] += 1
    assert optimizer_difference(info, implementation, options, "npu") == ""
