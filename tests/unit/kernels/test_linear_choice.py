"""Which layout a frozen weight gets, from figures that are given: nothing here depends on time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.unit.kernels.test_pack_linear import PACKED, assert_same, ran
from tests.unit.passes.support import empty_registry
from torch import nn

from bringup import compiler, jit
from bringup.kernels import _linear_choice as choice

__all__ = ["empty_registry", "ran"]

ONE = "panels, one thread"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`figures(table)`: every measurement gives this, or what it gives for a key; the keys."""

    def give(table: Mapping[str, float] | Callable[[str], Mapping[str, float]]) -> list[str]:
        keys: list[str] = []

        def measured(key: str, ways: Any, prepare: Any, **_: Any) -> Mapping[str, float]:
            keys.append(key)
            return table(key) if callable(table) else table

        monkeypatch.setattr(jit, "measured", measured)
        return keys

    return give


def seconds(panels: float, columns: float, as_it_is: float, one: float = 9.0) -> dict[str, float]:
    return {"panels": panels, "columns": columns, "as it is": as_it_is, ONE: one}


@pytest.mark.parametrize(
    ("table", "best"),
    [
        (seconds(1.0, 2.0, 3.0), "panels"),
        (seconds(2.0, 1.0, 3.0), "columns"),
        (seconds(2.0, 3.0, 1.0), "as it is"),
        (seconds(1.04, 1.0, 1.0), "panels"),  # not faster by more than noise
        (seconds(2.0, 1.0, 3.0, one=1.5), "panels"),  # the processors were busy
        ({}, "panels"),
    ],
)
def test_fastest_way_is_taken_if_it_was_clearly_measured(
    figures: Callable[..., list[str]], table: Mapping[str, float], best: str
) -> None:
    figures(table)
    assert choice.best_layout(5, 40, 24, "float32") == best


def test_rows_are_measured_by_powers_of_two(figures: Callable[..., list[str]]) -> None:
    keys = figures(seconds(1, 2, 3))
    for rows in (1, 3, 4, 5, 5000):
        choice.best_layout(rows, 40, 24, "float64")
    assert keys == [f"linear float64 {rows} x 40 x 24" for rows in (1, 4, 4, 8, 1024)]


def test_unknown_rows_get_what_is_never_far_from_the_best(
    figures: Callable[..., list[str]],
) -> None:
    few, many = seconds(5, 1, 1.5), seconds(1, 4, 1.5)
    keys = figures(lambda key: few if " 1 x 40" in key else many)
    assert choice.best_layout(None, 40, 24, "float32") == "as it is"
    assert [key.split()[2] for key in keys] == ["1", "16", "64", "256"]


def test_huge_weights_are_measured_in_part(figures: Callable[..., list[str]]) -> None:
    keys = figures(seconds(1, 2, 3))
    choice.best_layout(1, 4096, 1_000_000, "float32")
    assert keys == ["linear float32 1 x 4096 x 2048"]


def test_empty_products_are_not_measured(figures: Callable[..., list[str]]) -> None:
    keys = figures(seconds(2, 1, 3))
    for sizes in ((0, 4, 4), (1, 0, 4), (1, 4, 0)):
        assert choice.best_layout(*sizes, "float32") == "panels"
    assert keys == []


def test_measured_figures_are_kept_and_give_the_same_choice_in_the_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from bringup.jit.ahead_of_time import autotune

    monkeypatch.setenv("BRINGUP_JIT_AUTOTUNE", "1")
    runs = 0

    def prepare() -> dict[str, Callable[[], object]]:
        nonlocal runs
        runs += 1
        return {"a": lambda: None, "b": lambda: None}

    key = f"test {tmp_path}"
    first = jit.measured(key, ("a", "b"), prepare)
    autotune.forget()
    assert jit.measured(key, ("a", "b"), prepare) == first
    assert (set(first), runs) == ({"a", "b"}, 1)
    jit.measured(key, ("a", "b"), prepare, basis="another torch")
    assert runs == 2
    monkeypatch.setenv("BRINGUP_JIT_AUTOTUNE", "0")
    assert jit.measured(key, ("a", "b"), prepare) == {}


def test_all_ways_of_a_question_compute_the_same() -> None:
    for rows, depth, width in ((1, 40, 24), (5, 7, 33)):
        results = [
            run() for run in choice.products_to_measure(rows, depth, width, torch.float32).values()
        ]
        for result in results:
            assert torch.equal(result, torch.full((rows, width), float(depth)))


@pytest.mark.parametrize("bias", [False, True])
def test_product_that_is_faster_over_columns_reads_them(
    ran: Any, figures: Callable[..., list[str]], bias: bool
) -> None:
    figures(seconds(2, 1, 3))
    model = nn.Sequential(nn.Linear(24, 40, bias=bias), nn.GELU(), nn.Linear(40, 3, bias=bias))
    assert_same(model, torch.randn(5, 24))
    assert ran[PACKED] == 0
    assert ran["aten.addmm.default"] + ran["aten.mm.default"] == 2
    report = compiler.last_report()
    assert report is not None
    assert report.matches["LibraryPackLinear"] == 2


def test_product_that_is_faster_as_it_is_stays_and_the_report_says_so(
    ran: Any, figures: Callable[..., list[str]]
) -> None:
    figures(seconds(2, 3, 1))
    assert_same(nn.Linear(24, 40), torch.randn(5, 24))
    assert (ran[PACKED], ran["aten.addmm.default"]) == (0, 1)
    report = compiler.last_report()
    assert report is not None
    assert "was measured faster" in str(report["LibraryPackLinear"].near_misses[0])


def test_products_whose_weights_may_become_narrower_are_packed_without_measuring(
    ran: Any, figures: Callable[..., list[str]]
) -> None:
    keys = figures(seconds(2, 1, 3))
    with torch.no_grad():
        model, x = nn.Linear(24, 40).eval(), torch.randn(5, 24)
        compiled = torch.compile(model, backend="bringup", options={"weights": "bfloat16"})
        torch.testing.assert_close(compiled(x), model(x), atol=2e-2, rtol=2e-2)
    assert keys == []
    assert ran[PACKED] >= 1
