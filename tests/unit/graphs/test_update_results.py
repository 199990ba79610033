"""Updates of values that decide what a result is: its dtype, shape or number, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import devices, graphs, ops
from bringup.errors import CaptureError, UpdateError

aten = torch.ops.aten
X = torch.arange(4)
F = torch.ones(4)


def _with_slot(
    op: str, spec: tuple[str, Any, str], function: Callable[..., Any], *inputs: Any
) -> tuple[graphs.CapturedGraph, Any]:
    """A graph in which an argument of every call of `op` is a slot."""
    handler = type("Slot", (graphs.GraphOpHandler,), {"UPDATE_SPECS": {op: [spec]}})
    with graphs.graph_handler_scope(op, handler):
        return captured(function, *inputs)


@pytest.mark.parametrize(
    ("op", "spec", "function", "value", "says"),
    [
        ("mul.Scalar", ("arg", 1, "k"), lambda: aten.mul.Scalar(X, 2), 2.5, "fixed .* dtypes"),
        ("mul.Scalar", ("arg", 1, "k"), lambda: aten.mul.Scalar(F, 2.0), 2j, "fixed .* dtypes"),
        ("add.Tensor", ("kwarg", "alpha", "k"), lambda: X.add(X, alpha=2), 2.5, "alpha"),
        ("clamp", ("arg", 1, "k"), lambda: aten.clamp(X, 1, 3), 1.5, "fixed .* dtypes"),
        ("full", ("arg", 1, "k"), lambda: aten.full([3], 1), 2.5, "fixed .* dtypes"),
        ("sum", ("kwarg", "dtype", "k"), lambda: aten.sum(X, dtype=None), torch.float32, "dtypes"),
        ("_to_copy", ("kwarg", "dtype", "k"), lambda: F.double(), torch.int64, "dtypes"),
        ("div.Tensor_mode", ("kwarg", "rounding_mode", "k"),
         lambda: torch.div(X, X + 1, rounding_mode="floor"), None, "dtypes"),
        ("topk", ("arg", 1, "k"), lambda: torch.topk(F, 2), 3, "fixed shapes"),
        ("split_copy.Tensor", ("arg", 1, "k"), lambda: aten.split_copy(F, 2), 4, "shapes|number"),
        ("pow.Tensor_Scalar", ("arg", 1, "k"), lambda: X**2, -1, "negative integer powers"),
        ("remainder.Scalar", ("arg", 1, "k"), lambda: X % 3, 0, "ZeroDivision"),
        ("gelu", ("kwarg", "approximate", "k"), lambda: aten.gelu(F), "tahn", "none or tanh"),
        ("cumsum", ("arg", 1, "k"), lambda: torch.cumsum(F, 0), 3, "Dimension out of range"),
        ("bernoulli.p", ("arg", 1, "k"), lambda: aten.bernoulli.p(F, 0.5), 1.5, "p"),
    ],
)  # fmt: skip
def test_a_value_that_changes_what_the_result_is_is_refused_by_update(
    op: str, spec: tuple[str, Any, str], function: Callable[[], Any], value: Any, says: str
) -> None:
    graph, result = _with_slot(op, spec, function)
    before = graph.slots
    state = torch.get_rng_state()
    with pytest.raises(UpdateError, match=says) as error:
        graph.update({"**.k": value})
    assert str(error.value).endswith("Nothing was changed")
    assert graph.slots == before
    assert torch.equal(torch.get_rng_state(), state)
    graph.replay()
    torch.manual_seed(0) if op == "bernoulli.p" else torch.testing.assert_close(result, function())


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_one_bad_value_among_good_ones_changes_none(device: str) -> None:
    if device == "npu":
        devices.load_driver("sim")
    x = torch.arange(4).to(device)
    function = lambda: aten.mul.Scalar(aten.mul.Scalar(x, 2), 3)  # noqa: E731
    graph, y = _with_slot("mul.Scalar", ("arg", 1, "k"), function)
    with pytest.raises(UpdateError, match="fixed shapes and dtypes"):
        graph.update({"mul.0.k": 5, "mul.1.k": 2.5})
    graph.replay()
    assert y.tolist() == [0, 6, 12, 18]
    graph.update({"mul.0.k": 5, "mul.1.k": True})
    graph.replay()
    assert y.tolist() == [0, 5, 10, 15]


@pytest.mark.parametrize("elements", [4, 1 << 20])
def test_a_text_that_the_operator_does_not_know_is_refused_whatever_the_size(elements: int) -> None:
    x = torch.ones(elements)
    graph, y = _with_slot("gelu", ("kwarg", "approximate", "k"), lambda: aten.gelu(x))
    with pytest.raises(UpdateError, match="none or tanh"):
        graph.update({"**.k": "tahn"})
    graph.update({"**.k": "tanh"})
    graph.replay()
    assert torch.equal(y, aten.gelu(x, approximate="tanh"))


def test_the_sign_of_zero_is_a_change_and_one_nan_is_none() -> None:
    x = torch.ones(2)
    graph, y = _with_slot("mul.Scalar", ("arg", 1, "k"), lambda: aten.mul.Scalar(x, 0.0))
    assert graph.update({"**.k": -0.0}).changed
    graph.replay()
    assert (1 / y).tolist() == [-torch.inf, -torch.inf]
    assert graph.update({"**.k": torch.nan}).changed
    assert not graph.update({"**.k": torch.nan}).changed


def test_the_sign_of_zero_in_a_list_is_a_change(affine: Callable[..., torch.Tensor]) -> None:
    graph, _ = captured(lambda: affine(F, extra=[0.0, 1.0]))
    assert graph.update({"**.extra": [-0.0, 1.0]}).changed
    assert not graph.update({"**.extra": [-0.0, 1.0]}).changed


@pytest.mark.parametrize("elements", [2, 1 << 20])
def test_a_custom_operators_fake_tells_what_an_update_would_do(elements: int) -> None:
    calls: list[str] = []
    with torch.library._scoped_library("update_results", "DEF") as library:
        library.define("head(Tensor x, int n, int unread, float f=1.0) -> Tensor")

        def head(x: torch.Tensor, n: int, unread: int, f: float = 1.0) -> torch.Tensor:
            calls.append("real")
            return x[:n] * unread * f

        def fake(x: torch.Tensor, n: int, unread: int, f: float = 1.0) -> torch.Tensor:
            calls.append("fake")
            return x.new_empty(n)

        library.impl("head", head, "CPU")
        library.impl("head", fake, "Meta")
        x = torch.ones(elements)
        handler = type("All", (graphs.GraphOpHandler,), {"VARIABLE_LENGTH": frozenset()})
        handler.UPDATE_SPECS = {  # type: ignore[attr-defined]
            "head": [("arg", 1, "n"), ("arg", 2, "unread"), ("arg", 3, "f")]
        }
        with graphs.graph_handler_scope("update_results::head", handler):
            graph, y = captured(lambda: torch.ops.update_results.head(x, 2, 1))
        calls.clear()
        with pytest.raises(UpdateError, match="fixed shapes"):
            graph.update({"head.n": 1})
        assert "real" not in calls  # it may do more than it gives
        graph.update({"head.unread": 3, "head.f": 0.5})
        calls.clear()
        graph.update({"head.unread": 4})
        assert not calls  # the fake has shown that it does not look at them
        graph.replay()
        assert y.tolist() == [2, 2]


def test_an_operator_without_a_fake_is_told_by_the_replay() -> None:
    with torch.library._scoped_library("update_results", "DEF") as library:
        library.define("turned(Tensor x, bool half) -> Tensor")
        library.impl("turned", lambda x, half: x.half() if half else x * 1, "CPU")
        handler = type(
            "H", (graphs.GraphOpHandler,), {"UPDATE_SPECS": {"turned": [("arg", 1, "h")]}}
        )
        with graphs.graph_handler_scope("update_results::turned", handler):
            graph, _ = captured(lambda: torch.ops.update_results.turned(F, False))
        graph.update({"turned.h": True})
        with pytest.raises(RuntimeError, match="fixed shapes and dtypes"):
            graph.replay()
        graph.update({"turned.h": False})
        graph.replay()


@pytest.mark.parametrize(
    ("op", "spec", "function"),
    [
        ("slice.Tensor", ("arg", 3, "end"), lambda: F[:2] + 1),
        ("select.int", ("arg", 2, "index"), lambda: F.view(2, 2)[1] + 1),
        ("transpose.int", ("arg", 1, "dim"), lambda: F.view(2, 2).transpose(0, 1) + 1),
        ("reshape", ("arg", 1, "shape"), lambda: F.reshape(2, 2) + 1),
        ("empty.memory_format", ("arg", 0, "size"), lambda: torch.empty(2).fill_(1)),
    ],
)
def test_a_handler_of_what_becomes_no_node_is_told_that_it_has_no_slots(
    op: str, spec: tuple[str, Any, str], function: Callable[[], Any]
) -> None:
    with pytest.raises(CaptureError, match=f"Slot declares '{spec[2]}' of .* which has no slots"):
        _with_slot(op, spec, function)


def test_an_adopted_view_captures_as_before() -> None:
    with torch.library._scoped_library("update_results", "DEF") as library:
        library.define("same(Tensor(a) x, int n) -> Tensor(a)")
        library.impl("same", lambda x, n: x.view(-1), "CompositeExplicitAutograd")
        handle = ops.adopt("update_results::same")
        graph, y = captured(lambda: torch.ops.update_results.same(F, 1) + 1)
        graph.replay()
        assert y.tolist() == [2, 2, 2, 2]
        assert handle is not None
