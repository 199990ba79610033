"""Captured graphs shown to people: the DOT text, and what distinguishes two graphs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError


def layer(x: Tensor, weight: Tensor) -> Tensor:
    with graphs.scope("layer"):
        y = torch.relu(x @ weight)
    x.add_(1)
    return y.t().contiguous() + torch.tensor([1.0, 2.0], device=x.device)


ONE_MORE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<DLTensor*>(args[0]);
  const auto* out = static_cast<DLTensor*>(args[1]);
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    static_cast<float*>(out->data)[i] = static_cast<float*>(x->data)[i] + 1;
  }
  return 0;
}
"""
DOT = """\
digraph captured {
  node [shape=box];
  n0 [label="0: aten::mm\\nlayer", tooltip="operator by out, level 1"];
  n1 [label="1: aten::relu\\nlayer", tooltip="operator by out, level 1"];
  n2 [label="2: aten::add_.Tensor", tooltip="operator by allocations, level 1"];
  n3 [label="3: aten::clone", tooltip="operator by allocations, level 1"];
  n4 [label="4: constant", tooltip="constant by copy"];
  n5 [label="5: aten::add.Tensor", tooltip="operator by out, level 1"];
  m0 [shape=ellipse, label="float32[2, 3]"];
  m1 [shape=ellipse, label="float32[3, 3]"];
  m0 -> n0 [label="float32[2, 3]"];
  m1 -> n0 [label="float32[3, 3]"];
  n0 -> n1 [label="float32[2, 3]"];
  m0 -> n2 [label="float32[2, 3]"];
  n2 -> m0 [style=dashed];
  n1 -> n3 [label="float32[3, 2]"];
  n3 -> n5 [label="float32[3, 2]"];
  n4 -> n5 [label="float32[2]"];
}
"""


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_dot_text_shows_nodes_and_who_fills_what_they_read(device: str) -> None:
    devices.load_driver("sim")
    x, weight = torch.ones(2, 3, device=device), torch.ones(3, 3, device=device)
    for _ in range(2):
        graph, _ = captured(layer, x, weight)
        assert graph.to_dot() == DOT


def test_dot_text_joins_kernels_and_host_operators_on_a_device(
    kernel_cache: object,
) -> None:
    devices.load_driver("sim")
    one_more = ops.kernel_op(
        "graphs_describe::one_more(Tensor x) -> Tensor",
        source=jit.Source(text=ONE_MORE, name="one_more.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    try:
        x = torch.ones(4, device="npu")
        graph, _ = captured(lambda: torch.relu(one_more(torch.relu(x))))
        assert [node.kind for node in graph.nodes] == ["operator", "kernel", "operator"]
        assert "  m0 -> n0 [" in graph.to_dot()
        assert "  n0 -> n1 [" in graph.to_dot()
        assert "  n1 -> n2 [" in graph.to_dot()
    finally:
        one_more.undefine()


def test_dot_text_shows_slots_and_escapes_names(affine: ops.KernelOperator) -> None:
    def run(x: Tensor) -> Tensor:
        with graphs.scope('say "hi"'):
            return affine(x, 3)

    graph, _ = captured(run, torch.ones(2))
    assert '  n0 [label="0: graphs_test::affine\\nsay \\"hi\\"\\n' in graph.to_dot()
    assert '\\nsay \\"hi\\".affine.0.shift = 3\\n' in graph.to_dot()
    graph.update({"**.shift": 4})
    assert "affine.0.shift = 4" in graph.to_dot()


def test_memory_that_is_used_again_belongs_to_its_last_writer() -> None:
    x = torch.ones(64)
    graph, _ = captured(lambda: ((x * 2).sum(), (x * 3).sum()))
    assert "  n0 -> n1 [" in graph.to_dot()
    assert "  n2 -> n3 [" in graph.to_dot()
    assert "  n0 -> n3 [" not in graph.to_dot()


def test_diff_of_equal_captures_is_false_and_says_so(affine: ops.KernelOperator) -> None:
    x = torch.ones(2)
    first, _ = captured(lambda: affine(x, 3))
    second, _ = captured(lambda: affine(x, 3))
    difference = first.diff(second)
    assert not difference
    assert str(difference) == "no difference"
    assert difference == graphs.GraphDiff()


def test_diff_tells_what_was_added_removed_and_changed(affine: ops.KernelOperator) -> None:
    small, large = torch.ones(2), torch.ones(4)
    ours, _ = captured(lambda: torch.relu(affine(small, 3)))
    theirs, _ = captured(lambda: affine(affine(torch.neg(large), 4), 3))
    difference = ours.diff(theirs)
    assert difference.nodes_added == ("aten::neg.0", "graphs_test::affine.1")
    assert difference.nodes_removed == ("aten::relu.0",)
    assert difference.nodes_changed == (
        graphs.Change(
            "graphs_test::affine.0",
            "kernel by launch block (float32[2]) -> (float32[2])",
            "kernel by launch block (float32[4]) -> (float32[4])",
        ),
    )
    assert difference.slots_added[0] == "affine.1.shift"
    assert difference.slots_removed == ("affine.0.x",)  # it reads what `neg` makes
    assert difference.slots_changed == (graphs.Change("affine.0.shift", "int 3", "int 4"),)
    lines = str(difference).splitlines()
    assert lines[:5] == [
        "nodes: 2 added, 1 removed, 1 changed",
        "  + aten::neg.0",
        "  + graphs_test::affine.1",
        "  - aten::relu.0",
        "  ~ graphs_test::affine.0: kernel by launch block (float32[2]) -> (float32[2]) ->"
        " kernel by launch block (float32[4]) -> (float32[4])",
    ]
    assert lines[-1] == "  ~ affine.0.shift: int 3 -> int 4"
    with pytest.raises(FrozenInstanceError):
        difference.reordered = True  # type: ignore[misc]


def test_diff_follows_updates(affine: ops.KernelOperator) -> None:
    x = torch.ones(2)
    first, _ = captured(lambda: affine(x, 3))
    second, _ = captured(lambda: affine(x, 3))
    second.update({"affine.lengths": [], "affine.scale": 2.5})
    assert str(first.diff(second)).splitlines() == [
        "slots: 0 added, 0 removed, 1 changed",
        "  ~ affine.0.scale: float 1.0 -> float 2.5",
    ]


def test_diff_tells_another_order() -> None:
    x = torch.ones(2)
    first, _ = captured(lambda: (torch.relu(x), torch.neg(x)))
    second, _ = captured(lambda: (torch.neg(x), torch.relu(x)))
    assert str(first.diff(second)) == "nodes of both run in another order"


def test_diff_and_dot_refuse_what_is_no_capture() -> None:
    graph, _ = captured(lambda: torch.ones(2) + 1)
    empty = graphs.CapturedGraph()
    with pytest.raises(TypeError, match=r"^diff takes a CapturedGraph, got str$"):
        graph.diff("graph")  # type: ignore[arg-type]
    for action, name in (
        (lambda: graph.diff(empty), "diff"),
        (lambda: empty.diff(graph), "diff"),
        (empty.to_dot, "to_dot"),
    ):
        with pytest.raises(CaptureError, match=rf"^CapturedGraph\.{name}: nothing is captured"):
            action()
