"""Updates while replays run: each replay sees the values of the updates before it, whole, and no
update waits.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.sweeps.support import sized
from tests.unit.graphs.support import captured
from tests.unit.graphs.test_control_flow import cond, while_loop
from torch import Tensor

from bringup import _native, devices, graphs, jit, ops
from bringup.compiler import captured_calls
from bringup.errors import UpdateError

DIGIT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<double, 1> x(args[0]), out(args[3]);
  const int64_t n = *static_cast<int64_t*>(args[1]), m = *static_cast<int64_t*>(args[2]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * 10 + n * m;
  return 0;
}
"""
ADD = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[3]);
  const int64_t n = *static_cast<int64_t*>(args[1]), m = *static_cast<int64_t*>(args[2]);
  for (int64_t i = 0; i < out.size(0); ++i) out(i) = x(0) + n * 10 + m;
  return 0;
}
"""


class Gate:
    """Where a captured operator stops while the gate is closed."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def close(self) -> None:
        self.reached.clear()
        self.opened.clear()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(timeout=240)

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(timeout=240)


_gate = Gate()


@torch.library.custom_op("graphs_beside_test::gated", mutates_args=())
def gated(x: Tensor) -> Tensor:
    """A copy of x, after the gate."""
    _gate.pass_through()
    return x.clone()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A new gate for `gated`, open at first and at the end."""
    global _gate
    _gate = Gate()
    yield _gate
    _gate.opened.set()


@pytest.fixture(scope="module")
def digit(kernel_cache: object) -> Iterator[dict[str, ops.KernelOperator]]:
    """`digit(x, n, m)`: 10 x + n m, on the host ("cpu") and as device code ("npu")."""
    devices.load_driver("sim")
    operators = {
        device: ops.kernel_op(
            f"graphs_beside_test::digit_{device}(Tensor x, int n, int m) -> Tensor",
            source=jit.Source(text=DIGIT, name="digit.cpp"),
            outputs=ops.empty_like("x"),
            **({"kind": "device"} if device == "npu" else {}),
        )
        for device in ("cpu", "npu")
    }
    yield operators
    for operator in operators.values():
        operator.undefine()


def many_paths(function: Callable[..., list[Tensor]], most: int = 4) -> Any:
    """Calls of a compiled graph, which captures what is called for in memory that all share."""
    return captured_calls.captured(
        lambda given: function(*given), "many paths", frozenset(), most, shared_memory=True
    )


def counting(
    operator: Callable[..., Tensor], device: str, *, gate: bool = True
) -> tuple[graphs.CapturedGraph, Tensor]:
    """A graph that appends the digit n m to `total`."""
    total = torch.zeros(1, dtype=torch.float64, device=device)
    graph, _ = captured(lambda: total.copy_(operator(gated(total) if gate else total, 0, 1)))
    return graph, total


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_update_during_a_replay_is_for_the_next_one(
    device: str, digit: dict[str, ops.KernelOperator], gate: Gate
) -> None:
    graph, total = counting(digit[device], device)
    graph.update({"**.n": 1})
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        replay = pool.submit(graph.replay)
        gate.wait_until_reached()
        assert graph.update({"**.n": 2}).changed == (f"digit_{device}.0.n",)  # while it is stopped
        assert graph.update({"**.n": 3}).changed  # in place of 2: one launch sees one value
        assert graph.update({"**.n": 3}).unchanged
        assert graph.slots[f"digit_{device}.0.n"].value == 3
        assert not gate.opened.is_set()
        gate.opened.set()
        replay.result(timeout=240)
    graph.replay()
    graph.replay()
    assert total.cpu().item() == 133


@pytest.fixture
def on_host(handlers: None) -> Callable[..., Tensor]:
    """10 x + n m, as operators that the device runs on the host."""

    @graphs.register_graph_handler("aten::add.Tensor")
    class Add(graphs.GraphOpHandler):
        UPDATE_SPECS = {"aten::add.Tensor": [("kwarg", "alpha", "n")]}  # noqa: RUF012

    return lambda x, n, m: torch.add(x * 10, torch.ones_like(x) * m, alpha=n)


@pytest.mark.parametrize("kind", ["kernel", "operator"])
def test_launches_under_way_have_values_of_their_own(
    kind: str, digit: dict[str, ops.KernelOperator], on_host: Callable[..., Tensor], gate: Gate
) -> None:
    graph, total = counting(digit["npu"] if kind == "kernel" else on_host, "npu")
    gate.close()
    for n in (1, 2, None, 3, 4):
        if n is not None:
            graph.update({"**.n": n})
        graph.replay()
    graph.update({"**.n": 5})
    assert [slot.value for name, slot in graph.slots.items() if name.endswith(".n")] == [5]
    gate.opened.set()
    assert total.cpu().item() == 12234
    graph.replay()
    assert total.cpu().item() == 122345


def test_the_65th_launch_with_new_values_for_the_host_waits_for_those_before(
    on_host: Callable[..., Tensor], gate: Gate
) -> None:
    graph, total = counting(on_host, "npu")
    gate.close()
    expected = 0.0

    def step(n: int) -> None:
        nonlocal expected
        graph.update({"**.n": n})
        graph.replay()
        expected = expected * 10 + n

    for number in range(65):  # one runs, 64 are ahead
        step(number % 10)
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(step, 7)
        time.sleep(0.2)
        waits = not next_one.done()
        gate.opened.set()
        next_one.result(timeout=240)
    assert waits
    assert total.cpu().item() == expected


@pytest.mark.parametrize("refuses", [False, True])
def test_driver_that_reads_arguments_late_or_refuses_new_ones(
    refuses: bool, tmp_path: Path
) -> None:
    library = tmp_path / "libreading.so"
    source = Path(__file__).parent / "drivers" / "reading.cpp"
    sim = devices.load_driver("sim").path
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{_native.include_dir()}", str(source)]
    command += ["-DREFUSES"] if refuses else []
    subprocess.run([*command, f'-DSIM_DRIVER="{sim}"', "-o", str(library)], check=True)
    script = f"""
