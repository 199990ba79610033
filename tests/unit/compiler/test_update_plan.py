"""Update plans of compiled graphs: numbers that only operators take are written into captures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from bringup import compiler, devices, graphs, jit, ops
from bringup.compiler.update_plan import planned_call, updates_of
from bringup.errors import KernelError, UpdateError
from bringup.graphs import Constant, Input, UpdatePlan
from bringup.kernels import npu as torch_npu

WEIGHTED = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> x(args[0]), out(args[3]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  const auto* lengths = static_cast<bringup_list*>(args[2]);
  if (n == 99) { ctx->set_error(ctx, "99 is too much"); return 1; }
  double sum = 0;
  for (int64_t i = 0; i < lengths->size; ++i) {
    sum = sum * 10 + static_cast<const int64_t*>(lengths->data)[i];
  }
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * n + sum;
  return 0;
}
"""
CAPTURE = {"capture": True}
Captures = Callable[[], int]


@pytest.fixture(scope="module")
def weighted(kernel_cache: object) -> Iterator[Any]:
    """`x * n + the digits of lengths`."""
    operator = ops.kernel_op(
        "plans_test::weighted(Tensor x, int n, int[] lengths=[]) -> Tensor",
        source=jit.Source(text=WEIGHTED, name="weighted.cpp"),
        outputs=ops.empty_like("x"),
    )
    yield operator
    operator.undefine()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def captures(caplog: pytest.LogCaptureFixture) -> Captures:
    caplog.set_level(logging.INFO, logger="bringup.compiler")
    return lambda: sum(r.getMessage().startswith("captured ") for r in caplog.records)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compile_: Any = torch.compile
    return cast(
        "Callable[..., Any]", compile_(function, backend="bringup", options=CAPTURE, dynamic=True)
    )


def test_other_numbers_of_operators_need_no_other_capture(
    weighted: Any, captures: Captures
) -> None:
    def function(x: Tensor, n: int, m: int) -> Tensor:
        return weighted(weighted(x + 1, n, [m, 4, n]), 3, [m]) * 2

    run, x = compiled(function), torch.ones(5)
    for n, m in ((2, 5), (3, 6), (7, 8), (3, 6), (9, 11)):
        assert torch.equal(run(x, n, m), function(x, n, m))
    assert captures() == 1
    report = compiler.captures()[-1]
    assert report.captures == 1
    assert report.plan is not None
    first, second = report.plan.calls
    n_at, m_at = (
        source.index
        for source in (first.updates["n"], second.updates["lengths"][0])  # type: ignore[index]
        if isinstance(source, Input)
    )
    assert first.op == "plans_test::weighted"
    assert dict(first.updates) == {
        "n": Input(n_at),
        "lengths": (Input(m_at), Constant(4), Input(n_at)),
    }
    assert dict(second.updates) == {"n": Constant(3), "lengths": (Input(m_at),)}
    assert graphs.UpdatePlan.from_json(report.plan.to_json()) == report.plan


def test_a_number_that_something_else_reads_too_is_captured_for_each_value(
    weighted: Any, captures: Captures
) -> None:
    def function(x: Tensor, n: int, m: int) -> Tensor:
        return weighted(x, n, [m]) + n

    run, x = compiled(function), torch.ones(5)
    for n, m in ((2, 5), (2, 6), (3, 6), (3, 7)):
        assert torch.equal(run(x, n, m), function(x, n, m))
    assert captures() == 2  # one for each n


def test_a_number_that_is_computed_with_is_captured_for_each_value(
    weighted: Any, captures: Captures
) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return weighted(x, n + 1, [n])

    run, x = compiled(function), torch.ones(5)
    for n in (2, 3, 2):
        assert torch.equal(run(x, n), function(x, n))
    assert captures() == 2


def test_a_number_that_is_a_size_is_captured_for_each_value(
    weighted: Any, captures: Captures
) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return weighted(x[:n] + 1, n)

    run, x = compiled(function), torch.ones(50)
    for n in (12, 13, 12):
        assert torch.equal(run(x, n), function(x, n))
    assert captures() == 2


def test_a_number_that_the_operator_refuses_raises_its_error_and_costs_no_plan(
    weighted: Any, captures: Captures
) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return weighted(x, n) + 1

    run, x = compiled(function), torch.ones(5)
    for n in (2, 3):
        assert torch.equal(run(x, n), function(x, n))
    with pytest.raises(KernelError, match="99 is too much"):
        run(x, 99)
    for n in (4, 5):
        assert torch.equal(run(x, n), function(x, n))
    assert captures() == 1


