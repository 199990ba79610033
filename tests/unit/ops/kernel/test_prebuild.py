"""Operators' kernels built beforehand: recorded, or from a call's parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ADD, ELEMENTWISE

from bringup import jit, ops
from bringup.errors import MissingKernelError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def add(define: Define) -> ops.KernelOperator:
    return define(
        "add(Tensor x, Tensor y) -> Tensor",
        source=ADD,
        outputs=ops.empty_like("x"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )


def test_a_recorded_run_of_operators_is_prebuilt(define: Define, tmp_path: Path) -> None:
    operator = add(define)
    with jit.record(tmp_path / "kernels.json") as recording:
        for dtype in (torch.float32, torch.float64, torch.float32):
            operator(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))
    assert [spec.macros for spec in recording.specs] == [("T=float",), ("T=double",)]
    assert len(jit.prebuild(jit.load_specs(tmp_path / "kernels.json")).hits) == 2


def test_the_parameters_of_a_call_are_prebuilt(define: Define) -> None:
    operator = add(define)
    x = torch.ones(2, dtype=torch.int32)
    assert len(jit.prebuild([operator.params(x, x)]).built) == 1
    with jit.frozen():
        assert operator(x, x).tolist() == [2, 2]


def test_a_miss_while_frozen_names_the_operator_and_carries_what_builds_it(define: Define) -> None:
    """The exact spec, at the call."""
    operator = add(define)
    x = torch.ones(2)
    with jit.frozen():
        with pytest.raises(MissingKernelError, match=operator.qualified_name) as raised:
            operator(x, x)
        assert raised.value.command in str(raised.value)
        spec = raised.value.spec
    assert isinstance(spec, jit.Spec)
    jit.prebuild([spec]).check()
    with jit.frozen():
        assert operator(x, x).tolist() == [2, 2]
