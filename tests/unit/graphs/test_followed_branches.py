"""Control flow in a captured graph of a device: whether the device or the host follows it, what is
drawn there, and predicates of the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured
from tests.unit.graphs.test_control_flow import _same, cond, while_loop
from tests.unit.graphs.test_npu import SHIFT
from torch import Tensor

from bringup import devices, graphs, jit, ops
from bringup.devices import sim
from bringup.errors import CaptureError, UpdateError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture
def shift(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`shift(x, n)`: x + n, device code; fails for n = 99."""
    operator = ops.kernel_op(
        "graphs_flow_test::shift(Tensor x, int n) -> Tensor",
        source=jit.Source(text=SHIFT, name="shift.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
        grid=2,
    )
    yield operator
    operator.undefine()


def _replay_and_wait(graph: graphs.CapturedGraph) -> None:
    graph.replay()
    torch.npu.synchronize()


@pytest.mark.parametrize("follower", ["npu", "cpu"])
def test_device_code_runs_where_predicates_lead(follower: str, shift: ops.KernelOperator) -> None:
    """The device follows what lies in its memory; where one does not, the host follows all."""
    x, n = torch.ones(2, device="npu"), torch.tensor(2, device="npu")

    def inner(y: Tensor) -> Tensor:
        pred = (y[0] > 8).to(follower)
        (y,) = cond(pred, lambda y: (shift(y, 0) - 7,), lambda y: (shift(-y, 9),), (y,))
        return y

    def run() -> Tensor:
        (y,) = cond(x[0] > 0, lambda x: (shift(x, 1) * 2,), lambda x: (shift(x, 5),), (x,))
        _, y = while_loop(
            lambda i, _: i < n, lambda i, y: (i + 1, inner(shift(y, 3))), torch.zeros_like(n), y
        )
        return shift(torch.abs(y), 1)

    graph, y = captured(run)
    assert _same(y, run())
    for value, trips in ((1.0, 3), (-2.0, 1), (3.0, 0), (-5.0, 6)):
        x.fill_(value)
        n.fill_(trips)
        torch.npu.synchronize()
        with sim.faults() as seen:
            graph.replay()
        waits = {name for name in seen.functions if "synchronize" in name or "wait_for" in name}
        assert (not waits and seen.functions["graph_launch"].calls == 1) == (follower == "npu")
        assert _same(y, run())
    graph.update({"cond.false.shift.0.n": 99})
    with pytest.raises(RuntimeError, match="99 is too far"):
        _replay_and_wait(graph)
    graph.update({"cond.false.shift.0.n": 5})
    graph.replay()
    assert _same(y, run())


_opened = threading.Event()


@torch.library.custom_op("graphs_flow_test::held", mutates_args=())
def held(x: Tensor) -> Tensor:
    """x, when the test lets go."""
    assert _opened.wait(timeout=240)
    return x.clone()


def test_a_replay_returns_while_the_device_has_not_come_to_its_predicate(
    shift: ops.KernelOperator,
) -> None:
    x, on = torch.ones(2, device="npu"), torch.tensor(True, device="npu")
    _opened.set()

    def run() -> Tensor:
        (y,) = cond(on, lambda x: (shift(x, 1),), lambda x: (shift(x, 2),), (held(x),))
        return y

    graph, y = captured(run)
    _opened.clear()
    graph.replay()
    graph.update({"cond.true.shift.n": 7})  # for the next one
    graph.replay()
    _opened.set()
    assert y.tolist() == [8, 8]


def test_a_failure_on_the_host_ends_a_loop_of_the_device(shift: ops.KernelOperator) -> None:
    table, index = torch.arange(4.0, device="npu").view(2, 2), torch.tensor([0], device="npu")
    on, n = torch.tensor(True, device="npu"), torch.tensor(20_000, device="npu")

    def run() -> tuple[Tensor, ...]:
        return while_loop(
            lambda i, _: on & (i < n),
            lambda i, x: (
                i + torch.nn.functional.embedding(index, table).long()[0, 1],
                shift(x, 1),
            ),
            torch.zeros_like(n),
            torch.ones(1, device="npu"),
        )

    n.fill_(1)
    graph, (i, x) = captured(run)
    index.fill_(7)
    graph.replay()
    with pytest.raises(RuntimeError, match=r"aten::embedding in while_loop.body.*index out of ran"):
        torch.npu.synchronize()
    assert on.item()
    index.fill_(0)
    n.fill_(20_000)
    before = graph.memory_bytes
    graph.replay()
    assert (i.item(), x.item(), graph.memory_bytes) == (20_000, 20_001, before)


def test_a_loop_of_the_device_ends_where_it_is_reset(shift: ops.KernelOperator) -> None:
    n, x = torch.tensor(1, device="npu"), torch.ones(1, device="npu")
    graph, _ = captured(
        lambda: while_loop(
            lambda i, _: i < n, lambda i, x: (i + 1, shift(x, 0)), torch.zeros_like(n), x
        )
    )
    n.fill_(1 << 60)
    graph.replay()
    torch.npu.reset_device()
    n.fill_(2)
    graph.replay()
    torch.npu.synchronize()


def test_random_numbers_are_those_of_eager() -> None:
    n, on = torch.tensor(2), torch.tensor(True)

    def run() -> tuple[Tensor, ...]:
        _, x = while_loop(
            lambda i, _: i < n, lambda i, x: (i + 1, x + torch.rand(3)), torch.tensor(0), zeros
        )
        (y,) = cond(on, lambda: (torch.randn(3),), lambda: (torch.zeros(3),), ())
        return x, y, torch.rand(3)

    zeros = torch.zeros(3)
    graph, results = captured(run)
    for trips, taken in ((0, True), (4, False), (1, True)):
        n.fill_(trips)
        on.fill_(taken)
        torch.manual_seed(5)
        expected = run()
        torch.manual_seed(5)
        graph.replay()
        for one, other in zip(results, expected, strict=True):
            assert _same(one, other)
    x = torch.zeros(3, device="npu")

    def run_on_both(x: Tensor) -> Tensor:
        (y,) = cond(on, lambda x: (torch.rand(3),), lambda x: (torch.ones(3),), (x.cpu(),))
        return x + y.to("npu")

    on.fill_(False)
    graph, y = captured(run_on_both, x)
    on.fill_(True)
    torch.manual_seed(3)
    graph.replay()
    drawn = torch.rand(3)  # behind what the replay draws, which is waited for
    torch.manual_seed(3)
    assert _same(y, torch.rand(3))
    assert _same(drawn, torch.rand(3))


def _drawn_twice(run: Callable[[], Any], seed: int) -> list[Tensor]:
    """What two runs give, copied, and the next numbers of the device's generator behind them."""
    torch.npu.manual_seed(seed)
    results = []
    for _ in range(2):
        results += [one.clone() for one in run()]
    return [*results, torch.rand(2, device="npu")]


@pytest.mark.parametrize("taken", [True, False])
def test_a_device_draws_in_branches_and_loops_what_eager_draws(taken: bool) -> None:
    n, on = torch.tensor(2 * taken, device="npu"), torch.tensor(taken, device="npu")
    x, q = torch.ones(6, device="npu"), torch.randn(1, 2, 4, 4).to("npu")
    own = torch.Generator("npu").manual_seed(3)
    attention = torch.nn.functional.scaled_dot_product_attention

    def inner(x: Tensor) -> Tensor:
        (y,) = cond(
            x.sum() > 6,
            lambda x: (torch.nn.functional.dropout(x, 0.5, True),),
            lambda x: (x + torch.rand(6, device="npu") + torch.rand(6, device="npu"),),
            (x,),
        )
        return y

    def run() -> tuple[Tensor, ...]:
        first = torch.rand(3, device="npu")
        _, y = while_loop(
            lambda i, _: i < n, lambda i, y: (i + 1, inner(y)), torch.zeros_like(n), x
        )
        (z,) = cond(
            on,
            lambda: (attention(q, q, q, dropout_p=0.5) + attention(q, q, q),),
            lambda: (torch.empty_like(q).normal_(generator=own),),
            (),
        )
        return first, y, z, torch.randn(3, device="npu")

    graph, results = captured(run)

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return results

    for trips, value in ((1, not taken), (5, taken), (0, True)):
        n.fill_(trips)
        on.fill_(value)
        state = own.get_state()
        expected = _drawn_twice(run, trips)
        own.set_state(state)
        for one, other in zip(_drawn_twice(replay, trips), expected, strict=True):
            assert _same(one, other), (trips, value)


def test_a_generator_that_is_set_beside_draws_in_branches_is_refused() -> None:
    x = torch.ones(2, device="npu")

    def run() -> Tensor:
        (y,) = cond(x[0] > 0, lambda x: (torch.rand_like(x),), lambda x: (x + 1,), (x,))
        torch.npu.set_rng_state(torch.npu.get_rng_state())
        return y

    with pytest.raises(CaptureError, match="was seeded or set inside the capture"):
        captured(run)


def test_a_predicate_of_the_host_is_a_slot() -> None:
    on, x = torch.tensor(True), torch.ones(2)
    for device in ("cpu", "npu"):
        graph, (y,) = captured(cond, on, lambda x: (x + 1,), lambda x: (x - 1,), (x.to(device),))
        slot = graph.slots["cond.0.pred"]
        assert (slot.type, slot.value, slot.op) == ("Tensor", torch.tensor(True), "torch.cond")
        for value in (False, True, torch.tensor(False)):
            assert graph.update({"cond.0.pred": value}).changed == ("cond.0.pred",)
            graph.replay()
            assert y.tolist() == [2 * bool(value)] * 2
        on.fill_(True)  # which the slot reads no more
        graph.replay()
        assert y.tolist() == [0, 0]
        for wrong in (1, None, torch.tensor(1), torch.tensor([True]), on.to("npu")):
            with pytest.raises(UpdateError, match=r"slot 'cond.0.pred' takes"):
                graph.update({"cond.0.pred": wrong})
    graph, _ = captured(cond, on.to("npu"), lambda x: (x + 1,), lambda x: (x - 1,), (x.to("npu"),))
    assert not graph.slots
