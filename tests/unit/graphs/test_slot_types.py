"""What type a slot has: the schema's own, and nothing that only looks like an int."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError, UpdateError


def test_optional_arguments_take_none_and_only_their_own_type(handlers: None) -> None:
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
            "graphs_test::converted": [
                ("kwarg", "n", "n"),
                ("kwarg", "flag", "flag"),
                ("kwarg", "dt", "dt"),
            ]
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
        "dt": "dtype",
        "n": "int",
        "flag": "bool?",
    }
    for wrong_dtype in (777, None, "float32", torch.strided):
        with pytest.raises(UpdateError, match=r"'converted\.0\.dt' takes a dtype"):
            graph.update({"**.dt": wrong_dtype})
    assert graph.update({"**.flag": None}).changed == ("converted.0.flag",)
    assert graph.slots["converted.0.flag"].value is None
    for wrong in (True, 1.0, None, torch.float32, "2", 1 << 63):
        with pytest.raises(UpdateError, match=r"'converted\.0\.n' takes an int"):
            graph.update({"**.n": wrong})
    for wrong in (1, 0.0, "yes"):
        with pytest.raises(UpdateError, match=r"'converted\.0\.flag' takes a bool or None"):
            graph.update({"**.flag": wrong})


@pytest.mark.parametrize("argument", ["mf", "lay", "dev"])
def test_handler_that_declares_a_layout_is_told_at_the_capture(
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
    with pytest.raises(CaptureError, match=f"declares kwarg '{argument}'.* no\\s+value that"):
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
        "flagged.0.x": "Tensor",
        "flagged.0.flag": "bool?",
        "flagged.0.n": "int?",
        "flagged.0.dt": "dtype",
    }
    assert graph.slots["flagged.0.dt"].value is torch.float32
    with pytest.raises(UpdateError, match="takes a bool or None"):
        graph.update({"flagged.flag": 0})
    graph.update({"flagged.flag": False, "flagged.n": 5})
    graph.replay()
    assert output.tolist() == [5, 5]
    for flag, n, expected in ((None, None, 0), (True, None, 100), (None, 7, 7), (True, 1, 101)):
        graph.update({"flagged.flag": flag, "flagged.n": n})
        graph.replay()
        assert output.tolist() == [expected] * 2
        assert (graph.slots["flagged.0.flag"].value, graph.slots["flagged.0.n"].value) == (flag, n)
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


def test_value_out_of_the_tensors_range_is_refused(handlers: None) -> None:
    @graphs.register_graph_handler("aten::fill_.Scalar")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::fill_.Scalar": [("kwarg", "value", "value")]}

    x = torch.zeros(2, dtype=torch.uint8)
    graph, _ = captured(lambda: x.fill_(3))
    with pytest.raises(UpdateError, match=r"cannot be converted to type .* without overflow"):
        graph.update({"**.value": 300})
    graph.update({"**.value": 7})
    graph.replay()
    assert x.tolist() == [7, 7]


TEXTS = """
#include <cstring>
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* word = static_cast<const char*>(args[1]);
  const auto* list = static_cast<bringup_list*>(args[2]);
  auto* out = static_cast<DLTensor*>(args[3]);
  int64_t sum = word != nullptr ? static_cast<int64_t>(std::strlen(word)) * 1000 : 0;
  for (int64_t i = 0; list != nullptr && i < list->size; ++i) {
    sum += static_cast<const int64_t*>(list->data)[i] << i;
  }
  *static_cast<float*>(out->data) = static_cast<float>(sum);
  return 0;
}
"""


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_texts_and_lists_of_bool_are_written(kernel_cache: object, device: str) -> None:
    devices.load_driver("sim")
    operator = ops.kernel_op(
        "graphs_test::words(Tensor x, str? word, bool[]? flags) -> Tensor",
        source=jit.Source(text=TEXTS, name="words.cpp"),
        outputs=ops.empty(1, dtype=torch.float32),
        checks=ops.kernel_checks(),
    )
    graph, output = captured(operator, torch.zeros(2, device=device), "ab", [True, False, True])
    assert {name: slot.type for name, slot in graph.slots.items()} == {
        "words.0.x": "Tensor",
        "words.0.word": "str?",
        "words.0.flags": "bool[]?",
    }
    for word, flags, expected in (
        ("abc", [False, True, True], 3006),
        (None, [True, True, True], 7),
        ("", None, 0),
        ("longer than before", torch.tensor([True, True, False]), 18003),
    ):
        graph.update({"**.word": word, "**.flags": flags})
        graph.replay()
        assert output.tolist() == [expected]
    for wrong in (b"ab", 3, "a\0b"):
        with pytest.raises(UpdateError, match="takes a str or None"):
            graph.update({"**.word": wrong})
    for wrong_list in ([1, 0, 1], "ab", True, torch.tensor([1.0, 2.0, 3.0])):
        with pytest.raises(UpdateError, match="takes a list of bool or None"):
            graph.update({"**.flags": wrong_list})
    with pytest.raises(UpdateError, match="takes 3 values, as captured, got 2"):
        graph.update({"**.flags": [True, False]})
    operator.undefine()


@pytest.mark.parametrize(
    "values",
    [range(5, 7), torch.tensor([5, 6]), np.array([5, 6]), (5, 6), torch.tensor([5, 6])[:, None]],
    ids=["range", "tensor", "array", "tuple", "matrix"],
)
def test_lists_come_from_what_holds_whole_numbers(affine: Any, values: Any) -> None:
    graph, _ = captured(lambda: affine(torch.ones(1), 0, 1.0, False, [3, 4], [0.5]))
    slot = next(name for name, slot in graph.slots.items() if slot.type == "int[]")
    if isinstance(values, torch.Tensor) and values.dim() == 2:
        with pytest.raises(UpdateError, match="takes a list of int, got a tensor"):
            graph.update({slot: values})
        return
    graph.update({slot: values})
    assert graph.slots[slot].value == [5, 6]


def test_a_number_of_torch_takes_every_number_and_keeps_its_type(handlers: None) -> None:
    @graphs.register_graph_handler("aten::add.Scalar")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::add.Scalar": [("kwarg", "other", "other")]}

    x = torch.ones(2)
    graph, output = captured(lambda: torch.ops.aten.add.Scalar(x, 2))
    for number in (3, 2.5, True):
        graph.update({"**.other": number})
        assert graph.slots["add.0.other"].value is number or number == 2.5
        graph.replay()
        assert output.tolist() == [1 + number] * 2
