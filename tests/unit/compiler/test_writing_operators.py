"""Operators that write, in compiled graphs: unwrapped, captured, and written where they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.support import kernel
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

import bringup.compiler
from bringup import ops
from bringup.compiler import inference_graph

SERVE = {"mode": "serve"}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def store() -> Any:
    """`cache[at] = row`, written in Python."""

    @ops.custom_op("writing_tests::store", mutates_args={"cache"})
    def store(cache: Tensor, row: Tensor, at: int) -> None:
        cache[at] = row

    store.register_fake(lambda cache, row, at: None)
    return store


@pytest.fixture(scope="module")
def kernel_store() -> Any:
    """The same as a kernel."""
    body = "for (int64_t i = 0; i < count(TENSOR(1)); ++i) DATA(0)[INT(2) * count(TENSOR(1)) + i]"
    return ops.kernel_op(
        "writing_tests::kernel_store(Tensor(a!) cache, Tensor row, int at) -> ()",
        source=kernel(f"{body} = DATA(1)[i];"),
        checks=ops.kernel_checks(),
        dtypes={"T": "cache"},
    )


class Store(torch.nn.Module):
    """Stores its row, and attends to the rows that it stored."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.store, self.linear, self.out = store, torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(64, 8))

    def forward(self, x: Tensor, at: int) -> Tensor:
        y = self.linear(x)
        self.store(self.cache, y[0], at)
        return self.out(torch.softmax(y @ self.cache.t(), -1) @ self.cache)


@pytest.fixture
def graphs_run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of operators that were made."""
    made: list[Any] = []
    run_eagerly = inference_graph.run_eagerly

    def noted(aten: Any, inputs: Any) -> Any:
        made.append(aten)
        return run_eagerly(aten, inputs)

    monkeypatch.setattr(inference_graph, "run_eagerly", noted)
    return made


@pytest.mark.parametrize("kind", ["store", "kernel_store"])
def test_a_served_cache_is_written_where_it_lies_and_copied_nowhere(
    kind: str, request: pytest.FixtureRequest, graphs_run: list[Any]
) -> None:
    operator = request.getfixturevalue(kind)
    model, oracle = Store(operator).eval(), Store(operator).eval()
    address = model.cache.data_ptr()
    compiled = torch.compile(model, backend="bringup", options={"capture": True})
    with torch.no_grad():
        for at in (3, 4, 60, 3):
            x = torch.randn(1, 8)
            torch.testing.assert_close(compiled(x, at), oracle(x, at))
            torch.testing.assert_close(model.cache, oracle.cache)
    assert model.cache.data_ptr() == address
    targets = [str(node.target) for graph in graphs_run for node in graph.graph.nodes]
    assert any("store" in target for target in targets)
    assert not [item for item in targets if "functionalized" in item or "clone" in item]
    assert max(report.memory_bytes for report in bringup.compiler.captures()) < 64 * 8 * 4 * 5


def test_another_position_is_no_other_capture_of_a_kernel_operator(kernel_store: Any) -> None:
    compiled = torch.compile(Store(kernel_store).eval(), backend="bringup", dynamic=True, **SERVE)
    with torch.no_grad():
        for at in range(2, 12):
            compiled(torch.ones(1, 8), at)
    assert bringup.compiler.captures()[-1].captures == 1


def test_an_intermediate_that_is_read_later_is_copied(store: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        former = y.t()
        before = former + 0
        store(y, x[0], 1)
        return before.t() + y + former.t()

    x = torch.randn(3, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="bringup", **SERVE)(x), f(x))


@pytest.mark.parametrize("mode", [{}, SERVE, {"options": {"capture": True}}])
def test_an_input_that_begins_elsewhere_in_its_storage_is_written_at_the_same_place(
    mode: dict[str, Any], store: Any
) -> None:
    def f(x: Tensor, row: Tensor) -> Tensor:
        store(x[:, 1], row, 0)
        return x * 1

    compiled = torch.compile(f, backend="bringup", **mode)
    with torch.no_grad():
        for begin in (0, 4, 2):
            memory, wanted = torch.arange(20.0), torch.arange(20.0)
            row = torch.tensor(7.0)
            result = compiled(memory[begin : begin + 6].view(3, 2), row)
            assert torch.equal(result, f(wanted[begin : begin + 6].view(3, 2), row))
            assert torch.equal(memory, wanted)


def test_an_intermediate_of_several_views_and_an_operator_that_returns_new_memory() -> None:
    @torch.library.custom_op("writing_tests::pair", mutates_args={"x", "ys"})
    def pair(x: Tensor, ys: list[Tensor], by: float) -> tuple[Tensor, Tensor]:
        x.mul_(by)
        for y in ys:
            y.add_(x[0])
        return x + 1, x - 1

    pair.register_fake(lambda x, ys, by: (torch.empty_like(x), torch.empty_like(x)))

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y, z = x.exp(), x + 3
        more, less = pair(y[1:], [z[0], x.neg()[1]], 2.0)
        return y, z, more, less

    x = torch.randn(3, 4)
    with torch.no_grad():
        got = torch.compile(f, backend="bringup", options={"capture": True})(x)
        torch.testing.assert_close(got, f(x))


def test_training_through_a_writing_operator_is_that_of_eager(store: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.detach() * 3
        store(y, y[0] * 2, 1)
        return (x * y).sum()

    grads = []
    for call in (f, torch.compile(f, backend="bringup")):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        call(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


class Branch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,)) + y


def test_control_flow_runs_beside_packed_layers_and_is_not_captured() -> None:
    model = Branch().eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", **SERVE)
        for x in (torch.ones(1, 8), -torch.ones(1, 8)):
            torch.testing.assert_close(compiled(x), model(x))
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed, match=r"calls cond .* compile without capture"):
            torch.compile(model, backend="bringup", options={"capture": True})(torch.ones(1, 8))
