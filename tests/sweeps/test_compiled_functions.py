"""torch.compile's default backend on devices against eager operators of the cpu: functions by name,
on the simulator, where the host sees no device memory, and on an OpenCL device.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiled_functions import compare
from tests.forked_python import DYNAMO, output_of_module
from tests.opencl.conftest import SOURCES, build
from tests.sweeps.compiled_rows import ROWS
from tests.sweeps.support import PARTS, part, sized
from tests.tool_module import tool_module

from bringup import devices

_FLOOR = "Inductor's floor division of floats is floor(a / b), on every device"
EXPECTED = {
    "floor_divide_special": _FLOOR,
    "div_floor_special": _FLOOR,
    "gelu_special": "the CPU's vectors give NaN for infinity, whose gelu is infinity",
    "softshrink_special": "torch's decomposition gives 0 for NaN",
    "zeros_ones_like": "torch's passes make the result the argument itself, on every device",
}
"""Rows that differ on every device, and why."""
EXPECTED_ON_OPENCL: dict[str, str] = {}
"""Rows that differ on PoCL besides, and why."""
CORE = ("layer_norm", "writes_through_a_view", "circular_pad", "sizes_as_numbers")


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True], ids=["as compiled", "dynamic"])
@pytest.mark.parametrize("name", part(list(ROWS), always=CORE))
def test_a_compiled_function_gives_what_eager_operators_give(
    name: str, dynamic: bool | None
) -> None:
    if reason := EXPECTED.get(name):
        with pytest.raises(Exception):  # noqa: B017 - it says what differs
            compare(ROWS[name], "npu", dynamic=dynamic)
        pytest.xfail(reason)
    compare(ROWS[name], "npu", dynamic=dynamic)


def told_by(counts: Counter[str], *arguments: str, **variables: str) -> dict[str, Any]:
    """Return the report of a process that runs a part."""
    said = output_of_module(
        "tests.sweeps.compiled_rows", *arguments, timeout=7200, preload=DYNAMO, **variables
    )
    report: dict[str, Any] = json.loads(said)
    counts["rows"] += report["count"]
    return report


@pytest.mark.parametrize("first", part(range(PARTS)))
def test_functions_are_the_same_where_the_host_sees_no_device_memory(
    first: int, sweep_counts: Counter[str]
) -> None:
    told = told_by(sweep_counts, "sim", str(first), str(PARTS), BRINGUP_SIM_ISOLATED="1")
    assert not told["host_visible"]
    assert {n: w for n, w in told["differences"].items() if n not in EXPECTED} == {}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if packages := tool_module("install_compilers").missing_libraries():
        pytest.skip(f"OpenCL is missing: apt-get install {' '.join(packages)}")
    return build(tmp_path_factory.mktemp("opencl") / "libocl.so")


@pytest.mark.parametrize("first", part(range(PARTS)))
def test_functions_are_the_same_in_opencl_c(
    first: int, library: Path, sweep_counts: Counter[str]
) -> None:
    # PoCL takes seconds for a kernel: a quarter of the part is enough for a quick run.
    arguments = (str(library), str(first), str(sized(4 * PARTS, PARTS)), str(SOURCES))
    told = told_by(sweep_counts, *arguments, BRINGUP_OPENCL_MEMORY="coarse")
    known = EXPECTED | EXPECTED_ON_OPENCL
    assert {n: w for n, w in told["differences"].items() if n not in known} == {}
