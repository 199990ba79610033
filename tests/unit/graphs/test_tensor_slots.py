"""Tensors as slots: other memory in the place of a captured input, without a copy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError, UpdateError

DEVICES = ["cpu", "npu"]
ROW = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), weight(args[1]), out(args[3]);
  const int64_t n = *static_cast<int64_t*>(args[2]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * weight(i) + n;
  return 0;
}
"""


@pytest.fixture(scope="module", params=["cpu", "npu", "npu host"])
def row(request: pytest.FixtureRequest, kernel_cache: object) -> Iterator[tuple[str, Any]]:
    """(device, `x * weight + n`): a kernel of the host, one of the device, and an operator that
    runs on the host inside of a device graph.
    """
    devices.load_driver("sim")
    device = str(request.param).split()[0]
    if request.param == "npu host":
        library = torch.library.Library("graphs_t", "DEF")
        library.define("row(Tensor x, Tensor weight, int n=0) -> Tensor")
        library.impl("row", lambda x, weight, n=0: x * weight + n, "CompositeExplicitAutograd")
        with graphs.graph_handler_scope("graphs_t::row", Row):
            yield device, torch.ops.graphs_t.row
        library._destroy()
        return
    operator = ops.kernel_op(
        f"graphs_t::row_{device}(Tensor x, Tensor weight, int n=0) -> Tensor",
        source=jit.Source(text=ROW, name="row.cpp"),
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("x", "weight"),
        kind="device" if device == "npu" else "host",
    )
    yield device, operator
    operator.undefine()


