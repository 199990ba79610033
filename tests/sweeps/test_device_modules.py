"""ModuleInfo on the device: torch's own module inputs, forward and backward, in training and
evaluation, beside the CPU's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.sweeps.support import part

from bringup import devices
from bringup.conformance._modules import module_cases, module_failures


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


CASES = [pytest.param(info, training, id=name) for name, info, training in module_cases()]


@pytest.mark.parametrize(("info", "training"), part(CASES))
def test_module_is_the_cpus(info: Any, training: bool, sweep_counts: Counter[str]) -> None:
    assert list(module_failures(info, training, sweep_counts, "npu")) == []
