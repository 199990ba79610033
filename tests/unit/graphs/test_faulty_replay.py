"""The device fails while captured graphs are updated and replayed: a replay that raises left its
results as they were or as they would be, and the next ones are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.unit.graphs.support import captured
from tests.unit.graphs.test_update_beside_replay import many_paths
from torch import Tensor

from bringup import devices, graphs, jit, ops

DIGIT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<double, 1> x(args[0]), out(args[2]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * 10 + n;
  return 0;
}
"""
STEPS = 20_000
CALLS = (
    "graph_launch",
    "graph_update_kernel",
    "host_func",
    "event_wait",
    "event_record",
    "event_synchronize",
    "stream_synchronize",
    "copy_async",
)


@pytest.fixture(scope="module")
def digit(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """10 x + n, as device code."""
    devices.load_driver("sim")
    operator = ops.kernel_op(
        "graphs_faulty_test::digit(Tensor x, int n) -> Tensor",
        source=jit.Source(text=DIGIT, name="digit.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    yield operator
    operator.undefine()


@pytest.fixture
def on_host(handlers: None) -> Callable[..., Tensor]:
    """10 x + n, as operators that the device runs on the host."""

    @graphs.register_graph_handler("aten::add.Tensor")
    class Add(graphs.GraphOpHandler):
        UPDATE_SPECS = {"aten::add.Tensor": [("kwarg", "alpha", "n")]}  # noqa: RUF012

    return lambda x, n: torch.add(x * 10, torch.ones_like(x), alpha=n)


def counting(operator: Callable[..., Tensor]) -> tuple[graphs.CapturedGraph, Tensor]:
    """A graph that appends the digit n to `total`."""
    total = torch.zeros(1, dtype=torch.float64, device="npu")
    graph, _ = captured(lambda: total.copy_(operator(total, 0)))
    return graph, total


def raised_by(call: Callable[[], object]) -> str:
    """The text of the injected failure that the call raised, or ""."""
    try:
        call()
    except RuntimeError as error:
        text = str(error)
        if "injected" not in text:
            raise
        return text
    return ""


def replay_and_wait(graph: graphs.CapturedGraph) -> None:
    graph.replay()
    torch.npu.current_stream().synchronize()


@pytest.mark.parametrize("kind", ["kernel", "operator"])
@pytest.mark.parametrize("seed", [0, 1])
def test_steps_of_update_and_replay_with_faults_are_exact(
    kind: str, seed: int, digit: ops.KernelOperator, on_host: Callable[..., Tensor]
) -> None:
    """The oracle is arithmetic: a replay appends its digit, or it raised and appended nothing."""
    graph, total = counting(digit if kind == "kernel" else on_host)
    numbers = random.Random(seed)
    value, n, raised = 0, 0, 0
    for step in range(STEPS):
        fault = numbers.random()
        if fault < 0.02:
            call = numbers.choice(CALLS)
            settings = {"fail": call, "fail_after": numbers.randrange(2)}
        elif fault < 0.03:
            settings = {"fail": ("graph_launch", "graph_kernel"), "fail_async": True}
        else:
            settings = None
        if numbers.random() < 0.9:
            n = numbers.randrange(10)
            graph.update({"**.n": n})
        if settings is None:
            graph.replay()
            value = value * 10 + n
        else:
            torch.npu.synchronize()  # or work that is still to run would have the failure
            with devices.sim.faults(**settings):
                failed = bool(raised_by(lambda: replay_and_wait(graph)))
            raised_by(torch.npu.synchronize)
            now = total.cpu().item()
            assert now == value * 10 + n or (failed and now == value), (step, settings)
            value = int(now)
            raised += failed
        if step % 8 == 7 or value >= 10**14:
            assert total.cpu().item() == value, step
            total.zero_()
            value = 0
    assert raised > STEPS // 200


def test_an_update_is_kept_when_the_launch_after_it_is_refused(digit: ops.KernelOperator) -> None:
    graph, total = counting(digit)
    graph.update({"**.n": 4})
    for call in ("graph_update_kernel", "graph_launch"):
        with (
            devices.sim.faults(fail=call),
            pytest.raises(RuntimeError, match=f"injected failure of {call}"),
        ):
            graph.replay()
    assert total.cpu().item() == 0
    graph.replay()
    assert total.cpu().item() == 4


def test_a_kernel_that_fails_within_a_replay_is_named_by_the_next_wait(
    digit: ops.KernelOperator,
) -> None:
    graph, total = counting(digit)
    with devices.sim.faults(fail="graph_kernel", operator="graphs_faulty_test::digit"):
        graph.replay()
        with pytest.raises(RuntimeError, match="operator 'graphs_faulty_test::digit' failed in"):
            torch.npu.synchronize()
    graph.replay()
    assert total.cpu().item() == 0


@pytest.mark.parametrize("call", ["graph_create", "graph_add_kernel", "graph_add_host_func"])
def test_a_capture_that_the_driver_refuses_leaves_no_trace(
    call: str, digit: ops.KernelOperator
) -> None:
    total = torch.zeros(1, dtype=torch.float64, device="npu")
    with (
        devices.sim.faults(fail=call),
        pytest.raises(RuntimeError, match=f"injected failure of {call}"),
    ):
        captured(lambda: total.copy_(digit(total, 3)))
    assert total.cpu().item() == 0
    graph, _ = captured(lambda: total.copy_(digit(total, 3)))
    graph.replay()
    assert total.cpu().item() == 3


def every_call(call: Callable[[], object], check: Callable[[bool], None]) -> None:
    """Let each of the driver's functions that `call` calls fail; `check` whether it did."""
    torch.npu.synchronize()
    with devices.sim.faults() as seen:
        call()
    check(False)
    for number in range(seen.calls):
        torch.npu.synchronize()
        with devices.sim.faults(fail="any", fail_after=number):
            failed = bool(raised_by(call))
        failed |= bool(raised_by(torch.npu.synchronize))
        check(failed)


@torch.library.custom_op("graphs_faulty_test::eager_digit", mutates_args=())
def eager_digit(x: Tensor, n: int) -> Tensor:
    return x * 10 + n


@pytest.mark.parametrize("reader", ["device", "host"])
def test_every_call_fails_in_capture_and_replay_of_pieces(
    reader: str, digit: ops.KernelOperator
) -> None:
    """What a replay left is right or old, whichever piece or eager call failed."""
    total = torch.zeros(1, dtype=torch.float64, device="npu")

    def run() -> None:
        y = eager_digit(digit(total, 1), 2)
        y = digit(torch.relu(y), 3)  # relu runs on the host
        if reader == "host":
            y = eager_digit(y.cpu(), 4).to("npu")
        total.copy_(eager_digit(y, 5))

    def split() -> graphs.CapturedGraph:
        graph = graphs.CapturedGraph()
        with graphs.capture(graph, split_at=[eager_digit]):
            run()
        return graph

    def untouched(_failed: bool) -> None:
        assert total.cpu().item() == 0

    def appended(failed: bool) -> None:
        expected = 12345 if reader == "host" else 1235
        assert total.cpu().item() in ((0, expected) if failed else (expected,)), failed
        total.zero_()

    every_call(split, untouched)
    graph = split()
    every_call(lambda: replay_and_wait(graph), appended)
    graph.replay()
    appended(False)


@pytest.mark.parametrize("follower", ["npu", "cpu"])
def test_every_call_fails_in_capture_and_replay_of_branches(
    follower: str, digit: ops.KernelOperator
) -> None:
    """The device follows branches and loops, or the host: what a replay left is right or old."""
    higher = torch.ops.higher_order
    total = torch.zeros(1, dtype=torch.float64, device="npu")
    on = torch.tensor(True, device=follower)

    def run() -> None:
        (y,) = higher.cond(on, lambda x: (digit(x, 1),), lambda x: (digit(x, 2),), (total,))
        _, y = higher.while_loop(
            lambda i, _: (i < 2).to(follower),
            lambda i, y: (i + 1, digit(y, 3)),
            (torch.zeros((), device="npu"), y),
            (),
        )
        total.copy_(y)

    def untouched(_failed: bool) -> None:
        assert total.cpu().item() == 0

    def appended(failed: bool) -> None:
        expected = 133 if on else 233
        assert total.cpu().item() in ((0, expected) if failed else (expected,)), failed
        total.zero_()
        on.logical_not_()

    every_call(lambda: captured(run), untouched)
    graph, _ = captured(run)
    every_call(lambda: replay_and_wait(graph), appended)
    graph.replay()
    appended(False)


def test_every_call_fails_in_captures_of_many_shapes(digit: ops.KernelOperator) -> None:
    """In one memory, of which two are kept: other results stay, and the next call is right."""
    run = many_paths(lambda x: [digit(digit(x, 1).relu(), 2)], most=2)
    kept = [
        run([torch.full((rows,), float(rows), dtype=torch.float64, device="npu")])[0]
        for rows in (1, 2)
    ]
    rows, results = 3, []

    def call() -> None:
        x = torch.full((rows,), 3.0, dtype=torch.float64, device="npu")
        results.append(run([x])[0])
        torch.npu.current_stream().synchronize()

    def right(failed: bool) -> None:
        nonlocal rows
        if not failed:
            assert results[-1].tolist() == [312] * rows
        assert [one.tolist() for one in kept] == [[112], [212] * 2]
        rows = 3 + (rows + failed) % 3  # captured anew, or replayed
        results.clear()

    every_call(call, right)
    for rows in (3, 4, 5, 4):  # noqa: B007 - call reads it
        every_call(call, right)


def test_a_graph_whose_wait_fails_ends_after_its_launches(digit: ops.KernelOperator) -> None:
    graph, total = counting(digit)
    with devices.sim.faults(launch_latency_us=20_000):
        graph.replay()
        with devices.sim.faults(fail="event_synchronize") as injected:
            graph.reset()
            del graph
        assert injected.count == 1
    with pytest.raises(RuntimeError, match="injected failure of event_synchronize"):
        torch.npu.synchronize()
    assert total.cpu().item() == 0


def test_a_run_that_fails_can_be_repeated(digit: ops.KernelOperator) -> None:
    graph, x = graphs.CapturedGraph(), torch.zeros(1, dtype=torch.float64, device="npu")
    three, four = torch.full_like(x, 3), torch.full_like(x, 4)
    with graphs.capture(graph, inputs=x):
        graph.outputs = digit(x, 1)
    with devices.sim.faults() as seen:
        assert graph.run(three, slots={"**.n": 2}).cpu().item() == 32
    raised = 0
    results = []
    for number in range(seen.calls):
        with devices.sim.faults(fail="any", fail_after=number):
            failed = raised_by(
                lambda: results.append(graph.run(three, slots={"**.n": 2}).cpu().item())
            )
        raised += bool(failed)
        raised_by(torch.npu.synchronize)
        assert graph.run(four, slots={"**.n": 1}).cpu().item() == 41
    assert raised
    assert set(results) == {32}