BLOCKS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> x(args[0]), out(args[2]);
  if (ctx->block_index == 0) {
    for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * ctx->block_count;
  }
  return 0;
}
"""


def test_a_number_that_a_capture_refuses_is_captured_for_each_value(
    kernel_cache: object, captures: Captures
) -> None:
    devices.load_driver("sim")
    operator = ops.kernel_op(
        "plans_test::blocks(Tensor x, int count) -> Tensor",
        source=jit.Source(text=BLOCKS, name="blocks.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
        grid="count",
    )
    run, x = compiled(lambda x, n: operator(x, n) + 1), torch.ones(5, device="npu")
    for n in (2, 3, 2, 3, 4):
        assert run(x, n).tolist() == [n + 1] * 5
    assert captures() == 3
    operator.undefine()


def test_the_order_of_calls_is_that_of_the_capture(weighted: Any, captures: Captures) -> None:
    def function(x: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
        return weighted(x, n), weighted(x, m)

    run, x = compiled(function), torch.ones(3)
    run(x, 2, 3)
    for n, m in ((7, 7), (8, 9), (9, 8)):
        for ours, theirs in zip(run(x, n, m), function(x, n, m), strict=True):
            assert torch.equal(ours, theirs)
    assert captures() == 1


def test_calls_that_the_capture_does_not_have_are_captured_for_each_value(
    weighted: Any, captures: Captures, caplog: pytest.LogCaptureFixture
) -> None:
    @torch.library.custom_op("plans_test::inner", mutates_args=())
    def inner(x: Tensor) -> Tensor:
        return weighted(x, 3) + 0  # a call that the compiler does not see

    inner.register_fake(torch.empty_like)

    def function(x: Tensor, n: int) -> Tensor:
        return weighted(inner(x), n)

    run, x = compiled(function), torch.ones(3)
    for n in (2, 4, 2):
        assert torch.equal(run(x, n), function(x, n))
    assert captures() in (1, 2)


def test_keys_of_handlers_are_planned_and_hooks_are_not() -> None:
    class Roll(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::roll": [("arg", 1, "by")]}

    class Hooked(Roll):
        @classmethod
        def update_args(cls, dispatch_record: Any, update_input: Any) -> None:
            super().update_args(dispatch_record, update_input)

    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["val"], n.meta["val"] = torch.ones(3, device="meta"), 2
    node = graph.call_function(torch.ops.aten.roll.default, (x, [n], [0]))
    node.meta["val"] = x.meta["val"]
    graph.output((node,))
    module = torch.fx.GraphModule({}, graph)
    assert updates_of(module) is None
    with graphs.graph_handler_scope("aten::roll", Roll):
        updates = updates_of(module)
        assert updates is not None
        (call,) = updates.plan.calls
        assert (call.op, dict(call.updates)) == ("aten::roll", {"by": (Input(1),)})
        assert updates.free == {1}
    with graphs.graph_handler_scope("aten::roll", Hooked):
        assert updates_of(module) is None


# --- the anchor's rows of plans: P1 to P6, P12, P17 ----------------------------------------------


@pytest.fixture
def attention_handlers() -> Iterator[None]:
    """Handlers with specs and a getter alone, where the anchor's rows put them."""

    class Handler:
        UPDATE_SPECS: ClassVar = {
            "npu_fusion_attention_v3.default": [
                ("arg", 14, "actual_seq_qlen"),
                ("arg", 15, "actual_seq_kvlen"),
            ],
            "npu_fused_infer_attention_score.default": [
                ("arg", 5, "actual_seq_lengths"),
                ("arg", 6, "actual_seq_lengths_kv"),
            ],
            "npu_fused_infer_attention_score_v2.default": [
                ("arg", 7, "actual_seq_qlen"),
                ("arg", 8, "actual_seq_kvlen"),
            ],
        }

        @classmethod
        def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
            return args[4:5] != ("BNSD",)

        @classmethod
        def get_update_specs(cls, op_name: str) -> Any:
            return cls.UPDATE_SPECS.get(op_name, [])

    names = list(Handler.UPDATE_SPECS)
    with graphs.graph_handler_scope(names, cast("Any", Handler)):
        yield


def call_of(operator: Any, *values: Any, **keywords: Any) -> Any:
    """What a graph's only call gets; `"name"` stands for an input: numbers first, then tensors."""
    graph = torch.fx.Graph()
    inputs = {}
    for name in ("n", "m"):
        inputs[name] = graph.placeholder(name)
        inputs[name].meta["val"] = 4
    for name in ("q", "k", "v"):
        inputs[name] = graph.placeholder(name)
        inputs[name].meta["val"] = torch.ones(3, 2, 16, device="meta")

    def value(item: Any) -> Any:
        if isinstance(item, list):
            return [value(one) for one in item]
        return inputs.get(item, item) if isinstance(item, str) else item

    node = graph.call_function(
        operator, tuple(map(value, values)), {key: value(item) for key, item in keywords.items()}
    )
    return planned_call(node, {inputs["n"]: 0, inputs["m"]: 1})


