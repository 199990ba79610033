"""`ops.autotune`: tile sizes of a template are measured on an operator's calls within."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define

from bringup import devices, jit, ops
from bringup.errors import KernelError
from bringup.jit.ahead_of_time import autotune
from bringup.ops.kernel import kernel_op

# COST is what a tile size would do to the speed, made plain; the result tells which one ran.
TEXT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<T, 1> x(args[0]);
  const bringup::View<T, 1> out(args[1]);
  if (COST == 13) return bringup::fail(ctx, "no thirteen");
  for (int64_t i = 0; i < COST; ++i) asm volatile("" ::: "memory");
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = COST;
  return 0;
}
"""
SLOW, FAST = {"COST": 16_000_000}, {"COST": 1_000}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINGUP_JIT_AUTOTUNE", "1")
    autotune.forget()
    return tmp_path / "cache"


def template(*tiles: dict[str, jit.Macro], **more: Any) -> jit.Template:
    options: dict[str, Any] = {"text": TEXT, "dtypes": {"T": "x"}, **more}
    return jit.Template(name="cost.cpp", abi="args", tiles=tiles or (SLOW, FAST), **options)


def costly(define: Define, *tiles: dict[str, jit.Macro], **more: Any) -> ops.KernelOperator:
    return define(
        "costly(Tensor x) -> Tensor",
        source=template(*tiles, **more),
        outputs=ops.empty_like("x"),
    )


def results(root: Path) -> dict[str, Any]:
    (path,) = (root / "v1" / ".tuning").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())["results"]
    return found


def test_a_call_within_is_measured_and_runs_the_fastest_from_then_on(
    define: Define, root: Path
) -> None:
    operator = costly(define)
    with ops.autotune():
        first = operator(torch.zeros(2))
    assert first.tolist() == [1000, 1000]
    assert operator(torch.zeros(3)).tolist() == [1000] * 3
    (key,) = results(root)
    assert key.startswith(operator.qualified_name)
    with ops.autotune():
        operator(torch.zeros(5))  # another shape is the same kind of call
    assert len(results(root)) == 1


def test_the_next_process_uses_what_was_measured(define: Define) -> None:
    operator = costly(define)
    with ops.autotune():
        operator(torch.zeros(2))
    operator.undefine()
    autotune.forget()
    again = ops.kernel_op(operator.schema, source=template(), outputs=ops.empty_like("x"))
    assert again(torch.zeros(1)).tolist() == [1000]
    again.undefine()


def test_without_autotune_the_default_runs(define: Define, root: Path) -> None:
    assert costly(define)(torch.zeros(1)).tolist() == [16_000_000]
    assert not (root / "v1" / ".tuning").exists()


def test_each_dtype_is_measured_for_itself(define: Define, root: Path) -> None:
    operator = costly(define)
    with ops.autotune():
        operator(torch.zeros(2))
    assert operator(torch.zeros(1, dtype=torch.float64)).tolist() == [16_000_000]
    assert len(results(root)) == 1


def test_a_bucket_is_measured_for_itself(define: Define, root: Path) -> None:
    """The shape enters as declared buckets only."""
    operator = costly(define, buckets={"BIG": "size(x,0) >= 100"})
    with ops.autotune():
        operator(torch.zeros(2))
        operator(torch.zeros(3))
        operator(torch.zeros(200))
    assert len(results(root)) == 2


def test_the_dispatchers_operator_is_measured_too(define: Define) -> None:
    operator = costly(define)
    with ops.autotune():
        assert operator.overload(torch.zeros(2)).tolist() == [1000, 1000]


def test_calls_inside_a_model_are_measured(define: Define) -> None:
    operator = costly(define)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operator(x.relu()) + 1

    with ops.autotune():
        assert Model()(torch.zeros(1)).tolist() == [1001]


