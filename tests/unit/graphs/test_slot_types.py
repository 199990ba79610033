"""What type a slot has: the schema's own, and nothing that only looks like an int."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import graphs, jit, ops
from bringup.errors import CaptureError, UpdateError


def test_dtypes_layouts_and_the_like_are_no_slots(handlers: None) -> None:
    @torch.library.custom_op(
        "graphs_test::converted",
        mutates_args=(),
        schema="(Tensor x, ScalarType dt, MemoryFormat mf, Layout lay, Device dev, int n,"
        " bool? flag) -> Tensor",
    )
    def converted(x, dt, mf, lay, dev, n, flag):  # type: ignore[no-untyped-def]
        return (x * n).to(dt)

    @graphs.register_graph_handler("graphs_test::converted")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {
            "graphs_test::converted": [("kwarg", "n", "n"), ("kwarg", "flag", "flag")]
        }

    x = torch.ones(2)
    arguments = (
        torch.float64,
        torch.contiguous_format,
        torch.strided,
        torch.device("cpu"),
        2,
        True,
    )
    graph, _ = captured(converted, x, *arguments)
    assert {name.rpartition(".")[2]: slot.type for name, slot in graph.slots.items()} == {
        "n": "int",
        "flag": "bool",
    }
    with pytest.raises(UpdateError, match=r"no slot '\*\*\.dt'"):
        graph.update({"**.dt": 777})
    for wrong in (True, 1.0, None, torch.float32, "2", 1 << 63):
        with pytest.raises(UpdateError, match=r"'converted\.0\.n' takes an int"):
            graph.update({"**.n": wrong})
    for wrong in (1, 0.0, None):
        with pytest.raises(UpdateError, match=r"'converted\.0\.flag' takes a bool"):
            graph.update({"**.flag": wrong})


@pytest.mark.parametrize("argument", ["dt", "mf", "lay", "dev"])
def test_handler_that_declares_a_dtype_is_told_at_the_capture(
    handlers: None, argument: str
) -> None:
    @torch.library.custom_op(
        f"graphs_test::as_{argument}",
        mutates_args=(),
        schema="(Tensor x, ScalarType dt, MemoryFormat mf, Layout lay, Device dev) -> Tensor",
    )
    def converted(x, dt, mf, lay, dev):  # type: ignore[no-untyped-def]
        return x.to(dt)

    name = f"graphs_test::as_{argument}"

    @graphs.register_graph_handler(name)
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {name: [("kwarg", argument, "key")]}

    arguments = (torch.float64, torch.contiguous_format, torch.strided, torch.device("cpu"))
    with pytest.raises(CaptureError, match=f"declares kwarg '{argument}'.* no\\s+int, float"):
        captured(converted, torch.ones(2), *arguments)


def test_optional_bool_and_dtype_of_a_kernel_have_their_own_types(kernel_cache: object) -> None:
    operator = ops.kernel_op(
        "graphs_test::flagged(Tensor x, bool? flag=None, int? n=None, ScalarType dt=6) -> Tensor",
        source=jit.Source(text=FLAGGED, name="flagged.cpp"),
        outputs=ops.empty_like("x"),
    )
    x = torch.zeros(2)
    graph, output = captured(lambda: operator(x, flag=True, n=3))
    assert {name: slot.type for name, slot in graph.slots.items()} == {
        "flagged.0.flag": "bool",
        "flagged.0.n": "int",
    }
    with pytest.raises(UpdateError, match="takes a bool"):
        graph.update({"flagged.flag": 0})
    graph.update({"flagged.flag": False, "flagged.n": 5})
    graph.replay()
    assert output.tolist() == [5, 5]
    operator.undefine()


FLAGGED = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* flag = static_cast<int64_t*>(args[1]);
  const auto* n = static_cast<int64_t*>(args[2]);
  auto* out = static_cast<DLTensor*>(args[4]);
  for (int64_t i = 0; i < out->shape[0]; ++i) {
    static_cast<float*>(out->data)[i] = (n != nullptr ? *n : 0) + (flag && *flag ? 100 : 0);
  }
  return 0;
}
"""


def test_value_out_of_the_tensors_range_is_refused_by_the_replay(handlers: None) -> None:
    @graphs.register_graph_handler("aten::fill_.Scalar")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::fill_.Scalar": [("kwarg", "value", "value")]}

    x = torch.zeros(2, dtype=torch.uint8)
    graph, _ = captured(lambda: x.fill_(3))
    graph.update({"**.value": 300})
    with pytest.raises(RuntimeError, match=r"cannot be converted to type .* without overflow"):
        graph.replay()
    graph.update({"**.value": 7})
    graph.replay()
    assert x.tolist() == [7, 7]
