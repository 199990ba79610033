"""Captures of every level beside eager, through updates, the switch to functions and kernels, other
branches and trips, and compilers, drivers and launches that fail: a state machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.sweeps.support import sized
from tests.unit.graphs.test_control_flow import cond, while_loop
from tests.unit.graphs.test_device_kernels import loaded_kernels
from tests.unit.graphs.test_faulty_replay import raised_by
from tests.unit.graphs.test_update_beside_replay import many_paths
from torch import Tensor

from bringup import graphs
from bringup.compiler import capture_memory
from bringup.devices import sim
from bringup.errors import CompileError
from bringup.graphs import _fuse_build, _fuse_device, _handlers


@dataclass
class Given:
    """What steps read besides the value that they are given."""

    other: Tensor
    alpha: float
    on: Tensor  # of the host, a slot
    trips: Tensor


Step = Callable[[Tensor, Given], Tensor]


def _add(v: Tensor, given: Given) -> Tensor:
    with graphs.scope("step"):  # a loop's counter is another add
        return torch.add(v, given.other, alpha=given.alpha)


def _branch(v: Tensor, given: Given) -> Tensor:
    (v,) = cond(given.on, lambda v: (_add(v, given),), lambda v: (torch.relu(v) * 0.5,), (v,))
    return v


def _loop(v: Tensor, given: Given) -> Tensor:
    def body(i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        (v,) = cond(
            v.sum() > i, lambda v: (v * 0.5 - 1,), lambda v: (_add(torch.relu(v), given),), (v,)
        )
        return i + 1, v

    return while_loop(lambda i, _: i < given.trips, body, torch.zeros_like(given.trips), v)[1]


STEPS: dict[str, Step] = {
    "add": _add,
    "relu": lambda v, given: torch.relu(v) * 0.5,
    "exp": lambda v, given: v.clamp(-2, 2).exp(),
    "in place": lambda v, given: (v * 2).mul_(v).sub_(0.5),
    "broadcast": lambda v, given: v - v[:, :1],
    "softmax": lambda v, given: torch.softmax(v, -1),
    "branch": _branch,
    "loop": _loop,
}
PROGRAMS = (
    ("relu", "add", "in place", "broadcast"),
    ("in place", "exp", "add", "relu", "add", "softmax"),
    ("add", "in place", "relu", "softmax", "broadcast", "in place"),
    ("add", "branch", "relu", "in place"),
    ("relu", "add", "loop", "in place", "relu"),
    ("loop", "add", "branch", "exp", "add"),
)
SPLITS = ((), ("aten::add",), ("aten::relu", "aten::_softmax"), ("aten::mul_", "aten::sub"))
"""Operators that run eagerly, where the program has them."""
SPECIAL = (0.5, float("nan"), float("inf"), -0.0)


class Handler(graphs.GraphOpHandler):
    """Lets updates write how `add` scales its second argument, and that argument."""

    UPDATE_SPECS: ClassVar = {"add": [("kwarg", "alpha", "alpha"), ("arg", 1, "other")]}


def named(split: tuple[str, ...]) -> list[Callable[..., bool]]:
    return [lambda op, args, kwargs: op._schema.name in split] if split else []


def _bits(x: Tensor, device: str) -> Tensor:
    x = x.cpu().contiguous()
    return (x if device == "cpu" else x.nan_to_num(0.25, 3e38, -3e38)).view(torch.uint8)


class Captures(RuleBasedStateMachine):
    """One program at three levels. Of the last one functions are compiled when a rule says so."""

    device = "cpu"
    failures: ClassVar[tuple[str, ...]] = ("", "compiler")

    @initialize(
        data=st.data(),
        program=st.sampled_from(PROGRAMS),
        kept=st.integers(0, 3),
        split=st.sampled_from(SPLITS),
    )
    def capture(
        self, data: st.DataObject, program: tuple[str, ...], kept: int, split: tuple[str, ...]
    ) -> None:
        self.fails = data.draw(st.sampled_from(self.failures))
        self.compiler, self.program = threading.Event(), program
        self.until_teardown = ExitStack()
        for owner, name in (
            (_fuse_build, "compile_bodies"),
            (_fuse_device.DeviceWritten, "kernel_id"),
        ):
            patch = mock.patch.object(owner, name, self.compiled_later(getattr(owner, name)))
            self.until_teardown.enter_context(patch)
        self.until_teardown.enter_context(_handlers.handlers_of_block())
        graphs.register_graph_handler("add")(Handler)
        self.x = self.random()
        trips = torch.tensor(data.draw(st.integers(0, 2)), device=self.device)
        self.given = Given(self.random(), 1.0, torch.tensor(data.draw(st.booleans())), trips)
        self.graphs = [graphs.CapturedGraph(optimize=level) for level in range(3)]
        self.results: list[dict[int, Tensor]] = []
        for graph in self.graphs:
            with torch.no_grad(), graphs.capture(graph, split_at=named(split)):
                values = self.run()
            self.results.append({i: values[i] for i in {kept, len(program) - 1}})
            del values

    def random(self) -> Tensor:
        return torch.randn(3, 8).to(self.device)

    def run(self) -> list[Tensor]:
        values: list[Tensor] = []
        for step in self.program:
            last = values[-1] if values else self.x
            values.append(STEPS[step](last, self.given))
        return values

    def compiled_later(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def compile_it(given: Any) -> Any:
            assert self.compiler.wait(60)
            if self.fails == "compiler":
                raise CompileError("the compiler fails")
            return compiled(given)

        return compile_it

    @rule(alpha=st.sampled_from((1.0, 2.0, -0.25, 1e30)))
    def update_a_number(self, alpha: float) -> None:
        self.given.alpha = alpha
        for graph in self.graphs:
            graph.update({"**.step.add.*.alpha": alpha})

    @rule()
    def update_a_tensor(self) -> None:
        self.given.other = self.random()
        for graph in self.graphs:
            graph.update({"**.step.add.*.other": self.given.other})

    @precondition(lambda self: "branch" in self.program)
    @rule(on=st.booleans())
    def take_a_branch(self, on: bool) -> None:
        self.given.on = torch.tensor(on)
        for graph in self.graphs:
            graph.update({"**.cond.*.pred": on})

    @precondition(lambda self: "loop" in self.program)
    @rule(trips=st.integers(0, 3))
    def make_trips(self, trips: int) -> None:
        self.given.trips.fill_(trips)

    @precondition(lambda self: not self.compiler.is_set())
    @rule(races=st.booleans())
    def switch(self, races: bool) -> None:
        refuses = "graph_add_values" if self.fails == "driver" else ()
        with sim.faults(fail=refuses) if refuses else ExitStack():
            self.compiler.set()
            if races:
                self.update_a_number(0.75)
                self.check(0.5)
                self.update_a_tensor()
                self.check(0.5)
            assert self.graphs[2].wait_for_functions(60)
        levels = {node.level for node in self.graphs[2].levels()}
        # A graph with control flow has no second graph of the device that could be refused.
        refused = self.fails and not (refuses and {"branch", "loop"} & {*self.program})
        assert 2 not in levels if refused else max(levels) > 0

    @precondition(lambda self: len(self.results[0]) > 1)
    @rule()
    def let_an_intermediate_go(self) -> None:
        for results in self.results:
            del results[min(results)]

    @rule(special=st.sampled_from(SPECIAL))
    def replay(self, special: float) -> None:
        self.check(0.5)  # the first call of a function runs its nodes too
        self.check(special)

    def check(self, special: float) -> None:
        expected = self.expected(special)
        for level, graph in enumerate(self.graphs):
            graph.replay()
            self.compare(level, expected)

    def expected(self, special: float) -> list[Tensor]:
        """What eager gives for new values of the input."""
        fresh = torch.randn(3, 8)
        fresh[1, 3] = special
        self.x.copy_(fresh)
        return self.run()

    def compare(self, level: int, expected: list[Tensor]) -> None:
        for place, result in self.results[level].items():
            both = (_bits(one, self.device) for one in (result, expected[place]))
            told = (level, place, self.program[place], result, expected[place])
            assert torch.equal(*both), told

    def teardown(self) -> None:
        self.compiler.set()
        for graph in self.graphs:
            graph.wait_for_functions(60)
        self.until_teardown.close()


class DeviceCaptures(Captures):
    """The same on a device that runs some operators itself, and whose launches may fail."""

    device = "npu"
    failures = ("", "compiler", "driver")

    @rule(level=st.integers(0, 2), what=st.sampled_from(("graph_launch", "graph_kernel")))
    def a_launch_fails(self, level: int, what: str) -> None:
        self.check(0.5)
        with sim.faults(fail=what) as seen, pytest.raises(RuntimeError, match=what[6:]):
            self.replay_and_wait(level)
        assert seen.functions[what].injected == 1
        self.check(0.5)

    @rule(level=st.integers(0, 2), number=st.integers(0, 12), alpha=st.sampled_from((1.0, 3.0)))
    def a_call_fails(self, level: int, number: int, alpha: float) -> None:
        self.check(0.5)
        self.update_a_number(alpha)
        expected = self.expected(0.5)
        torch.npu.synchronize()
        with sim.faults(fail="any", fail_after=number) as seen:
            failed = raised_by(lambda: self.replay_and_wait(level))
        failed += raised_by(torch.npu.synchronize)
        assert seen.count > 0 or not failed
        if not failed:  # an eager call goes on without a view that it asked for
            self.compare(level, expected)
        self.check(0.5)

    def replay_and_wait(self, level: int) -> None:
        self.graphs[level].replay()
        torch.npu.synchronize()


PATHS = (
    ("relu", "in place", "exp"),
    ("softmax", "broadcast"),
    ("exp", "relu", "softmax", "in place"),
)


class Paths(RuleBasedStateMachine):
    """Calls of compiled graphs whose captures are in one memory, with results that live on."""

    device = "cpu"

    @initialize(most=st.integers(1, 3))
    def compile(self, most: int) -> None:
        capture_memory.memory_of.cache_clear()
        self.until_teardown = ExitStack()
        self.runs = [many_paths(self.function(path), most) for path in PATHS]
        self.live: list[tuple[Tensor, Tensor]] = []

    def function(self, path: tuple[str, ...]) -> Callable[[Tensor], list[Tensor]]:
        def run(x: Tensor) -> list[Tensor]:
            values = [x]
            for step in path:
                values.append(STEPS[step](values[-1], Given(x, 1.0, x, x)))
            return values[-2:]

        return run

    def given(self, rows: int, feeds: bool) -> Tensor:
        """New memory, or what a call gave."""
        return (
            self.live[-1][0][:rows] if feeds and self.live else torch.randn(rows, 8).to(self.device)
        )

    @rule(path=st.sampled_from(range(len(PATHS))), rows=st.integers(0, 4), feeds=st.booleans())
    def call(self, path: int, rows: int, feeds: bool) -> None:
        x = self.given(rows, feeds)
        self.take(self.runs[path]([x]), path, x)

    def take(self, results: list[Tensor], path: int, x: Tensor) -> None:
        self.live += zip(results, map(torch.clone, self.function(PATHS[path])(x)), strict=True)
        self.check()

    @rule()
    def let_results_go(self) -> None:
        del self.live[::2]

    @rule(kilobytes=st.sampled_from((1, 4, 1000)))
    def limit_what_is_kept(self, kilobytes: int) -> None:
        self.until_teardown.enter_context(
            mock.patch.dict(os.environ, BRINGUP_CAPTURE_MEMORY=f"{kilobytes}K")
        )

    def check(self) -> None:
        for result, expected in self.live:
            assert torch.equal(*(_bits(one, self.device) for one in (result, expected)))

    def teardown(self) -> None:
        self.until_teardown.close()


class DevicePaths(Paths):
    """The same on a device of which any call may fail."""

    device = "npu"

    @rule(
        path=st.sampled_from(range(len(PATHS))), rows=st.integers(1, 4), number=st.integers(0, 60)
    )
    def a_call_fails(self, path: int, rows: int, number: int) -> None:
        x, results = self.given(rows, False), []
        torch.npu.synchronize()
        with sim.faults(fail="any", fail_after=number):
            failed = raised_by(lambda: results.extend(self.runs[path]([x])))
        failed += raised_by(torch.npu.synchronize)
        if failed:
            results = self.runs[path]([x])
        self.take(results, path, x)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    with loaded_kernels():
        yield


def _test_case(machine: type[RuleBasedStateMachine], count: int) -> Any:
    case = machine.TestCase
    case.settings = settings(
        max_examples=count,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestCaptures = _test_case(Captures, sized(8, 200))
TestDeviceCaptures = _test_case(DeviceCaptures, sized(5, 100))
TestPaths = _test_case(Paths, sized(5, 200))
TestDevicePaths = _test_case(DevicePaths, sized(5, 200))
