"""None in the place of a tensor and a tensor in that of None, and lists of tensors, as slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs, jit, ops
from bringup.errors import UpdateError

SHIFTED = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[3]);
  const auto* bias = static_cast<const DLTensor*>(args[1]);
  const auto* more = static_cast<const bringup_list*>(args[2]);
  const auto* others = static_cast<DLTensor* const*>(more->data);
  for (int64_t i = 0; i < x.size(0); ++i) {
    float sum = x(i) + (bias == nullptr ? 0 : static_cast<const float*>(bias->data)[i]);
    for (int64_t n = 0; n < more->size; ++n) sum += static_cast<float*>(others[n]->data)[i];
    out(i) = sum;
  }
  return 0;
}
"""


class Specs(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {"slot_t::shifted": [("arg", 1, "bias"), ("arg", 2, "more")]}


@pytest.fixture(scope="module", params=["cpu", "npu", "npu host"])
def shifted(request: pytest.FixtureRequest, kernel_cache: object) -> Iterator[tuple[str, Any]]:
    """(device, `x + bias + the sum of more`): a kernel of the host, one of the device, and an
    operator that runs on the host inside of a device graph.
    """
    devices.load_driver("sim")
    device = str(request.param).split()[0]
    schema = "(Tensor x, Tensor? bias, Tensor[] more) -> Tensor"
    if request.param == "npu host":
        library = torch.library.Library("slot_t", "DEF")
        library.define("shifted" + schema)

        def run(x: Tensor, bias: Tensor | None, more: list[Tensor]) -> Tensor:
            total = x.clone() if bias is None else x + bias
            for one in more:
                total = total + one
            return total

        library.impl("shifted", run, "CompositeExplicitAutograd")
        with graphs.graph_handler_scope("slot_t::shifted", Specs):
            yield device, torch.ops.slot_t.shifted
        library._destroy()
        return
    operator = ops.kernel_op(
        f"slot_t::shifted_{device}{schema}",
        source=jit.Source(text=SHIFTED, name="shifted.cpp"),
        outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "bias"), ops.same_dtype("x", "bias")],
        kind="device" if device == "npu" else "host",
    )
    yield device, operator
    operator.undefine()


def captured(call: Any) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        result = call()
    return graph, result


def tensor(device: str, *values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


def test_none_and_a_tensor_take_each_others_place(shifted: tuple[str, Any]) -> None:
    device, operator = shifted
    x, bias, none = tensor(device, 1, 2), tensor(device, 10, 20), None
    for first, second in ((bias, none), (none, bias)):
        graph, y = captured(lambda first=first: operator(x, first, []))
        (name,) = (name for name in graph.slots if name.endswith(".bias"))
        assert graph.slots[name].type == "Tensor?"
        for value, expected in ((second, 0), (first, 1), (None, 2), (tensor(device, 5, 5), 3)):
            graph.update({name: value})
            graph.replay()
            given = 0 if value is None else value
            assert torch.equal(y, x + given), expected
        report = graph.update({name: None})
        assert report.changed == (name,)
        assert graph.update({name: None}).changed == ()
        assert graph.slots[name].value is None


def test_elements_of_a_list_are_exchanged(shifted: tuple[str, Any]) -> None:
    device, operator = shifted
    x, first, second = tensor(device, 1, 2), tensor(device, 10, 20), tensor(device, 100, 200)
    graph, y = captured(lambda: operator(x, None, [first, second]))
    (name,) = (name for name in graph.slots if name.endswith(".more"))
    assert graph.slots[name].type == "Tensor[]"
    assert [one.tolist() for one in graph.slots[name].value] == [[10, 20], [100, 200]]
    third = tensor(device, 1000, 2000)
    graph.update({name: [first, third]})
    graph.replay()
    assert y.tolist() == [1011, 2022]
    graph.update({name: (third, third)})
    first.zero_()
    third.fill_(1)
    graph.replay()
    assert y.tolist() == [3, 4]
    assert graph.update({name: [third, third]}).changed == ()


def test_what_does_not_fit_is_refused_and_changes_nothing(shifted: tuple[str, Any]) -> None:
    device, operator = shifted
    x, one = tensor(device, 1, 2), tensor(device, 10, 20)
    graph, y = captured(lambda: operator(x, None, [one, one]))
    bias, more = (f"**.{key}" for key in ("bias", "more"))
    for key, value, words in (
        (more, [one], "takes 2 values, as captured, got 1"),
        (more, [one, one[:1]], r"number 1 of the list: it is float32\[1\]"),
        (more, [one, None], "takes a list of tensors, got"),
        (more, one, "takes a list of tensors, got a tensor"),
        (more, None, "takes a list of tensors, got None"),
        (more, [one, y], "would be memory"),
        (bias, 3, "takes a tensor or None, got 3"),
        (bias, [one], "takes a tensor or None, got"),
        (bias, torch.zeros(4, device=device)[::2], "it is not contiguous"),
        (bias, torch.zeros(2, device="meta"), "it is on meta"),
        (bias, y, "would be memory"),
    ):
        with pytest.raises(UpdateError, match=words):
            graph.update({key: value})
    graph.replay()
    assert y.tolist() == [21, 42]


def test_a_kernels_own_checks_hold_for_a_tensor_in_the_place_of_none(kernel_cache: object) -> None:
    operator = ops.kernel_op(
        "slot_t::checked(Tensor x, Tensor? bias, Tensor[] more) -> Tensor",
        source=jit.Source(text=SHIFTED, name="shifted.cpp"),
        outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "bias"), ops.same_dtype("x", "bias")],
    )
    try:
        graph, y = captured(lambda: operator(torch.ones(2), None, []))
        for wrong in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
            with pytest.raises(UpdateError, match="bias"):
                graph.update({"**.bias": wrong})
        graph.replay()
        assert y.tolist() == [1, 1]
    finally:
        operator.undefine()


