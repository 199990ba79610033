"""Captures of every level beside eager, through updates, the switch to functions, and compilers
that fail: a state machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar
from unittest import mock

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor

from bringup import graphs
from bringup.errors import CompileError
from bringup.graphs import _fuse_build, _handlers

Step = Callable[[Tensor, Tensor, float], Tensor]
STEPS: dict[str, Step] = {
    "add": lambda v, other, alpha: torch.add(v, other, alpha=alpha),
    "relu": lambda v, other, alpha: torch.relu(v) * 0.5,
    "exp": lambda v, other, alpha: v.clamp(-2, 2).exp(),
    "in place": lambda v, other, alpha: (v * 2).mul_(v).sub_(0.5),
    "broadcast": lambda v, other, alpha: v - v[:, :1],
    "softmax": lambda v, other, alpha: torch.softmax(v, -1),
}
PROGRAMS = (
    ("relu", "add", "in place", "broadcast"),
    ("in place", "exp", "add", "relu", "add", "softmax"),
    ("add", "in place", "relu", "softmax", "broadcast", "in place"),
)
SPECIAL = (0.5, float("nan"), float("inf"), -0.0)


class Handler(graphs.GraphOpHandler):
    """Lets updates write how `add` scales its second argument, and that argument."""

    UPDATE_SPECS: ClassVar = {"add": [("kwarg", "alpha", "alpha"), ("arg", 1, "other")]}


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


class Captures(RuleBasedStateMachine):
    """One program at three levels. Of the last one functions are compiled when a rule says so."""

    @initialize(program=st.sampled_from(PROGRAMS), fails=st.booleans(), kept=st.integers(0, 3))
    def capture(self, program: tuple[str, ...], fails: bool, kept: int) -> None:
        self.compiler, self.compiled = threading.Event(), _fuse_build.compile_bodies
        self.fails, self.program, self.alpha = fails, program, 1.0
        self.until_teardown = ExitStack()
        patch = mock.patch.object(_fuse_build, "compile_bodies", self.compile)
        self.until_teardown.enter_context(patch)
        self.until_teardown.enter_context(_handlers.handlers_of_block())
        graphs.register_graph_handler("add")(Handler)
        self.x, self.other = torch.randn(3, 8), torch.randn(3, 8)
        self.graphs = [graphs.CapturedGraph(optimize=level) for level in range(3)]
        self.results: list[dict[int, Tensor]] = []
        for graph in self.graphs:
            with torch.no_grad(), graphs.capture(graph):
                values = self.run()
            self.results.append({i: values[i] for i in {kept, len(program) - 1}})
            del values

    def run(self) -> list[Tensor]:
        values: list[Tensor] = []
        for step in self.program:
            last = values[-1] if values else self.x
            values.append(STEPS[step](last, self.other, self.alpha))
        return values

    def compile(self, bodies: list[str]) -> list[int]:
        assert self.compiler.wait(60)
        if self.fails:
            raise CompileError("the compiler fails")
        return self.compiled(bodies)

    @rule(alpha=st.sampled_from((1.0, 2.0, -0.25, 1e30)))
    def update_a_number(self, alpha: float) -> None:
        self.alpha = alpha
        for graph in self.graphs:
            graph.update({"**.alpha": alpha})

    @rule()
    def update_a_tensor(self) -> None:
        self.other = torch.randn(3, 8)
        for graph in self.graphs:
            graph.update({"**.other": self.other})

    @precondition(lambda self: not self.compiler.is_set())
    @rule()
    def switch(self) -> None:
        self.compiler.set()
        assert self.graphs[2].wait_for_functions(60)
        levels = {node.level for node in self.graphs[2].levels()}
        assert 2 not in levels if self.fails else max(levels) > 0

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
        self.x.copy_(torch.randn(3, 8))
        self.x[1, 3] = special
        expected = self.run()
        for level, (graph, results) in enumerate(zip(self.graphs, self.results, strict=True)):
            graph.replay()
            for place, result in results.items():
                same = torch.equal(_bits(result), _bits(expected[place]))
                assert same, (level, place, self.program[place], result, expected[place])

    def teardown(self) -> None:
        self.compiler.set()
        for graph in self.graphs:
            graph.wait_for_functions(60)
        self.until_teardown.close()


TestCaptures = Captures.TestCase
TestCaptures.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
