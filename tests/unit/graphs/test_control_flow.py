"""Control flow in a captured graph: branches and loops that a replay takes by its own values."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.graphs.conftest import Affine
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError

# What torch.cond and torch.while_loop call behind Dynamo, which takes a second.
cond = torch.ops.higher_order.cond


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], *carried: Any) -> Any:
    return torch.ops.higher_order.while_loop(condition, body, carried, ())


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and bytes(left.cpu().numpy()) == bytes(right.cpu().numpy())


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_replay_takes_the_branch_of_its_own_predicate(device: str, level: int) -> None:
    def run(x: Tensor) -> Tensor:
        (y,) = cond(
            x.sum() > 0,
            lambda x: (torch.relu(x) @ x.T + 1,),
            lambda x: ((x.cumsum(0) * 2).softmax(1) @ x.T,),
            (x,),
        )
        return y * 3

    for first in (1.0, -1.0):
        x = torch.full((3, 3), first, device=device)
        graph = graphs.CapturedGraph(optimize=level)
        with graphs.capture(graph):
            y = run(x)
        assert _same(y, run(x))
        assert graph.wait_for_functions()
        for seed in range(6):
            torch.manual_seed(seed)
            x.copy_(torch.randn(3, 3))
            graph.replay()
            assert _same(y, run(x)), (first, seed)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_loop_makes_as_many_trips_as_its_condition_says(device: str) -> None:
    def run(n: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return while_loop(
            lambda n, _: n > 1,
            lambda n, steps: (torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1),
            n,
            steps,
        )

    for first in (1, 2, 7):
        n, steps = torch.tensor(first, device=device), torch.tensor(0, device=device)
        graph, results = captured(run, n, steps)
        assert [one.item() for one in results] == [one.item() for one in run(n, steps)]
        for value in (27, 1, 6, 97):
            n.fill_(value)
            graph.replay()
            assert [one.item() for one in results] == [one.item() for one in run(n, steps)]
            assert n.item() == value


def test_a_million_trips_need_no_more_memory_than_one() -> None:
    n, x = torch.tensor(3), torch.zeros(2)
    graph, (count, y) = captured(
        lambda: while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + 1), torch.tensor(0), x)
    )
    before, nodes = graph.memory_bytes, len(graph.nodes)
    n.fill_(1_000_000)
    graph.replay()
    assert [count.item(), *y.tolist()] == [1e6, 1e6, 1e6]
    assert (graph.memory_bytes, len(graph.nodes)) == (before, nodes)
    assert nodes < 12


def _program(choose: torch.Generator, depth: int) -> Callable[[Tensor, Tensor], tuple[Any, ...]]:
    """A random program over two tensors: steps, branches and loops, nested so deep."""

    def pick(n: int) -> int:
        return int(torch.randint(n, (1,), generator=choose))

    kinds = [pick(5) for _ in range(3)] + ([5, 6] if depth else [])
    inner = [_program(choose, depth - 1) for _ in range(2)] if depth else []

    def run(a: Tensor, b: Tensor) -> tuple[Any, ...]:
        for kind in kinds:
            if kind == 0:
                a = torch.tanh(a + b)
            elif kind == 1:
                b = b - a.flip(0) * 0.5
            elif kind == 2:
                a, b = b, a.cumsum(0)
            elif kind == 3:
                a = a.clone().add_(torch.tensor([1.0, -1.0, 0.5]).to(a.device))
            elif kind == 4:
                b = torch.cat([b[1:], a[:1]])
            elif kind == 5:
                a, b = cond(a.sum() > b.sum(), inner[0], inner[1], (a, b))
            else:
                count = b.abs().sum().long() % 3
                _, a, b = while_loop(
                    lambda i, _a, _b, count=count: i < count,
                    lambda i, a, b: (i + 1, *inner[1](a, b)),
                    torch.zeros((), dtype=torch.long, device=a.device),
                    a,
                    b,
                )
        return torch.tanh(a), torch.tanh(b)

    return run


@pytest.mark.parametrize("seed", range(2))
def test_three_nested_levels_give_the_bits_of_eager(seed: int) -> None:
    choose = torch.Generator().manual_seed(seed)
    run = _program(choose, 3)
    a, b = torch.randn(3, generator=choose), torch.randn(3, generator=choose)
    graph, results = captured(run, a, b)
    for _ in range(5):
        for one, expected in zip(results, run(a, b), strict=True):
            assert _same(one, expected)
        a.copy_(torch.randn(3, generator=choose) * 2)
        b.copy_(torch.randn(3, generator=choose) * 2)
        graph.replay()


def test_a_branch_that_is_not_taken_is_not_computed() -> None:
    table, index, on = torch.arange(6.0).view(3, 2), torch.tensor([7]), torch.tensor(False)
    called: list[Tensor] = []

    def look_up(index: Tensor) -> tuple[Tensor]:
        graphs.host_function(called.append, index)
        return (torch.nn.functional.embedding(index, table),)

    graph, (y,) = captured(cond, on, look_up, lambda index: (torch.zeros(1, 2) + index,), (index,))
    assert (y.tolist(), called) == ([[7, 7]], [])
    assert {"cond.true"} == {node.scope for node in graph.nodes if "embedding" in node.op}
    reasons = {row.node: row.reason for row in graph.levels()}
    on.fill_(True)
    with pytest.raises(IndexError, match=r"aten::embedding in cond.true"):
        graph.replay()
    index.fill_(2)
    graph.replay()
    assert (y.tolist(), len(called)) == ([[4, 5]], 2)
    never_ran = [n for n, node in enumerate(graph.nodes) if "embedding" in node.op]
    assert reasons[never_ran[0]] == "it has not run yet"


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_needs_values_for_its_shape_is_refused_by_its_branch() -> None:
    x = torch.ones(3)
    for function, named in (
        (lambda x: (x.nonzero().sum(),), "aten::nonzero gives a result whose shape depends"),
        (lambda x: (x.sum() + x.max().item(),), "reads the value of a tensor"),
        (lambda x: (torch.add(x, x, out=x.new_empty(1)),), "gives float32[1] another shape"),
    ):
        with pytest.raises(CaptureError, match=r"in `cond.true`") as error:
            captured(cond, x.sum() < 0, function, lambda x: (x.sum(),), (x,))
        assert named in str(error.value)


def test_an_operator_without_shapes_is_refused_in_a_branch_that_is_not_taken() -> None:
    with torch.library._scoped_library("graphs_test_flow", "DEF") as library:
        library.define("unknown(Tensor x) -> Tensor")
        library.impl("unknown", lambda x: x * 2, "CPU")
        unknown, x = torch.ops.graphs_test_flow.unknown, torch.ones(2)
        graph, (y,) = captured(cond, x[0] > 0, lambda x: (unknown(x),), lambda x: (x,), (x,))
        x.fill_(3)
        graph.replay()
        assert y.tolist() == [6, 6]
        with pytest.raises(
            CaptureError, match=r"in `cond.true`: graphs_test_flow::unknown gives no results from"
        ):
            captured(cond, x[0] < 0, lambda x: (unknown(x),), lambda x: (x,), (x,))


def test_slots_of_both_branches_are_updated(affine: Affine) -> None:
    x = torch.ones(2)
    graph, (y,) = captured(
        lambda: cond(
            x[0] > 0, lambda x: (affine(x, 2),), lambda x: (affine(x, 3, scale=2.0),), (x,)
        )
    )
    assert graph.slots["cond.false.affine.0.scale"].value == 2.0
    graph.update({"cond.false.affine.scale": 10.0, "cond.true.affine.shift": 5})
    graph.replay()
    assert y.tolist() == [6, 6]
    x.fill_(-1)
    graph.replay()
    assert y.tolist() == [-7, -7]


@pytest.mark.parametrize("taken", [True, False])
def test_numbers_of_python_are_there_whatever_was_taken(taken: bool) -> None:
    on, x = torch.tensor(taken), torch.zeros(2)

    def run() -> Tensor:
        number = torch.tensor([1.0, 2.0])
        (y,) = cond(on, lambda x: (x + number,), lambda x: (x - torch.tensor([5.0, 6.0]),), (x,))
        scratch = x * 7 + y
        return (scratch + 1) * number

    graph, y = captured(run)
    for value in (not taken, taken, not taken):
        on.fill_(value)
        graph.replay()
        assert _same(y, run())


def test_what_one_branch_alone_wrote_is_no_result() -> None:
    x, kept = torch.ones(2), []

    def leave(x: Tensor) -> tuple[Tensor]:
        kept.append(x * 2)
        return (x + 1,)

    def run() -> Tensor:
        (y,) = cond(x[0] > 0, leave, lambda x: (x - 1,), (x,))
        return y + kept.pop()

    with pytest.raises(CaptureError, match=r"reads a tensor .* only a branch or a loop wrote"):
        captured(run)

    def run_empty() -> Tensor:
        room = torch.empty(2)
        cond(x[0] > 0, lambda x: (room.copy_(x),), lambda x: (x - 1,), (x,))
        return room + 1

    with pytest.raises(CaptureError, match="only a branch or a loop wrote"):
        captured(run_empty)

    def run_both() -> Tensor:
        room = torch.empty(2)
        cond(x[0] > 0, lambda x: (room.copy_(x),), lambda x: (room.fill_(4),), (x,))
        return room + 1

    graph, y = captured(run_both)
    x.fill_(-1)
    graph.replay()
    assert y.tolist() == [5, 5]


def test_a_branch_writes_what_was_there_before_where_it_is_taken() -> None:
    x, total = torch.ones(2), torch.zeros(2)

    def run() -> Tensor:
        (y,) = cond(x[0] > 0, lambda x: (total.add_(x),), lambda x: (x.clone(),), (x,))
        return y * 2

    graph, y = captured(run)
    assert total.tolist() == [0, 0]
    version = total._version
    graph.replay()
    graph.replay()
    assert total._version > version
    assert (total.tolist(), y.tolist()) == ([2, 2], [4, 4])
    x.fill_(-3)
    graph.replay()
    assert (total.tolist(), y.tolist()) == ([2, 2], [-6, -6])


def test_a_loop_carries_integers() -> None:
    n, x = torch.tensor(3), torch.ones(2)

    def body(i: Any, step: Any, _on: Any, x: Tensor) -> tuple[Any, ...]:
        i += step
        return i, 2, False, x * 0.3 + i

    def run() -> tuple[Any, ...]:
        return while_loop(lambda i, *_: i < n, body, 0, 1, True, x)

    graph, results = captured(run)
    for trips in (3, 0, 7):
        n.fill_(trips)
        graph.replay()
        *numbers, y = run()
        assert [one.item() for one in results[:3]] == numbers
        assert _same(results[3], y)
    with pytest.raises(CaptureError, match="and its body gives, int64"):
        captured(while_loop, lambda i: i < n, lambda i: (i + 0.5,), 0)
    with pytest.raises(CaptureError, match=r"0\.5 is no tensor"):
        captured(while_loop, lambda i: i < n, lambda i: (0.5,), 0)


def test_what_a_loop_carries_may_change_places_and_is_not_written_in_place() -> None:
    n = torch.tensor(1)

    def run() -> Any:
        return while_loop(
            lambda i, _a, _b: i < n,
            lambda i, a, b: (i + 1, b[:].view(2), a + b),
            torch.tensor(0),
            torch.zeros(2),
            torch.ones(2),
        )

    graph, (_, a, b) = captured(run)
    n.fill_(10)
    graph.replay()
    assert (a.tolist(), b.tolist()) == ([55, 55], [89, 89])

    for body, why in (
        (lambda i, x: (i + 1, x.add_(1)), "writes what it carries in place"),
        (lambda i, x: (i + 1, x.double()), "its body gives, int64[], float32[2] and int64[]"),
        (lambda i, x: (i + 1,), "a captured graph has fixed shapes"),
    ):
        with pytest.raises(CaptureError, match=r"torch.while_loop|while_loop.body") as error:
            captured(while_loop, lambda i, _: i < n, body, torch.tensor(0), torch.ones(2))
        assert why in str(error.value)
    for condition, carried, why in (
        (lambda i: True, torch.tensor(0), "its condition is True"),
        (lambda i: i < torch.ones(2), torch.tensor(0), "a predicate has one element"),
    ):
        with pytest.raises(CaptureError) as error:
            captured(while_loop, condition, lambda i: (i + 1,), carried)
        assert why in str(error.value)


def test_what_a_body_gives_back_as_it_came_is_not_copied() -> None:
    n = torch.tensor(1)
    graph, _ = captured(
        while_loop, lambda i, *_: i < n, lambda i, x, y: (i + 1, x, y + x), n * 0, n * 2, n * 3
    )
    assert [node.op for node in graph.nodes].count("aten::copy_") == 2


def test_functional_tensors_are_recorded_as_what_they_stand_for() -> None:
    x = torch.ones(2)

    def run(x: Tensor) -> Tensor:
        (y,) = cond(x[0] > 0, lambda x: (x.sin().add_(4),), lambda x: (x.cos(),), (x,))
        return y * 2

    graph, y = captured(torch.func.functionalize(run), x)
    for value in (2.0, -2.0):
        x.fill_(value)
        graph.replay()
        assert _same(y, run(x))


def test_a_module_of_a_branch_gives_what_it_gives() -> None:
    layer, x, on = torch.nn.Linear(2, 2), torch.ones(2, 2), torch.tensor(False)
    for first in (False, True):
        on.fill_(first)
        graph, (y,) = captured(cond, on, lambda x: (layer(x).t(),), lambda x: (x * 2,), (x,))
        for taken in (True, False):
            on.fill_(taken)
            graph.replay()
            assert _same(y.contiguous(), layer(x).t().contiguous() if taken else x * 2)


def test_branches_give_results_of_one_form() -> None:
    x = torch.ones(2)
    for false_fn, why in (
        (lambda x: (x[:1] + 1,), "float32[2] and float32[1]"),
        (lambda x: (x, x), "results of different nests"),
        (lambda x: (3,), "3 is no tensor"),
    ):
        with pytest.raises(CaptureError, match=r"in `cond.false`: torch.cond") as error:
            captured(cond, x[0] > 0, lambda x: (x + 1,), false_fn, (x,))
        assert why in str(error.value)


def test_no_gradient_leads_through() -> None:
    w = torch.ones(2, requires_grad=True)
    for value in (1.0, -1.0):
        x = torch.full((2,), value)
        for gradients in (True, False):
            with (
                torch.enable_grad(),
                pytest.raises(CaptureError, match="would record a gradient"),
                graphs.capture(graphs.CapturedGraph(), gradients=gradients),
            ):
                cond(x[0] > 0, lambda x: (x * w,), lambda x: (x + 1,), (x,))


def test_code_that_goes_on_after_a_refusal_has_no_graph() -> None:
    x = torch.ones(2)

    def run() -> Tensor:
        with pytest.raises(CaptureError):
            cond(x[0] > 0, lambda x: (x.nonzero(),), lambda x: (x,), (x,))
        return x + 1

    with pytest.raises(CaptureError, match=r"torch.cond failed inside the capture"):
        captured(run)


def test_an_event_inside_of_a_branch_is_refused() -> None:
    event, x = graphs.ExternalEvent(), torch.ones(2)

    def waits(x: Tensor) -> tuple[Tensor]:
        event.wait()
        return (x + 1,)

    with pytest.raises(CaptureError, match=r"an external event inside of torch.cond"):
        captured(cond, x[0] > 0, waits, lambda x: (x - 1,), (x,))


def test_the_graph_shows_its_control_flow(tmp_path: Path) -> None:
    n, x = torch.tensor(2), torch.ones(2)

    def run() -> Tensor:
        _, y = while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y * 2), torch.tensor(0), x)
        (z,) = cond(y[0] > 3, lambda y: (y + 1,), lambda y: (y - 1,), (y,))
        return z + 1

    graph, _ = captured(run)
    control = [(node.op, node.target) for node in graph.nodes if node.kind == "control"]
    assert [op for op, _ in control] == ["torch.while_loop"] * 2 + ["torch.cond"] * 2
    numbers = [n for n, node in enumerate(graph.nodes) if node.kind == "control"]
    assert control[1][1] < numbers[0] < control[0][1] == numbers[1] + 1  # back, and behind it
    assert control[2][1] == numbers[3] + 1
    text = graph.to_dot()
    assert f"n{numbers[0]} -> n{control[0][1]} [style=dotted" in text
    add_one = next(n for n, node in enumerate(graph.nodes) if n >= control[3][1])
    writers = {line.split()[0] for line in text.splitlines() if f"-> n{add_one} " in line}
    assert len(writers) == 3  # either branch's copy, and where the first one ends
    assert graph.levels()[numbers[0]].reason == "it is control flow"
    graph.trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text().count('"name": "torch.while_loop"') == 2 + 3
    assert not graph.diff(graph)


def test_an_endless_loop_can_be_interrupted() -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a shell ignore it
    on, count = torch.tensor(False), torch.zeros((), dtype=torch.long)
    graph, _ = captured(
        lambda: while_loop(lambda x: on, lambda x: (x + count.add_(1),), torch.tensor(0))
    )
    assert count.item() == 0
    on.fill_(True)

    def interrupt() -> None:
        while count.item() == 0:
            pass
        _thread.interrupt_main()

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            graph.replay()
    finally:
        signal.signal(signal.SIGINT, former)
    other.join()
    on.fill_(False)
    graph.replay()


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.large(x), lambda x: self.small(x).relu(), (x,))
        _, y = torch.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5), (torch.zeros(()), y)
        )
        return y + 1


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("backend", [None, "aot_eager", "bringup"])
def test_modules_and_compiled_functions_have_control_flow(backend: str | None) -> None:
    torch.manual_seed(0)
    model, x = Gate().eval(), torch.ones(3, 2)
    call = model if backend is None else torch.compile(model, backend=backend)
    call(x)
    graph, y = captured(call, x)
    for sign in (-1, 1, -2):
        x.fill_(sign)
        if backend != "bringup":  # which folds weights
            model.small.weight.mul_(1.5)
        graph.replay()
        assert _same(y, model(x))
    assert any(node.kind == "control" for node in graph.nodes)
    out = graph.run(torch.full((3, 2), -1.0))
    assert _same(out, model(torch.full((3, 2), -1.0)))
    model.small.weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(CaptureError, match=r"is another tensor now|was frozen|was replaced"):
        graph.replay()


def test_scans_are_recorded_trip_by_trip() -> None:
    from torch._higher_order_ops.map import map_impl
    from torch._higher_order_ops.scan import scan_op

    x = torch.arange(6.0).view(3, 2)

    def run() -> Tensor:
        last, sums = scan_op(lambda a, b: (a + b, a * b), (torch.zeros(2),), (x,), ())
        (rows,) = map_impl(lambda row: (row.cumsum(0),), (x,), ())
        return last + sums + rows

    graph, y = captured(run)
    x.add_(2)
    graph.replay()
    assert _same(y, run())


def test_lint_goes_where_the_run_goes() -> None:
    x = torch.ones(2)

    def run(x: Tensor) -> Tensor:
        (y,) = cond(x[0] > 0, lambda x: (x.nonzero().sum(),), lambda x: (x.sum(),), (x,))
        return while_loop(lambda y: y < 5, lambda y: (y + y.sum(),), y)[0]

    (found,) = graphs.lint(run, x)
    assert "aten::nonzero" in found.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_predicates_are_true_where_they_are_not_zero(dtype: torch.dtype) -> None:
    pred, x = torch.zeros(1, dtype=dtype), torch.ones(2)
    graph, (y,) = captured(cond, pred, lambda x: (x + 1,), lambda x: (x - 1,), (x,))
    values = [256, 0, 1] if dtype == torch.int64 else [1, 0, 128]
    for value in [*values, *([float("nan"), 0.25, -0.0] if dtype.is_floating_point else [])]:
        pred.fill_(value)
        graph.replay()
        assert y.tolist() == [2 if bool(pred) else 0] * 2