def test_other_operators_are_left_alone(define: Define, root: Path) -> None:
    plain = define("plain(Tensor x) -> Tensor", outputs=ops.empty_like("x"))
    with ops.autotune():
        plain(torch.zeros(1))
        torch.testing.assert_close(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert not (root / "v1" / ".tuning").exists()


def test_an_operator_without_choices_is_not_measured(define: Define, root: Path) -> None:
    with ops.autotune():
        assert costly(define, FAST)(torch.zeros(1)).tolist() == [1000]
    assert not (root / "v1" / ".tuning").exists()


def test_written_arguments_are_written_once(define: Define) -> None:
    text = TEXT.replace("out(args[1])", "out(args[0])").replace("out(i) = COST", "out(i) += COST")
    operator = define(
        "accumulate(Tensor(a!) x) -> Tensor(a!)", source=template(text=text), layout="contiguous"
    )
    x = torch.ones(2)
    with ops.autotune():
        operator(x)
    assert x.tolist() == [1001, 1001]


def test_candidates_leave_no_operators_behind(define: Define) -> None:
    before = set(kernel_op.definitions_by_name)
    operator = costly(define)
    with ops.autotune():
        operator(torch.zeros(2))
    assert set(kernel_op.definitions_by_name) - before == {operator.qualified_name}


def test_a_candidate_that_refuses_is_left_out_and_none_that_can_is_its_error(
    define: Define, root: Path
) -> None:
    operator = costly(define, {"COST": 13}, SLOW, FAST)
    with ops.autotune():
        assert operator(torch.zeros(1)).tolist() == [1000]
    hopeless = define(
        "hopeless(Tensor x) -> Tensor",
        source=template({"COST": 13}, {"COST": "13 + 0"}),
        outputs=ops.empty_like("x"),
    )
    with ops.autotune(), pytest.raises(KernelError, match="no thirteen"):
        hopeless(torch.zeros(1))
    assert len(results(root)) == 1


def test_fake_tensors_are_not_measured(define: Define, root: Path) -> None:
    operator = costly(define)
    with ops.autotune():
        assert operator(torch.zeros(2, device="meta")).shape == (2,)
    assert not (root / "v1" / ".tuning").exists()


def test_it_does_nothing_in_ci(define: Define, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRINGUP_JIT_AUTOTUNE")
    monkeypatch.setenv("CI", "1")
    with ops.autotune():
        assert costly(define)(torch.zeros(1)).tolist() == [16_000_000]
    assert not (root / "v1" / ".tuning").exists()


def test_it_ends_with_its_block(define: Define, root: Path) -> None:
    operator = costly(define)
    with ops.autotune():
        pass
    operator(torch.zeros(1))
    assert not (root / "v1" / ".tuning").exists()


def test_a_call_that_records_autograd_is_measured(define: Define) -> None:
    backward = define(
        "costly_backward(Tensor grad) -> Tensor",
        source=template(FAST, dtypes={"T": "grad"}),
        outputs=ops.empty_like("grad"),
    )
    operator = costly(define)
    operator.register_backward(backward.qualified_name)
    x = torch.zeros(2, requires_grad=True)
    with ops.autotune():
        result = operator(x)
    assert result.tolist() == [1000, 1000]
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1000, 1000]


def test_calls_on_the_device_are_measured(define: Define, root: Path) -> None:
    devices.load_driver("sim")
    operator = costly(define)
    with ops.autotune():
        assert operator(torch.zeros(2, device="npu")).tolist() == [1000, 1000]
    assert len(results(root)) == 1
    assert operator(torch.zeros(1)).tolist() == [16_000_000]  # cpu was not measured


def test_keyword_only_arguments_are_measured_too(define: Define, root: Path) -> None:
    text = TEXT.replace("out(args[1])", "out(args[2])")
    operator = define(
        "scaled(Tensor x, *, float factor=2.0) -> Tensor",
        source=template(text=text),
        outputs=ops.empty_like("x"),
    )
    with ops.autotune():
        assert operator(torch.zeros(1), factor=3.0).tolist() == [1000]
        assert operator(torch.zeros(1)).tolist() == [1000]
    assert len(results(root)) == 1
