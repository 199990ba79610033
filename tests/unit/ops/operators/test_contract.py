"""What the CPU refuses is refused, and what it answers is answered, where torch's Meta kernels have
no check; and what no kernel of a kind can compute is refused when it is declared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bringup_sim_ops
from bringup import devices, graphs, jit
from bringup.errors import SchemaError

TOTAL = """
template <class T> struct total {
  T sum{};
  void add(T value, int64_t) { sum += value; }
  T result(int64_t) const { return sum; }
};
"""


@pytest.fixture(scope="module", autouse=True)
def kernels(npu: devices.DriverInfo) -> Iterator[None]:
    bringup_sim_ops.load()
    yield
    bringup_sim_ops.unload()


def outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call(x)
        except Exception as error:
            return type(error), str(error)
    results = found if isinstance(found, tuple) else (found,)
    return [(r.dtype, r.cpu().tolist()) for r in results]


def into(dtype: torch.dtype, *shape: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.zeros(shape, dtype=dtype, device=x.device)


X = torch.tensor([0.6, 1.6, 0.9])
NOTHING = torch.ones(0, 3)
BOOLS = torch.tensor([True, False])
WIDE, WHOLE = into(torch.float64, 3), into(torch.int64)
CALLS: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], Any]]] = {
    "max of nothing": (torch.ones(0), lambda x: x.max()),
    "max.dim of nothing": (NOTHING, lambda x: x.max(0)),
    "max.dim of nothing in half": (NOTHING.half(), lambda x: x.max(0)),
    "amax of nothing": (NOTHING, lambda x: x.amax(0)),
    "argmax of nothing": (NOTHING, lambda x: x.argmax()),
    "a norm of nothing": (NOTHING, lambda x: torch.linalg.vector_norm(x, float("inf"), 0)),
    "results of nothing": (NOTHING, lambda x: (x.max(1), x.sum(0))[1]),
    "sum in int64": (X, lambda x: x.sum(dtype=torch.int64)),
    "sum in uint8": (X, lambda x: x.sum(0, dtype=torch.uint8)),
    "sum in float16": (torch.full((9,), 2049), lambda x: x.sum(dtype=torch.float16)),
    "sum into int64": (X, lambda x: torch.sum(x, 0, out=WHOLE(x))),
    "where of uint8": (X, lambda x: torch.where((x > 1).byte(), x, -x)),
    "a bool for alpha": (X, lambda x: torch.add(x, x, alpha=True)),
    "a float for alpha": (BOOLS, lambda x: torch.add(x, x, alpha=0.5)),
    "a negative alpha of bools": (BOOLS, lambda x: torch.add(x, x, alpha=-1)),
    "numbers less bools": (X, lambda x: x - (x > 1)),
    "addcmul of bools": (BOOLS, lambda x: torch.addcmul(x, x, x)),
    "gelu into float64": (X, lambda x: torch._C._nn.gelu(x, out=WIDE(x))),
    "neg into float64": (X, lambda x: torch.neg(x, out=WIDE(x))),
    "where into float64": (X, lambda x: torch.where(x > 1, x, x, out=WIDE(x))),
    "amax into float64": (X, lambda x: torch.amax(x, 0, out=WIDE(x)[0])),
    "exp into float64": (X, lambda x: torch.exp(x, out=WIDE(x))),
    "indices of uint8": (X, lambda x: x.index_select(0, (x > 1).byte())),
    "a target of bools": (
        X,
        lambda x: torch.nn.functional.nll_loss(x, x[0] > 1),
    ),
    "a mask of float64": (
        X,
        lambda x: torch.ops.aten.native_dropout_backward(x, x.double(), 2.0),
    ),
    "softmax of a dim that is not there": (X, lambda x: torch.softmax(x, 2)),
    "softmax of a dim before all": (X, lambda x: torch.ops.aten._softmax(x, -2, False)),
    "cumsum in bool": (X, lambda x: x.cumsum(0, dtype=torch.bool)),
    "indices of float64": (X, lambda x: x.index_select(0, x.double())),
    "cat of numbers": (X, lambda x: torch.cat([x[0], x[1]])),
    "topk beyond the end": (X, lambda x: x.topk(4)),
    "a dim that is not there": (X, lambda x: x.amax(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_as_on_cpu(name: str) -> None:
    x, call = CALLS[name]
    assert outcome(call, x.to("npu")) == outcome(call, x)


def test_a_call_after_a_refused_one_is_planned_anew() -> None:
    x = torch.ones(2, 3, device="npu")
    for rows in (2, 0, 2):
        found = outcome(lambda x, n=rows: x[:n].max(0), x)
        assert found == outcome(lambda x, n=rows: x[:n].max(0), x.cpu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_sum_in_a_wider_dtype_stays_on_the_device(dtype: torch.dtype) -> None:
    x = torch.full((64,), 0.1, dtype=dtype, device="npu")
    devices.fallback_report(reset=True)
    found = x.sum(dtype=torch.float64)
    assert devices.fallback_report().rows == ()
    torch.testing.assert_close(found.cpu(), x.cpu().sum(dtype=torch.float64))


@pytest.mark.parametrize("guard", ["autocast", "device"])
def test_the_cpu_is_asked_about_these_dtypes_whatever_is_around(guard: str) -> None:
    x = X.to("npu")
    indices = torch.zeros(3, dtype=torch.int32, device="npu")
    with torch.autocast("cpu", torch.bfloat16) if guard == "autocast" else torch.device("npu"):
        devices.fallback_report(reset=True)
        assert (x[None] @ x.unsqueeze(1)).dtype is torch.float32
        assert x.index_select(0, indices).tolist() == [x[0].item()] * 3
        native = {row.operator for row in devices.fallback_report().native}
    assert native >= {"aten::mm", "aten::index_select"}


def test_a_forbidden_fallback_leaves_torchs_error() -> None:
    devices.set_fallback_policy("forbid")
    try:
        with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
            NOTHING.to("npu").max(0)
        with pytest.raises(RuntimeError, match="k not in range"):
            X.to("npu").topk(4)
    finally:
        devices.set_fallback_policy("allow")


def test_a_capture_records_a_first_call() -> None:
    x = torch.ones(4, 3, device="npu", dtype=torch.float64)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.sub(x, x, alpha=3)
    graph.replay()
    assert y.tolist() == (x - 3 * x).tolist()


@pytest.mark.parametrize("operator", ["sin", "relu", "flip", "cumsum", "trace", "renorm"])
def test_a_reduction_of_what_reduces_nothing_is_refused(operator: str) -> None:
    source = jit.Source(text=TOTAL, name="total.cpp")
    with pytest.raises(SchemaError, match=rf"aten::{operator}.*use kind='pointwise' or 'raw'"):
        devices.kernel(f"aten::{operator}", source=source, kind="reduction", entry="total")


@pytest.mark.parametrize(
    "operator", ["t", "select.int", "unsqueeze", "alias", "view", "split.Tensor", "as_strided_"]
)
@pytest.mark.parametrize("kind", ["raw", "pointwise"])
def test_a_kernel_for_a_view_is_refused(operator: str, kind: Any) -> None:
    with pytest.raises(SchemaError):
        devices.kernel(f"aten::{operator}", source=jit.Source(text="", name="v.cpp"), kind=kind)


def test_a_kernel_for_what_gives_no_tensors_is_refused() -> None:
    with pytest.raises(SchemaError, match="gives tensors, and this operator bool"):
        devices.kernel("aten::equal", source=jit.Source(text="", name="e.cpp"), kind="raw")