def flash(layout: str) -> Any:
    return call_of(
        torch_npu.npu_fusion_attention_v3.default,
        *("q", "k", "v", 1, layout, None, None, None, 1.0, 1.0, 2147483647, 2147483647, 0, None),
        *(["n"], ["n"]),
    )


@pytest.mark.usefixtures("attention_handlers")
def test_arguments_that_are_inputs_of_the_graph_are_planned_as_inputs() -> None:
    call = flash("TND")
    assert call.op == "npu::npu_fusion_attention_v3"
    assert dict(call.updates) == {"actual_seq_qlen": (Input(0),), "actual_seq_kvlen": (Input(0),)}


@pytest.mark.usefixtures("attention_handlers")
def test_a_plan_skips_what_the_handler_does_not_handle() -> None:
    assert flash("BNSD") is None
    assert flash("TND") is not None


def test_operators_without_a_handler_are_not_planned() -> None:
    assert call_of(torch.ops.aten.roll.default, "q", ["n"], [0]) is None


@pytest.mark.usefixtures("attention_handlers")
def test_a_plan_has_what_the_specs_declare() -> None:
    class Handler:
        @classmethod
        def get_update_specs(cls, op_name: str) -> Any:
            return [("arg", 6, "actual_seq_lengths_kv")]

    operator = torch.ops.npu.npu_fused_infer_attention_score.default
    with graphs.graph_handler_scope(
        "npu_fused_infer_attention_score.default", cast("Any", Handler)
    ):
        call = call_of(
            operator, "q", "k", "v", actual_seq_lengths=[15], actual_seq_lengths_kv=[100]
        )
    assert call.op == "npu::npu_fused_infer_attention_score"
    assert dict(call.updates) == {"actual_seq_lengths_kv": (Constant(100),)}


@pytest.mark.usefixtures("attention_handlers")
@pytest.mark.parametrize(
    ("version", "keys", "lengths"),
    [
        ("", ("actual_seq_lengths", "actual_seq_lengths_kv"), (15, 100)),
        ("_v2", ("actual_seq_qlen", "actual_seq_kvlen"), (16, 128)),
    ],
)
def test_lists_of_numbers_are_planned_as_lists_of_constants(
    version: str, keys: tuple[str, str], lengths: tuple[int, int]
) -> None:
    operator = getattr(torch.ops.npu, f"npu_fused_infer_attention_score{version}").default
    given = {key: [length] for key, length in zip(keys, lengths, strict=True)}
    call = call_of(operator, "q", "k", "v", **given)
    assert call.op == f"npu::npu_fused_infer_attention_score{version}"
    assert dict(call.updates) == {key: (Constant(one),) for key, (one,) in given.items()}
    mixed = call_of(operator, "q", "k", "v", **{keys[0]: ["m", 3], "num_key_value_heads": "n"})
    assert dict(mixed.updates) == {
        keys[0]: (Input(1), Constant(3)),
        keys[1]: Constant(None),
        "num_key_value_heads": Input(0),  # keyword-only: a record takes it by its name
    }


def test_an_empty_plan_is_none_of_a_graph_that_has_what_can_be_updated(weighted: Any) -> None:
    x, graph = torch.ones(3), graphs.CapturedGraph()
    with graphs.capture(graph):
        weighted(x, 2)
    with pytest.raises(UpdateError, match=r"missing: .*weighted.*cached compiled code"):
        UpdatePlan(()).bind(graph)
    plain = graphs.CapturedGraph()
    with graphs.capture(plain):
        x + 1
    assert UpdatePlan(()).bind(plain).sources == ()


@pytest.mark.usefixtures("attention_handlers")
def test_a_handler_without_a_getter_has_the_specs_of_its_attribute() -> None:
    class Legacy:
        UPDATE_SPECS: ClassVar = {"aten::roll": [("arg", 1, "by")]}

    x, graph = torch.arange(3.0), graphs.CapturedGraph()
    with graphs.graph_handler_scope("aten::roll", cast("Any", Legacy)):
        with graphs.capture(graph):
            y = torch.roll(x, [1], [0])
        call = call_of(torch.ops.aten.roll.default, "q", ["n"], [0])
        plan = UpdatePlan((call,))
        graph.update(plan.bind(graph).slots([2]))
    assert dict(call.updates) == {"by": (Input(0),)}
    graph.replay()
    assert y.tolist() == [1.0, 2.0, 0.0]