class Row(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {
        "graphs_t::row": [("arg", 0, "x"), ("arg", 1, "weight"), ("arg", 2, "n")]
    }


def captured(call: Any) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = call()
    return graph, result


def slot_of(graph: graphs.CapturedGraph, argument: str) -> str:
    (name,) = (name for name in graph.slots if name.endswith(f".{argument}"))
    return name


def test_a_replay_reads_the_tensor_of_the_last_update(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.full((3,), 2.0, device=device)
    graph, y = captured(lambda: operator(x, weight, 5) + 0)
    name = slot_of(graph, "weight")
    slot = graph.slots[name]
    assert slot.type == "Tensor"
    assert slot.value.data_ptr() == weight.data_ptr()
    other = torch.tensor([1.0, 2.0, 3.0], device=device)
    report = graph.update({name: other})
    assert report.changed == (name,)
    assert 0 < report.microseconds < 1e6
    assert graph.update({name: other}) == ((), (name,), 0)
    assert graph.update({name: other.view(3)}).changed == ()
    graph.replay()
    assert y.tolist() == [6, 7, 8]
    other.fill_(10)
    graph.replay()
    assert y.tolist() == [15] * 3
    assert graph.update({name: weight, slot_of(graph, "n"): 1}).changed
    graph.replay()
    assert y.tolist() == [3] * 3


@pytest.mark.usefixtures("settled")
def test_memory_lives_as_long_as_a_replay_may_read_it(row: tuple[str, Any]) -> None:
    device, operator = row
    x = torch.ones(1000, device=device)

    def capture_of(weight: Tensor) -> tuple[graphs.CapturedGraph, Any]:
        return captured(lambda: operator(x, weight, 0) + 0)

    graph, y = capture_of(torch.zeros(1000, device=device))
    before = torch.accelerator.memory_allocated()
    name = slot_of(graph, "weight")
    graph.update({name: torch.full((1000,), 7.0, device=device)})  # only the graph has it
    assert graph.slots[name].value.tolist() == [7] * 1000
    for _ in range(3):
        torch.full((1000,), -1.0, device=device)
        graph.replay()
        assert y.tolist() == [7] * 1000
    if device == "npu":  # the captured one is gone
        assert torch.accelerator.memory_allocated() <= before
        for value in range(100):
            graph.update({name: torch.full((1000,), float(value), device=device)})
            graph.replay()
        assert y.tolist() == [99] * 1000
        assert torch.accelerator.memory_allocated() <= before + 3 * 4096


def test_updates_that_nobody_keeps_beside_replays_in_several_streams(
    row: tuple[str, Any],
) -> None:
    device, operator = row
    x, weight = torch.ones(64, device=device), torch.zeros(64, device=device)
    collected = torch.zeros(400, device=device)
    index = torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        y = operator(x, weight, 0)
        collected.index_copy_(0, index, y[:1])
        index.add_(1)

    graph, _ = captured(step)
    name = slot_of(graph, "weight")
    randomly, expected = random.Random(7), []
    streams = [torch.Stream(device) for _ in range(3)] if device == "npu" else [None]
    value = 0.0
    for _ in range(400):
        stream = randomly.choice(streams)
        if randomly.random() < 0.7:
            value = float(randomly.randrange(1000))
            graph.update({name: torch.full((64,), value).to(device)})
        if stream is None:
            graph.replay()
        else:
            stream.wait_stream(torch.accelerator.current_stream())
            with stream:
                graph.replay()
        expected.append(value)
        torch.full((64,), -1.0, device=device)  # may get memory that was freed
    if device == "npu":
        torch.accelerator.synchronize()
    assert collected.tolist() == expected


WRONG: dict[str, tuple[Any, str]] = {
    "shape": (lambda x: x[:2], r"it is float32\[2\].*, not float32\[3\]"),
    "dtype": (lambda x: x.double(), r"it is float64\[3\]"),
    "strides": (lambda x: x.repeat_interleave(2)[::2], r"its strides are \[2\], not \[1\]"),
    "none": (lambda x: None, "takes a tensor, got None"),
    "number": (lambda x: 3, "takes a tensor, got 3"),
    "sparse": (lambda x: x.cpu().to_sparse(), "is not strided"),
    "meta": (lambda x: x.to("meta"), "meta"),
    "result": (lambda x: RESULT[0], "would be memory that this call writes"),
}
RESULT: list[Tensor] = []


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_does_not_fit_changes_nothing(row: tuple[str, Any], wrong: str) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.full((3,), 2.0, device=device)
    graph, y = captured(lambda: operator(x, weight, 5))
    RESULT[:] = [y]
    make, words = WRONG[wrong]
    with pytest.raises(UpdateError, match=words):
        graph.update({slot_of(graph, "n"): 9, slot_of(graph, "weight"): make(torch.ones_like(x))})
    graph.replay()
    assert y.tolist() == [7] * 3
    RESULT.clear()


def test_a_tensor_of_another_device_is_refused() -> None:
    devices.load_driver("sim")
    x = torch.ones(2, device="npu")
    with graphs.graph_handler_scope("aten::mul.Tensor", Mul):
        graph, _ = captured(lambda: x * x)
    with pytest.raises(UpdateError, match=r"it is float32\[2\], not float32\[2\] on npu:0"):
        graph.update({"mul.other": torch.ones(2)})


class Mul(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {"aten::mul.Tensor": [("arg", 1, "other")]}


def test_tensors_that_the_graph_makes_or_writes_are_no_slots(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph, _ = captured(lambda: operator(operator(x, weight) * 2, weight))
    tensors = [name for name, slot in graph.slots.items() if slot.type == "Tensor"]
    assert [name.split(".")[-2:] for name in tensors] == [
        ["0", "x"],
        ["0", "weight"],
        ["1", "weight"],
    ]
    with pytest.raises(UpdateError, match="no slot"):
        graph.update({tensors[2].replace("weight", "x"): x})


def test_what_a_call_writes_or_gives_back_is_no_slot() -> None:
    class InPlace(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::add_.Tensor": [("arg", 1, "other"), ("arg", 2, "alpha")]}

        @classmethod
        def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
            return True

    x, other = torch.ones(3), torch.ones(3)
    with graphs.graph_handler_scope("aten::add_.Tensor", InPlace):
        graph, _ = captured(lambda: x.add_(other))
    assert [name for name, slot in graph.slots.items() if slot.type == "Tensor"] == ["add_.0.other"]


def test_memory_that_moves_after_an_update_is_refused(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph, y = captured(lambda: operator(x, weight, 0) + 0)
    other = torch.full((3,), 2.0, device=device)
    graph.update({slot_of(graph, "weight"): other})
    weight.resize_(3000)  # the captured one is nothing to the graph any more
    graph.replay()
    assert y.tolist() == [2] * 3
    other.resize_(3000)
    with pytest.raises(RuntimeError, match=r"float32\[3\].* has other memory now"):
        graph.replay()


def test_a_slot_has_its_own_memory_also_where_two_calls_read_the_same(
    row: tuple[str, Any],
) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph, (first, second) = captured(lambda: (operator(x, weight) + 0, operator(x, weight) + 0))
    names = [name for name in graph.slots if name.endswith(".weight")]
    other = torch.full((3,), 2.0, device=device)
    graph.update({names[0]: other})
    weight.fill_(5)
    graph.replay()
    assert (first.tolist(), second.tolist()) == ([2] * 3, [5] * 3)
    weight.resize_(3000)
    with pytest.raises((RuntimeError, CaptureError), match="has other memory now"):
        graph.replay()


def test_run_copies_into_no_input_that_another_tensor_took_the_place_of(
    row: tuple[str, Any],
) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs={"x": x}):
        graph.outputs = operator(x, weight, 0) + 0
    assert graph.run(x=torch.full_like(x, 3)).tolist() == [3] * 3
    two = torch.full_like(weight, 2)
    graph.update({slot_of(graph, "weight"): two})
    assert graph.run(x=torch.full_like(x, 3)).tolist() == [6] * 3
    graph.update({slot_of(graph, "x"): torch.full_like(x, 10)})
    with pytest.raises(CaptureError, match=r"run: an operator that read the input float32\[3\]"):
        graph.run(x=torch.full_like(x, 3))
    graph.replay()
    assert graph.outputs.tolist() == [20] * 3
    graph.update({slot_of(graph, "x"): x})
    assert graph.run(x=torch.full_like(x, 4)).tolist() == [8] * 3


def test_a_run_that_fails_before_its_nodes_leaves_the_tensors(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs={"x": x}):
        graph.outputs = operator(x, weight, 0) + 0
    slots = {slot_of(graph, "weight"): torch.full_like(x, 2), slot_of(graph, "x"): x + 1}
    with pytest.raises(CaptureError, match="reads another tensor since an update"):
        graph.run(x=x, slots=slots)
    assert graph.run(x=torch.full_like(x, 4)).tolist() == [4] * 3


def test_two_threads_that_exchange_tensors_see_whole_ones(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(8, device=device), torch.zeros(8, device=device)
    graph, y = captured(lambda: operator(x, weight, 0) + 0)
    name, shift = slot_of(graph, "weight"), slot_of(graph, "n")

    def update(thread: int) -> None:
        for i in range(300):
            number = thread * 1000 + i
            graph.update({name: torch.full((8,), float(number)).to(device), shift: -number})

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(update, thread) for thread in range(2)]
        while not all(one.done() for one in working):
            graph.replay()
            assert y.tolist() == [0] * 8
        for one in working:
            one.result()


def test_the_list_form_takes_tensors_and_keeps_none(handlers: None) -> None:
    @graphs.register_graph_handler("aten::addmm")
    class Linear(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::addmm": [("arg", 0, "bias")]}

        @classmethod
        def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
            return True

    bias, x, weight = torch.zeros(2), torch.ones(3, 4), torch.ones(4, 2)
    graph, y = captured(lambda: torch.addmm(bias, x, weight))
    other = torch.tensor([1.0, 2.0])
    graph.update([{"bias": other, "beta": 2}])
    record = graph.dispatch_records[0]
    assert isinstance(record.args[0], graphs.TensorRef)
    assert record.args[0].get() is other
    graph.replay()
    assert y[0].tolist() == [6, 8]
    bias.fill_(5)
    graph.update([{"bias": bias}])
    graph.replay()
    assert y[0].tolist() == [14, 14]


def test_a_task_group_takes_other_tensors(row: tuple[str, Any]) -> None:
    device, operator = row
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        graphs.graph_task_group_begin()
        y = operator(x, weight, 0)
        group = graphs.graph_task_group_end()
    three, four = torch.full_like(x, 3), torch.full_like(x, 4)
    graphs.graph_task_update_begin(None, group)
    operator(three, four, 5)
    graphs.graph_task_update_end()
    graph.replay()
    assert y.tolist() == [17] * 3
