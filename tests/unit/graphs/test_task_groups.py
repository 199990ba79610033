"""torch_npu's manual updates: task groups, and their operators called again with other values."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs, ops
from bringup.errors import CaptureError, UpdateError

DEVICES = ["cpu", "npu"]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def two_groups(x: Tensor, out: Tensor) -> tuple[graphs.CapturedGraph, list[graphs.TaskGroup]]:
    """`out = 2 x + 3 x`, the additions in groups of their own."""
    graph, groups = graphs.CapturedGraph(), []
    with graphs.capture(graph):
        doubled = torch.mul(x, 2)
        graphs.graph_task_group_begin()
        torch.add(doubled, x, alpha=1, out=out)
        groups.append(graphs.graph_task_group_end())
        graphs.graph_task_group_begin()
        out.add_(x, alpha=2)
        groups.append(graphs.graph_task_group_end())
    graph.inputs_of_test = (doubled, x)  # type: ignore[attr-defined]
    return graph, groups


@pytest.mark.parametrize("device", DEVICES)
def test_update_belongs_to_the_next_replay(device: str) -> None:
    x, out = torch.ones(3, device=device), torch.zeros(3, device=device)
    graph, (first, second) = two_groups(x, out)
    doubled = graph.inputs_of_test[0]  # type: ignore[attr-defined]
    graph.replay()
    assert out.tolist() == [5] * 3
    graphs.graph_task_update_begin(None, first)
    given = torch.add(doubled, x, alpha=10, out=out)
    graphs.graph_task_update_end()
    assert given is out
    assert out.tolist() == [5] * 3  # nothing ran
    graph.replay()
    assert out.tolist() == [14] * 3
    graphs.graph_task_update_begin(None, second)
    out.add_(x)  # alpha is 1 by the schema
    graphs.graph_task_update_end()
    graph.replay()
    assert out.tolist() == [13] * 3
    assert [len(group.nodes) for group in (first, second)] == [1, 1]
    values = {name: slot.value for name, slot in graph.slots.items() if slot.type != "Tensor"}
    assert values == {
        "add.0.alpha": 10,
        "add_.0.alpha": 1,
    }


def test_names_of_torch_npu_and_functional_calls() -> None:
    npu = torch.npu  # type: ignore[attr-defined]
    x, graph = torch.tensor([[3.0, 1.0], [2.0, 5.0]], device="npu"), npu.NPUGraph()
    stream = npu.Stream()
    with npu.graph(graph):
        npu.graph_task_group_begin(stream)
        view = x.t()
        y = torch.cumsum(view, 0)
        handle = npu.graph_task_group_end(stream)
    npu.graph_task_update_begin(stream, handle)
    result = torch.cumsum(x.t(), 1)  # no out: it runs, and gives what the replay will
    npu.graph_task_update_end(stream)
    graph.replay()
    assert torch.equal(y.cpu(), result.cpu())
    assert torch.equal(y.cpu(), x.cpu().t().cumsum(1))


def test_kernels_are_updated_so_too(affine: ops.KernelOperator) -> None:
    x, graph = torch.ones(2), graphs.CapturedGraph()
    with graphs.capture(graph):
        graphs.graph_task_group_begin()
        y = affine(x, 1, 2.0, lengths=[1, 2])
        handle = graphs.graph_task_group_end()
    graphs.graph_task_update_begin(None, handle)
    affine(x, 3, 4.0, lengths=[5, 6])
    graphs.graph_task_update_end()
    graph.replay()
    assert y.tolist() == [18, 18]


Wrong = Callable[[Tensor, Tensor, Tensor], object]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d, x, out: None, "0 of its 1 operators were called; the next is aten::add.out"),
        (lambda d, x, out: torch.mul(d, x, out=out), "is aten::add.out, not aten::mul.out"),
        (
            lambda d, x, out: torch.add(d, x + 0, out=out),
            "operator 0 of the group is aten::add.out, not aten::add.Tensor",
        ),
        (
            lambda d, x, out: torch.add(d, torch.ones(1).expand(3), out=out),
            "not aten::ones",
        ),
        (lambda d, x, out: torch.add(x, x, out=out), "'self' of aten::add.out is another tensor"),
        (lambda d, x, out: torch.add(d, x, out=x), "'out' of aten::add.out is another tensor"),
        (
            lambda d, x, out: [torch.add(d, x, alpha=7, out=out) for _ in range(2)],
            "the group has 1 operators, and aten::add.out is one more",
        ),
    ],
)
def test_calls_that_are_not_the_groups_change_nothing(call: Wrong, words: str) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    graph, (group, _) = two_groups(x, out)
    doubled = graph.inputs_of_test[0]  # type: ignore[attr-defined]

    def update() -> None:
        graphs.graph_task_update_begin(None, group)
        try:
            call(doubled, x, out)
        finally:
            graphs.graph_task_update_end()

    with pytest.raises(UpdateError, match=words):
        update()
    graph.replay()
    assert out.tolist() == [5] * 3
    graphs.graph_task_update_begin(None, group)  # the next one is free to go
    torch.add(doubled, x, alpha=2, out=out)
    graphs.graph_task_update_end()


def test_marks_out_of_order() -> None:
    for mark in (graphs.graph_task_group_begin, graphs.graph_task_group_end):
        with pytest.raises(CaptureError, match="no capture is under way"):
            mark()
    with pytest.raises(UpdateError, match=r"call graph_task_update_begin\(\) before"):
        graphs.graph_task_update_end()
    with pytest.raises(TypeError, match="takes a TaskGroup, got 3"):
        graphs.graph_task_update_begin(None, 3)  # type: ignore[arg-type]
    x, out = torch.ones(3), torch.zeros(3)
    graph, (group, other) = two_groups(x, out)
    graphs.graph_task_update_begin(None, group)
    with pytest.raises(UpdateError, match=r"call graph_task_update_end\(\) before"):
        graphs.graph_task_update_begin(None, other)
    with pytest.raises(UpdateError, match="0 of its 1"):
        graphs.graph_task_update_end()
    graph.reset()
    with pytest.raises(UpdateError, match="the graph of this group was reset"):
        graphs.graph_task_update_begin(None, group)


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        (["begin", "begin"], "a group has begun, and groups do not nest"),
        (["begin", "end"], "no operator ran in the group"),
        (["end"], r"call graph_task_group_begin\(\) before"),
    ],
)
def test_groups_that_are_refused(marks: list[str], words: str) -> None:
    def run() -> None:
        with graphs.capture(graphs.CapturedGraph()):
            torch.ones(2).add_(1)
            for mark in marks:
                {
                    "begin": graphs.graph_task_group_begin,
                    "end": graphs.graph_task_group_end,
                }[mark]()

    with pytest.raises(CaptureError, match=words):
        run()
    x, out = torch.ones(3), torch.zeros(3)
    two_groups(x, out)  # nothing of it is left behind


def test_a_group_that_is_not_ended_is_refused() -> None:
    def run() -> None:
        with graphs.capture(graphs.CapturedGraph()):
            graphs.graph_task_group_begin()
            torch.ones(2).add_(1)

    with pytest.raises(CaptureError, match="graph_task_group_begin was called and graph_task_gr"):
        run()
    two_groups(torch.ones(3), torch.zeros(3))


def test_a_group_does_not_keep_the_graph() -> None:
    x, out = torch.ones(3), torch.zeros(3)
    gc.disable()
    try:
        graph, (first, _) = two_groups(x, out)
        assert first.graph is graph
        native = weakref.ref(graph._content)
        graph.reset()
        assert native() is None
        with pytest.raises(UpdateError, match="was reset or dropped"):
            graphs.graph_task_update_begin(None, first)
        graph, (first, _) = two_groups(x, out)
        del graph
        assert first.graph is None
    finally:
        gc.enable()


def test_memory_without_content_is_no_operator_of_a_group() -> None:
    x, graph = torch.rand(3, 4), graphs.CapturedGraph()
    with graphs.capture(graph):
        graphs.graph_task_group_begin()
        out = torch.empty_permuted((3, 4), (1, 0))
        torch.add(x, x, alpha=1, out=out)
        group = graphs.graph_task_group_end()
    graphs.graph_task_update_begin(None, group)
    torch.empty_permuted((3, 4), (1, 0))
    torch.add(x, x, alpha=5, out=out)
    graphs.graph_task_update_end()
    graph.replay()
    torch.testing.assert_close(out, 6 * x)
