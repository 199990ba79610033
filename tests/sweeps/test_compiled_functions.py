"""torch.compile's default backend on the device against its eager operators: functions by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.compiled_functions import ROWS, compare

from bringup import devices


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ROWS)
def test_a_compiled_function_gives_what_eager_operators_give(name: str) -> None:
    compare(ROWS[name], "npu")
