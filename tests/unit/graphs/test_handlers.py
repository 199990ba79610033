"""Handlers: the registry, what they do in a capture, and how they write updates."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError, UpdateError

pytestmark = pytest.mark.usefixtures("handlers")

SCHEMA = "(Tensor x, int[] lengths, int n=2, *, float scale=1.0, Tensor? bias=None"


def _attend(
    x: Tensor, lengths: list[int], n: int = 2, *, scale: float = 1.0, bias: Any = None
) -> Tensor:
    shift = 0 if bias is None else bias.sum()
    return x * scale + sum(lengths) * 100 + n + shift


def _attend_out(x: Tensor, lengths: list[int], n: int = 2, *, out: Tensor, **kw: Any) -> Tensor:
    return out.copy_(_attend(x, lengths, n, **kw))


@pytest.fixture(scope="module", autouse=True)
def attend() -> Iterator[None]:
    """`graphs_h::attend`, `.out`, and the composite `graphs_h::twice`."""
    devices.load_driver("sim")
    library = torch.library.Library("graphs_h", "DEF")
    library.define(f"attend{SCHEMA}) -> Tensor")
    library.define(f"attend.out{SCHEMA}, Tensor(a!) out) -> Tensor(a!)")
    library.define("twice(Tensor x, int n) -> Tensor")
    library.impl("attend", _attend, "CompositeExplicitAutograd")
    library.impl("attend.out", _attend_out, "CompositeExplicitAutograd")
    library.impl("twice", lambda x, n: x * n + x * n, "CompositeImplicitAutograd")
    yield
    library._destroy()


def capture(call: Any) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = call()
    return graph, result


class Out(graphs.GraphOpHandler):
    """As the anchor's attention handlers: the out overload, with an output made beforehand."""

    UPDATE_SPECS: ClassVar = {
        "attend.default": [("arg", 1, "lengths")],
        "attend.out": [("arg", 1, "lengths"), ("arg", 2, "count")],
    }
    wrapped: ClassVar[list[Any]] = []

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.ops.graphs_h.attend.out:
            return func, args, kwargs
        return torch.ops.graphs_h.attend.out, args, {**kwargs, "out": torch.empty_like(args[0])}

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        assert result is not None
        return kwargs["out"]

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any, tensor_param_names: Any) -> Any:
        cls.wrapped.append((key, key in tensor_param_names))
        return super().record_wrap_kwarg(key, value, tensor_param_names)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_handler_captures_the_out_overload_with_an_output_of_its_own(device: str) -> None:
    Out.wrapped.clear()
    x = torch.ones(3, device=device)
    with graphs.graph_handler_scope(["attend.default", "attend.out"], Out):
        graph, result = capture(lambda: torch.ops.graphs_h.attend(x, [1, 2], scale=2.0))
    assert [node.op for node in graph.nodes if "attend" in node.op] == ["graphs_h::attend.out"]
    assert Out.wrapped == [("scale", False), ("bias", True), ("out", True)]
    (record,) = graph.dispatch_records
    assert record.op_cache_entry.__name__ == "attend.out"
    assert record.args[1:] == [[1, 2], 2]
    assert (record.kwargs["scale"], record.kwargs["bias"]) == (2.0, None)
    graph.replay()
    assert result.tolist() == [304.0] * 3
    graph.update([{"lengths": [3, 4], "count": 5, "scale": 3.0}])
    graph.replay()
    assert result.tolist() == [708.0] * 3
    assert graph.dispatch_records[0].args[1:] == [[3, 4], 5]
    graph.update([{"scale": 1.0}])  # what is not named keeps its last value
    graph.replay()
    assert result.tolist() == [706.0] * 3


class Clipped(graphs.GraphOpHandler):
    """Writes what the specs cannot say."""

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Any) -> None:
        args = dispatch_record.args
        if "most" in update_input:
            args[1] = [min(n, update_input["most"]) for n in args[1]]
            args[2] = update_input["most"]
        if "broken" in update_input:
            args[2] = 77
            raise ValueError("broken was given")
        if "tensor" in update_input:
            args[0] = update_input["tensor"]
        if "more" in update_input:
            args.append(1)


