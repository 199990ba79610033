"""Update plans: their JSON, what they resolve to, and how they are held against a graph."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import graphs, ops
from bringup.errors import CaptureError, UpdateError
from bringup.graphs import Constant, Input, PlannedCall, UpdatePlan

AFFINE = "graphs_test::affine"


def plan_of(*calls: dict[str, Any], op: str = AFFINE) -> UpdatePlan:
    return UpdatePlan(tuple(PlannedCall(op, updates) for updates in calls))


@pytest.fixture
def graph(affine: ops.KernelOperator) -> tuple[graphs.CapturedGraph, Tensor]:
    x = torch.ones(2)
    return captured(lambda: affine(affine(x, 1, 2.0, False, [3, 4]), 5) + 0)


def test_a_plan_turns_inputs_into_updates(graph: tuple[graphs.CapturedGraph, Tensor]) -> None:
    captured_graph, y = graph
    plan = plan_of(
        {"shift": Input(2), "scale": Constant(2.0), "lengths": (Input(0), Constant(4))},
        {"shift": Input(0)},
    )
    assert plan.inputs == {0, 2}
    assert plan.resolve([7, "unused", 9]) == [
        {"shift": 9, "scale": 2.0, "lengths": [7, 4]},
        {"shift": 7},
    ]
    bound = plan.bind(captured_graph)
    slots = bound.slots([7, None, 9])
    assert slots == {"affine.0.shift": 9, "affine.0.lengths": [7, 4], "affine.1.shift": 7}
    assert captured_graph.update(slots).changed == tuple(slots)
    captured_graph.replay()
    assert y.tolist() == [1 * 2 + 9 + 11 + 7] * 2


def test_a_plan_goes_through_json() -> None:
    plan = plan_of(
        {"a": Input(2), "b": (Input(0), Constant(4)), "c": Constant(None)},
        {"a": Constant("text"), "b": (), "c": Constant(1.5)},
    )
    text = plan.to_json()
    assert UpdatePlan.from_json(text) == plan
    assert json.loads(text) == {
        "version": 1,
        "calls": [
            {
                "op": AFFINE,
                "updates": {
                    "a": {"input": 2},
                    "b": {"list": [{"input": 0}, {"constant": 4}]},
                    "c": {"constant": None},
                },
            },
            {
                "op": AFFINE,
                "updates": {
                    "a": {"constant": "text"},
                    "b": {"list": []},
                    "c": {"constant": 1.5},
                },
            },
        ],
    }


def calls(*entries: Any) -> str:
    return json.dumps({"version": 1, "calls": list(entries)})


def source(value: Any) -> str:
    return calls({"op": "ns::op", "updates": {"a": value}})


WRONG = {
    "text": ("{", "no JSON"),
    "list": ("[]", "not of version 1"),
    "version": ('{"version": 2, "calls": []}', "not of version 1"),
    "no calls": ('{"version": 1}', "no list of calls"),
    "entry is no dict": (calls(3), "invalid entry 3"),
    "entry without updates": (calls({"op": "ns::op"}), "invalid entry"),
    "entry with more": (calls({"op": "a", "updates": {}, "more": 1}), "invalid entry"),
    "name is no text": (calls({"op": 3, "updates": {}}), "invalid entry"),
    "updates are no dict": (calls({"op": "ns::op", "updates": []}), "invalid entry"),
    "no updates": (calls({"op": "ns::op", "updates": {}}), "ns::op has no updates"),
    "source is no dict": (source(3), "invalid source 3"),
    "source of two kinds": (source({"input": 1, "constant": 2}), "invalid source"),
    "unknown source": (source({"shape": 1}), "invalid source"),
    "input is no position": (source({"input": -1}), "input -1 is no position"),
    "input is a bool": (source({"input": True}), "input True is no position"),
    "list is none": (source({"list": 3}), "3 is no list"),
    "list of lists": (source({"list": [{"list": []}]}), "a list of lists"),
    "constant is a list": (source({"constant": [1]}), r"unsupported constant \[1\]"),
    "constant is a dict": (source({"constant": {"a": 1}}), "unsupported constant"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_json_that_is_no_plan_is_refused(wrong: str) -> None:
    text, words = WRONG[wrong]
    with pytest.raises(UpdateError, match=f"update plan: .*{words}"):
        UpdatePlan.from_json(text)


def test_constants_are_plain_values() -> None:
    with pytest.raises(UpdateError, match="a tensor constant: make it an input"):
        Constant(torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(UpdateError, match=r"unsupported constant .*device"):
        Constant(torch.device("cpu"))  # type: ignore[arg-type]


def test_an_input_that_there_is_not_is_out_of_range() -> None:
    with pytest.raises(UpdateError, match="input 2 is out of range: the call has 2"):
        plan_of({"shift": Input(2)}).resolve([1, 2])


MISFITS = {
    "fewer calls": (plan_of({"shift": Input(0)}), "length mismatch: it has 1 calls, .* captured 2"),
    "more calls": (plan_of(*[{"shift": Input(0)}] * 3), "length mismatch: it has 3"),
    "unknown key": (
        plan_of({"shift": Input(0)}, {"shifts": Input(0)}),
        f"unknown key 'shifts' of {AFFINE}, which has .*shift",
    ),
    "other constant": (
        plan_of({"shift": Input(0), "scale": Constant(3.0)}, {"shift": Input(0)}),
        r"'scale' of .* is 3\.0, and the graph captured 2\.0",
    ),
    "other operator": (
        plan_of({"x": Input(0)}, {"x": Input(0)}, op="other::op"),
        "length mismatch: it has 2 calls, and the graph captured 0",
    ),
    "other overload": (
        plan_of({"shift": Input(0)}, {"shift": Input(0)}, op=f"{AFFINE}.extra"),
        f"op mismatch: call 0 is {AFFINE}.extra, and the graph captured {AFFINE}",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_plan_of_other_calls_is_refused(
    graph: tuple[graphs.CapturedGraph, Tensor], misfit: str
) -> None:
    plan, words = MISFITS[misfit]
    with pytest.raises(UpdateError, match=words):
        plan.bind(graph[0])


def test_a_plan_needs_a_capture() -> None:
    with pytest.raises(CaptureError, match="nothing is captured"):
        plan_of({"shift": Input(0)}).bind(graphs.CapturedGraph())


@pytest.mark.usefixtures("handlers")
def test_keys_are_those_of_handlers_and_a_default_may_be_captured_as_out() -> None:
    @graphs.register_graph_handler("aten::cumsum")
    class Cumsum(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"aten::cumsum": [("arg", 1, "axis")]}

    x, out = torch.ones(2, 3), torch.empty(2, 3)
    graph, _ = captured(lambda: torch.cumsum(x, 0, out=out))
    for op in ("aten::cumsum", "aten::cumsum.default", "aten::cumsum.out"):
        bound = plan_of({"axis": Input(0)}, op=op).bind(graph)
        assert bound.slots([1]) == {"cumsum.0.axis": 1}
    assert plan_of({"dim": Input(0)}, op="aten::cumsum").bind(graph).slots([1])
    graph, _ = captured(lambda: torch.cumsum(x, 0))
    with pytest.raises(UpdateError, match=r"op mismatch: call 0 is aten::cumsum\.out"):
        plan_of({"axis": Input(0)}, op="aten::cumsum.out").bind(graph)
