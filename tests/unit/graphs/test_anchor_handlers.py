"""What a handler written for torch_npu relies on: the hooks' arguments, records and registry, in
handlers of our own that make the same calls.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError
from bringup.graphs import NpuGraphOpHandler, register_npu_graph_handler

pytestmark = pytest.mark.usefixtures("handlers")

REGISTRY = vars(graphs)["_NPU_GRAPH_OP_HANDLERS"]  # torch_npu's name of it

SCHEMA = "(Tensor x, int n=2, int m=1, *, float by=1.0, int[]? lens=None, Tensor? mask=None"


def _kw(x: Tensor, n: int = 2, m: int = 1, *, by: float = 1.0, **more: Any) -> Tensor:
    return x * (n * m * by)


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    devices.load_driver("sim")
    library = torch.library.Library("anchor_h", "DEF")
    library.define(f"kw{SCHEMA}) -> Tensor")
    library.define(f"kw.out{SCHEMA}, Tensor(a!) out) -> Tensor(a!)")
    library.impl("kw", _kw, "CompositeExplicitAutograd")

    def into(x: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(_kw(x, *args, **kwargs))

    library.impl("kw.out", into, "CompositeExplicitAutograd")
    yield
    library._destroy()


def capture(call: Any) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = call()
    return graph, result


def kw(*args: Any, **kwargs: Any) -> Any:
    return torch.ops.anchor_h.kw(*args, **kwargs)


def test_a_shared_base_with_two_classes_updates_by_the_one_that_was_captured() -> None:
    class Base(NpuGraphOpHandler):
        @classmethod
        def update_args(cls, record: Any, given: Any) -> None:
            record.args[1] = given.get("batch", record.args[1])

    @register_npu_graph_handler("kw.default")
    class Default(Base):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            kwargs["out"] = torch.empty_like(args[0])
            return torch.ops.anchor_h.kw.out, args, kwargs

        @classmethod
        def update_args(cls, record: Any, given: Any) -> None:
            raise AssertionError("the captured call is another's")

    @register_npu_graph_handler("kw.out")
    class Out(Base):
        pass

    graph, y = capture(lambda: kw(torch.ones(2) * 1, 2))
    graph.update(cpu_update_input=[{"batch": 5}])
    graph.replay()
    assert y.tolist() == [5, 5]


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_hooks_get_what_a_dispatch_mode_gets(device: str) -> None:
    seen: list[Any] = []

    @register_npu_graph_handler("kw")
    class Kw(NpuGraphOpHandler):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            seen.append((len(args), dict(kwargs)))
            kwargs.setdefault("by", 3.0)
            return func, args, kwargs

    x = torch.ones(2, device=device)
    _, y = capture(lambda: kw(x))
    assert y.tolist() == [6, 6]
    capture(lambda: kw(x, 2, 1, by=1.0, lens=None))  # all are defaults
    capture(lambda: kw(x, 2, 7, by=-0.0))
    capture(lambda: kw(x, 5, by=2.0, lens=[1]))
    given = [(1, {}), (1, {}), (3, {"by": -0.0}), (2, {"by": 2.0, "lens": [1]})]
    assert seen == given
    assert repr(seen) == repr(given)


def test_records_have_every_argument_all_the_same() -> None:
    @register_npu_graph_handler("kw")
    class Kw(NpuGraphOpHandler):
        UPDATE_SPECS: ClassVar = {"kw": [("arg", 2, "m"), ("kwarg", "by", "by")]}

        @classmethod
        def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
            return result

    graph, y = capture(lambda: kw(torch.ones(2) * 1))
    (record,) = graph.dispatch_records
    assert record.args[1:] == [2, 1]
    assert record.kwargs == {"by": 1.0, "lens": None, "mask": None}
    graph.update([{"m": 4, "by": 0.5}])
    graph.replay()
    assert y.tolist() == [4, 4]


def test_the_default_update_reads_records_that_have_a_name_alone() -> None:
    class Kw(NpuGraphOpHandler):
        UPDATE_SPECS: ClassVar = {"kw": [("arg", 1, "n"), ("arg", 9, "more"), ("kwarg", "by", "b")]}

    entry = SimpleNamespace(__name__="kw.default")
    record = SimpleNamespace(op_cache_entry=entry, args=[None, 2], kwargs={"by": 1.0})
    Kw.update_args(record, {"n": 3, "more": 4, "b": 5.0, "other": 6})
    assert (record.args, record.kwargs) == ([None, 3], {"by": 5.0})
    assert Kw.get_update_specs("unknown") == [] == NpuGraphOpHandler.get_update_specs("kw")


@pytest.mark.parametrize(
    "hook", ["prepare_capture", "postprocess_result", "record_wrap_kwarg", "update_args"]
)
def test_a_hook_that_is_no_classmethod_is_refused_and_breaks_nothing_else(hook: str) -> None:
    for broken in (staticmethod(lambda *args: args), lambda self, *args: args):
        with pytest.raises(TypeError, match=f"{hook} is no classmethod"):
            register_npu_graph_handler("kw")(type("Broken", (NpuGraphOpHandler,), {hook: broken}))
    assert "kw" not in REGISTRY
    _, y = capture(lambda: kw(torch.ones(2) * 1))
    assert y.tolist() == [2, 2]


def test_keyword_arguments_are_kept_as_their_key_says() -> None:
    wrap = NpuGraphOpHandler.record_wrap_kwarg
    host, device = torch.ones(2), torch.ones(2, device="npu")
    names = {"mask"}
    assert isinstance(wrap("mask", device, names), graphs.TensorWeakRef)
    for value, kept in (
        (host, wrap("mask", host, names)),
        (device, wrap("other", device, names)),
    ):
        assert isinstance(kept, Tensor)
        assert kept is not value
        assert kept.device == value.device
        assert torch.equal(kept, value)
    mixed = wrap("mask", (device, [host], None, 3), names)
    assert isinstance(mixed, tuple)
    assert isinstance(mixed[0], graphs.TensorWeakRef)
    assert mixed[1][0] is not host
    assert mixed[2:] == (None, 3)
    lens = [[1, 2]]
    assert wrap("lens", lens, names) == lens
    assert wrap("lens", lens, names)[0] is not lens[0]
    assert wrap("by", None, names) is None


def test_copies_of_a_record_are_no_part_of_the_graph() -> None:
    @register_npu_graph_handler("kw")
    class Kw(NpuGraphOpHandler):
        @classmethod
        def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
            return result

    mask = torch.ones(2)
    graph, _ = capture(lambda: kw(torch.ones(2) * 1, mask=mask))
    assert [node.op for node in graph.nodes].count("anchor_h::kw") == 1
    assert not any("clone" in node.op or "copy" in node.op for node in graph.nodes)


def test_a_reference_takes_the_tensors_place_in_a_call() -> None:
    x = torch.ones(2, device="npu")
    ref = graphs.TensorWeakRef(x)
    assert (torch.ops.anchor_h.kw(ref, 3) + ref).tolist() == [4, 4]
    assert torch.cat([x, ref]).shape == (4,)
    del x
    with pytest.raises(RuntimeError, match="this tensor was freed"):
        torch.ops.anchor_h.kw(ref, 3)


def test_the_registry_is_a_dict_that_tests_save_and_restore(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saved = copy.copy(REGISTRY)

    class First(NpuGraphOpHandler):
        pass

    class Second(NpuGraphOpHandler):
        pass

    register_npu_graph_handler(["kw"])(First)
    with caplog.at_level(logging.WARNING, logger="bringup"):
        register_npu_graph_handler("kw")(Second)
        register_npu_graph_handler("kw")(Second)
    start = "NpuGraphOpHandler for 'kw' is being overridden: "
    assert [record.getMessage() for record in caplog.records] == [
        f"{start}First -> Second",
        f"{start}Second -> Second",
    ]
    REGISTRY["by_hand"] = First
    assert graphs.graph_handlers["by_hand"] is First
    REGISTRY.clear()
    REGISTRY.update(saved)
    assert dict(graphs.graph_handlers) == saved


def test_a_function_may_take_the_calls_place() -> None:
    @register_npu_graph_handler("kw.default")
    class Default(NpuGraphOpHandler):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            out = torch.empty_like(args[0])
            return (lambda *a, **k: torch.ops.anchor_h.kw.out(*a, out=out, **k)), args, kwargs

    def call() -> Any:
        return kw(torch.ones(2) * 1, 3)

    with pytest.raises(CaptureError, match="it calls one operator with a handler, once"):
        capture(call)

    @register_npu_graph_handler("kw.out")
    class Out(NpuGraphOpHandler):
        UPDATE_SPECS: ClassVar = {"kw.out": [("arg", 1, "n")]}

    graph, y = capture(call)
    graph.update([{"n": 7}])
    graph.replay()
    assert y.tolist() == [7, 7]


def test_a_class_without_the_base_is_a_handler() -> None:
    @register_npu_graph_handler("kw")
    class Plain:
        UPDATE_SPECS: ClassVar = {"kw": [("arg", 1, "n")]}

        @classmethod
        def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
            return result

    assert REGISTRY["kw"] is Plain
    graph, y = capture(lambda: kw(torch.ones(2) * 1, 3))
    graph.update([{"n": 7}])
    graph.replay()
    assert y.tolist() == [7, 7]
    with pytest.raises(TypeError, match="a graph handler is a class"):
        register_npu_graph_handler("kw")(lambda: None)