def test_a_list_with_a_tensor_of_the_graph_is_no_slot(shifted: tuple[str, Any]) -> None:
    device, operator = shifted
    x = tensor(device, 1, 2)
    graph, _ = captured(lambda: operator(x, x + 1, [x, x * 2]))
    assert not [name for name in graph.slots if name.endswith((".bias", ".more"))]
    with pytest.raises(UpdateError, match="no slot"):
        graph.update({"**.more": [x, x]})


def test_memory_of_elements_goes_when_nothing_reads_them(shifted: tuple[str, Any]) -> None:
    device, operator = shifted
    x = tensor(device, 1, 2)
    elements = [tensor(device, 10, 20), tensor(device, 100, 200)]
    graph, y = captured(lambda: operator(x, elements[0], list(elements)))
    other = tensor(device, 5, 5)
    graph.update({"**.more": [other, elements[1]]})
    graph.update({"**.bias": None})
    graph.replay()
    assert y.tolist() == [106, 207]
    assert graph.memory.inputs == sum(t.untyped_storage().nbytes() for t in (x, other, elements[1]))
    graph.update({"**.more": [other, other]})
    graph.replay()
    assert y.tolist() == [11, 12]
    assert graph.memory.inputs == sum(t.untyped_storage().nbytes() for t in (x, other))


def test_an_operator_of_torch_takes_other_lists(handlers: None) -> None:
    @graphs.register_graph_handler("aten::cat")
    class Cat(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::cat": [("arg", 0, "parts")]}

    parts = [torch.ones(2), torch.zeros(1)]
    graph, y = captured(lambda: torch.cat(parts))
    graph.update([{"parts": [torch.tensor([4.0, 5.0]), torch.tensor([6.0])]}])
    graph.replay()
    assert y.tolist() == [4, 5, 6]
    with pytest.raises(UpdateError, match="number 0 of the list: it is"):
        graph.update([{"parts": [torch.ones(1), torch.ones(2)]}])


def test_a_run_is_refused_where_an_element_of_its_input_was_exchanged(
    shifted: tuple[str, Any],
) -> None:
    device, operator = shifted
    x, one = tensor(device, 1, 2), tensor(device, 10, 20)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph, inputs=(x, one)):
        graph.outputs = operator(x, None, [one, one])
    assert graph.run(x, one).tolist() == [21, 42]
    graph.update({"**.more": [one, tensor(device, 0, 0)]})
    with pytest.raises(Exception, match="reads another tensor since an update"):
        graph.run(x, one)
    graph.update({"**.more": [one, one]})
    assert graph.run(x, one).tolist() == [21, 42]