def test_an_overridden_update_writes_a_copy_that_is_dropped_when_it_fails() -> None:
    x = torch.ones(2)
    with graphs.graph_handler_scope("graphs_h::attend", Clipped):
        graph, result = capture(lambda: torch.ops.graphs_h.attend(x, [5, 9]))
    assert graph.update([{"most": 6}]).changed == ("attend.0.lengths", "attend.0.n")
    graph.replay()
    assert result.tolist() == [1107.0] * 2
    with pytest.raises(ValueError, match="broken was given"):
        graph.update([{"broken": 1}])
    for given, words in (
        ({"tensor": torch.ones(3)}, r"it is float32\[3\], not float32\[2\]"),
        ({"more": 1}, "changed which arguments graphs_h::attend has"),
        ({"mots": 1}, r"no record takes 'mots'; records: graphs_h::attend \(what Clipped"),
        ({"most": 1.5}, "takes a list of int, got"),
    ):
        with pytest.raises(UpdateError, match=words):
            graph.update([given])
    graph.replay()
    assert result.tolist() == [1107.0] * 2
    assert graph.dispatch_records[0].args[1:] == [[5, 6], 6]


def test_one_dict_for_each_record_is_strict_and_a_shared_one_takes_what_some_record_reads() -> None:
    @graphs.register_graph_handler("aten::cumsum")
    class Cumsum(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::cumsum": [("arg", 1, "axis")]}

    x = torch.ones(2, 2)
    with graphs.graph_handler_scope("attend", Clipped):
        graph, _ = capture(lambda: torch.ops.graphs_h.attend(torch.cumsum(x, 0), [5, 9]))
    graph.update([{"axis": 1, "most": 7}])
    graph.update([{"axis": 0}, {"most": 6}])
    for given, words in (
        (
            [{}, {"axis": 1}],
            "record 1, graphs_h::attend, takes what Clipped.update_args reads",
        ),
        ([{"most": 1}, {}], "record 0, aten::cumsum, takes axis, dtype, not 'most'"),
        ([{}, {}, {}], "3 dicts for 2 records"),
    ):
        with pytest.raises(UpdateError, match=words):
            graph.update(given)


def test_a_call_that_a_handler_leaves_alone_has_no_record() -> None:
    class Large(graphs.GraphOpHandler):
        @classmethod
        def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
            return bool(args[0].numel() > 4)

    with graphs.graph_handler_scope("attend", Large):
        graph, _ = capture(
            lambda: [torch.ops.graphs_h.attend(torch.ones(n) * 1, [1]) for n in (2, 8)]
        )
    assert [record.args[0].shape for record in graph.dispatch_records] == [(8,)]


def test_what_a_handler_puts_in_the_place_of_a_call_has_to_be_its_own() -> None:
    class Other(graphs.GraphOpHandler):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            return torch.ops.aten.relu.default, args[:1], {}

    class Nothing(graphs.GraphOpHandler):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            return None

    class Number(graphs.GraphOpHandler):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            return 3, args, kwargs

    def call() -> Tensor:
        return torch.ops.graphs_h.attend(torch.ones(2) * 1, [1])  # type: ignore[no-any-return]

    for handler, words in (
        (Other, "by aten.relu.default, which has no handler: register Other"),
        (Nothing, r"returns \(func, args, kwargs\), got None"),
        (Number, "by 3, which cannot be called"),
    ):
        with (
            graphs.graph_handler_scope("attend", handler),
            pytest.raises(CaptureError, match=words),
        ):
            capture(call)


def test_a_handled_operator_that_is_taken_apart_is_refused() -> None:
    with (
        graphs.graph_handler_scope("twice", Clipped),
        pytest.raises(CaptureError, match=r"became the operators aten::mul.Tensor, aten::mul"),
    ):
        capture(lambda: torch.ops.graphs_h.twice(torch.ones(2) * 1, 3))


def test_an_error_of_a_handler_leaves_the_capture_as_any_other() -> None:
    class Failing(graphs.GraphOpHandler):
        @classmethod
        def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
            raise ZeroDivisionError("in the handler")

    graph = graphs.CapturedGraph()
    with (
        graphs.graph_handler_scope("attend", Failing),
        pytest.raises(ZeroDivisionError),
        graphs.capture(graph),
    ):
        torch.ops.graphs_h.attend(torch.ones(2) * 1, [1])
    with graphs.capture(graph):
        y = torch.ones(2) * 2
    graph.replay()
    assert y.tolist() == [2, 2]


def test_a_record_keeps_no_tensor_alive() -> None:
    x = torch.ones(2)
    with graphs.graph_handler_scope("attend", Clipped):
        graph, _ = capture(lambda: torch.ops.graphs_h.attend(x * 2, [1], bias=x))
    record = graph.dispatch_records[0]
    gc.collect()
    reference = record.args[0]
    assert isinstance(reference, graphs.TensorRef)
    assert (reference.shape, reference.dtype) == ((2,), torch.float32)
    assert reference.get() is None


def test_a_handler_takes_the_place_of_another_and_scopes_give_it_back() -> None:
    class First(graphs.GraphOpHandler):
        pass

    class Second(graphs.GraphOpHandler):
        pass

    graphs.register_graph_handler(["attend.out", "other"])(First)
    graphs.register_npu_graph_handler("other")(Second)
    assert graphs.graph_handlers["other"] is Second
    assert graphs.graph_handlers["attend.out"] is First
    with graphs.graph_handler_scope(["other", "third"], First):
        assert graphs.graph_handlers["third"] is graphs.graph_handlers["other"] is First
    assert graphs.graph_handlers["other"] is Second
    assert "third" not in graphs.graph_handlers
    with pytest.raises(KeyError, match="'absent' has no graph handler; there are:"):
        graphs.unregister_graph_handler(["other", "absent"])
    graphs.unregister_graph_handler("other")
    assert "other" not in graphs.graph_handlers
    with pytest.raises(TypeError):
        graphs.graph_handlers["x"] = First  # type: ignore[index]
    assert graphs.NpuGraphOpHandler is graphs.GraphOpHandler


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (("kwarg", "dims", "axis"), "'axis' is kwarg 'dims' of aten::cumsum.default, which has 0"),
        (("arg", 3, "axis"), "'axis' is arg 3 of aten::cumsum.default, which has"),
        (("arg", -1, "axis"), "'axis' is arg -1 of"),
    ],
)
def test_a_spec_that_names_no_argument_is_refused_when_it_is_registered(
    spec: Any, words: str
) -> None:
    class Wrong(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::cumsum.default": [spec]}

    with pytest.raises(ValueError, match=words):
        graphs.register_graph_handler("aten::cumsum.default")(Wrong)
    assert "aten::cumsum.default" not in graphs.graph_handlers


def test_an_update_by_name_is_one_of_the_record_too(handlers: None) -> None:
    graphs.register_graph_handler("aten::roll")(Rolled)
    x, graph = torch.arange(4.0), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.roll(x, (1,), (0,))
    graph.update({"roll.shifts": [2]})
    assert graph.dispatch_records[0].args[1] == [2]
    graph.update([{"more": 1}])  # to what the graph has now
    assert graph.slots["roll.0.shifts"].value == [3]
    graph.replay()
    assert torch.equal(y, torch.roll(x, 3))


class Rolled(graphs.GraphOpHandler):
    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Any) -> None:
        if "more" in update_input:
            dispatch_record.args[1] = [dispatch_record.args[1][0] + update_input["more"]]


def test_list_updates_of_several_threads_are_those_of_their_records(handlers: None) -> None:
    graphs.register_graph_handler("aten::roll")(Rolled)
    x, graph = torch.arange(4.0), graphs.CapturedGraph()
    with graphs.capture(graph):
        torch.roll(x, (0,), (0,))

    def add() -> None:
        for _ in range(200):
            graph.update([{"more": 1}])

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graph.dispatch_records[0].args[1] == graph.slots["roll.0.shifts"].value == [800]
