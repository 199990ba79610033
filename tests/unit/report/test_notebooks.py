"""What a notebook shows of results: the same figures as the commands', escaped."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import graphs
from bringup.conformance import CaseResult, Comparison, Conformance, Coverage, Need
from bringup.devices import CheckResult, DriverCheck
from bringup.ops.validation.report import CheckOutcome, CheckReport, CheckRow
from bringup.passes import NearMiss, PassReport, PassResult, PassStatus

NAME = "<i>x</i>"

html = operator.methodcaller("_repr_html_")  # as a notebook asks


def graph() -> graphs.CapturedGraph:
    x, captured = torch.ones(2), graphs.CapturedGraph()
    with graphs.capture(captured), graphs.scope(NAME):
        x + 1
    return captured


def passes() -> PassReport:
    miss = NearMiss("pattern", "node", NAME)
    return PassReport("g", [PassResult(NAME, "stage", PassStatus.CHANGED, 2, near_misses=[miss])])


def driver() -> DriverCheck:
    call = f"{NAME}() -> 1"
    result = CheckResult("a", "fill", "rule", "fail", NAME, "0", "1", (call,), 0.1)
    return DriverCheck(Path("d.so"), "npu", NAME, "1", (), (), 0.1, "", (result,))


def coverage() -> Coverage:
    return Coverage("npu", [Need(NAME, "forward", ("float32",), ((2,),), calls=3)], ("f",), [])


def run() -> Conformance:
    result = CaseResult("op/linalg.qr/float32", "refused", reason=NAME)
    return Conformance({"driver": "d.so", "device": "npu"}, [result])


SHOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "captured graph": (graph, "aten::add.Tensor"),
    "passes": (passes, ">2<"),
    "driver check": (driver, "1 fail, 0 pass, 0 skipped"),
    "coverage": (coverage, "100% of the operators native"),
    "conformance": (run, "0.0% native"),
    "comparison": (lambda: Comparison(NAME, "cpu", "op", False, True, 0.1), "0 operators called"),
    "check": (
        lambda: CheckReport(NAME, 1, (CheckRow("fake", CheckOutcome.FAIL, NAME),)),
        ">fail<",
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_notebook_shows_it_escaped(what: str) -> None:
    make, words = SHOWN[what]
    text = html(make())
    assert words in text
    assert "&lt;i&gt;x&lt;/i&gt;" in text
    assert NAME not in text


def test_an_empty_graph_and_a_driver_that_cannot_be_loaded_are_shown_too() -> None:
    assert "CapturedGraph(empty)" in html(graphs.CapturedGraph())
    unusable = DriverCheck(Path("d.so"), "", "", "", (), (), 0.0, "no such file", ())
    assert "d.so cannot be used: no such file" in html(unusable)