import torch
from bringup import devices, graphs, jit, ops
devices.load_driver({str(library)!r})
digit = ops.kernel_op(
    "reading_test::digit(Tensor x, int n, int m) -> Tensor",
    source=jit.Source(text={DIGIT!r}, name="digit.cpp"),
    outputs=ops.empty_like("x"),
    kind="device",
)
total = torch.zeros(1, dtype=torch.float64, device="reading")
graph = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(graph):
    for _ in range(200):
        busy = total + 1
    total.copy_(digit(total, 0, 1))
expected = 0
for step in range(400):
    report = graph.update({{"**.n": step % 7}})
    try:
        graph.replay()
        assert not {refuses} or not report.changed
    except RuntimeError as error:
        assert {refuses} and "digit" in str(error), error
        graph.replay()
    expected = expected * 10 + step % 7
    if step % 12 == 11:
        assert total.cpu().item() == expected, step
        total.zero_()
        expected = 0
print("exact")
"""
    assert output_of(script) == "exact"


def test_update_is_checked_against_what_the_next_replay_sees(
    kernel_cache: object, gate: Gate
) -> None:
    add = ops.kernel_op(
        "graphs_beside_test::add(Tensor x, int n, int m) -> Tensor",
        source=jit.Source(text=ADD, name="add.cpp"),
        outputs=ops.empty("n + m", dtype="x"),
    )
    try:
        graph, y = captured(lambda: add(gated(torch.zeros(1)), 2, 2))
        gate.close()
        with ThreadPoolExecutor(1) as pool:
            replay = pool.submit(graph.replay)
            gate.wait_until_reached()
            graph.update({"**.n": 3, "**.m": 1})
            with pytest.raises(UpdateError, match="Nothing was changed"):
                graph.update({"**.n": 2})  # four values with what the running replay has
            assert graph.update({"**.n": 1, "**.m": 3}).changed == ("add.0.n", "add.0.m")
            gate.opened.set()
            replay.result(timeout=240)
            assert y.tolist() == [22] * 4
        graph.replay()
        assert y.tolist() == [13] * 4
    finally:
        add.undefine()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_run_that_fails_takes_its_values_back(
    device: str, digit: dict[str, ops.KernelOperator], gate: Gate
) -> None:
    graph, x = graphs.CapturedGraph(), torch.zeros(1, dtype=torch.float64, device=device)
    with graphs.capture(graph, inputs=x):
        graph.outputs = digit[device](x, 1, 1)
    graph.update({"**.n": 2})
    if device == "npu":
        graph.replay()
    with pytest.raises(UpdateError):
        graph.run(x, slots={"**.n": 5, "**.m": "no number"})
    with pytest.raises(TypeError):
        graph.run(slots={"**.n": 6})
    assert graph.run(x).cpu().item() == 2
    assert graph.run(x, slots={"**.n": 7}).cpu().item() == 7
    assert graph.run(x).cpu().item() == 7


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_replays_beside_a_thread_that_updates_see_no_half_of_an_update(
    device: str, digit: dict[str, ops.KernelOperator]
) -> None:
    """n m is 24 in every update."""
    graph, total = counting(digit[device], device, gate=False)
    graph.update({"**.n": 1, "**.m": 24})
    stop = threading.Event()

    def update() -> int:
        pairs = [(n, 24 // n) for n in (1, 2, 3, 4, 6, 8, 12, 24)]
        count = 0
        while not stop.is_set():
            n, m = random.choice(pairs)
            graph.update({"**.n": n, "**.m": m})
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        updates = [pool.submit(update) for _ in range(2)]
        try:
            for _ in range(5000):
                total.zero_()
                for _ in range(3):
                    graph.replay()
                assert total.cpu().item() == 2664
        finally:
            stop.set()
        assert min(one.result(timeout=240) for one in updates) > 10


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_100_000_steps_of_update_and_replay_with_delays_are_exact(
    device: str, digit: dict[str, ops.KernelOperator]
) -> None:
    """The oracle is arithmetic: every launch multiplies a hash by 10 and adds its own value."""
    graph, total = counting(digit[device], device, gate=False)
    numbers = random.Random(20)
    expected, n = 0, 0
    for step in range(100_000):
        if numbers.random() < 0.9:
            n = numbers.randrange(1000)
            graph.update({"**.n": n})
        graph.replay()
        expected = expected * 10 + n
        if step % 8 == 7:  # before doubles lose digits
            assert total.cpu().item() == expected
            total.zero_()
            expected = 0
        if numbers.random() < 0.001:
            time.sleep(numbers.random() * 0.002)


@pytest.mark.parametrize(("device", "follower"), [("cpu", "cpu"), ("npu", "cpu"), ("npu", "npu")])
def test_steps_over_branches_and_loops_are_exact(
    device: str, follower: str, digit: dict[str, ops.KernelOperator]
) -> None:
    """The same, where predicates, of the host or the device, say which digits come how often."""
    operator, total = digit[device], torch.zeros(1, dtype=torch.float64, device=device)
    on, trips = torch.tensor(True, device=follower), torch.tensor(1, device=device)

    def run() -> None:
        (y,) = cond(on, lambda x: (operator(x, 0, 1),), lambda x: (operator(x, 0, 2),), (total,))
        _, y = while_loop(
            lambda i, _: (i < trips).to(follower),
            lambda i, y: (i + 1, operator(y, 0, 1)),
            torch.zeros_like(trips),
            y,
        )
        total.copy_(y)

    graph, _ = captured(run)
    digits = {"cond.true": 0, "cond.false": 0, "while_loop.body": 0}
    numbers = random.Random(21)
    expected, taken, count = 0, True, 1
    for step in range(sized(2_000, 100_000)):
        if numbers.random() < 0.9:
            where = numbers.choice(list(digits))
            digits[where] = numbers.randrange(5)
            graph.update({f"{where}.digit_{device}.n": digits[where]})
        if numbers.random() < 0.5:
            taken = numbers.random() < 0.5
            if follower == "cpu":
                graph.update({"cond.0.pred": taken})
            else:
                on.fill_(taken)
        if numbers.random() < 0.5:
            count = numbers.randrange(3)
            trips.fill_(count)
        graph.replay()
        expected = expected * 10 + (digits["cond.true"] if taken else 2 * digits["cond.false"])
        for _ in range(count):
            expected = expected * 10 + digits["while_loop.body"]
        if step % 4 == 3:
            assert total.cpu().item() == expected, step
            total.zero_()
            expected = 0
        if numbers.random() < 0.001:
            time.sleep(numbers.random() * 0.002)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_steps_over_pieces_are_exact(device: str, digit: dict[str, ops.KernelOperator]) -> None:
    """The same, where operators between the digits are called eagerly."""
    operator, total = digit[device], torch.zeros(1, dtype=torch.float64, device=device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, split_at=["aten::relu"]):
        y = torch.relu(operator(total.relu(), 1, 1))
        total.copy_(operator(y, 2, 1).relu())
    assert sum(row.reason.startswith("split_at") for row in graph.levels()) == 3
    slots = [name for name in graph.slots if name.endswith(".n")]
    values, expected, numbers = [1, 2], 0, random.Random(22)
    assert len(slots) == 2
    for step in range(sized(2_000, 100_000)):
        if numbers.random() < 0.9:
            place = numbers.randrange(2)
            values[place] = numbers.randrange(10)
            graph.update({slots[place]: values[place]})
        graph.replay()
        expected = expected * 100 + values[0] * 10 + values[1]
        if step % 4 == 3:
            assert total.cpu().item() == expected, step
            total.zero_()
            expected = 0


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_steps_over_many_shapes_in_one_memory_are_exact(
    device: str, digit: dict[str, ops.KernelOperator]
) -> None:
    """The same for compiled graphs of which few captures are kept: each result is the next call's
    input, or one of a few that stay until then.
    """
    operator, numbers = digit[device], random.Random(23)
    run = many_paths(lambda x, n: [operator(operator(x, n, 1), n, 2)])
    kept = [(torch.zeros(rows, dtype=torch.float64, device=device), 0) for rows in range(1, 7)]
    for step in range(sized(500, 100_000)):
        place = numbers.randrange(len(kept))
        x, expected = kept[place]
        n = numbers.randrange(3)
        kept[place] = (run([x, n])[0], expected * 100 + 12 * n)
        if step % 4 == 3:
            for x, expected in kept:
                assert x.unique().tolist() == [expected], step
        if kept[place][1] >= 10**12:
            kept[place] = (torch.zeros_like(x), 0)
