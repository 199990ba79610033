"""Level 2 of a replay: what runs as a function, what it never changes, and when it gives way."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import pytest
import torch
from tests.forked_python import run_forked
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import graphs
from bringup.graphs import _fuse, _fuse_build

X = torch.arange(12.0).reshape(3, 4) - 5
NAN, INF = float("nan"), float("inf")
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a chain": lambda x: torch.relu(x) * 0.3 + x,
    "in place": lambda x: (x + 1).mul_(x).add_(x).relu_().clamp_(-1, 2),
    "numbers in place": lambda x: x.clone().mul_(-2).add_(0.5).relu_().sub_(3).div_(-7).clamp_(-1),
    "a value written twice": lambda x: (x + 0).mul_(x).sub_(x).mul_(2),
    "comparisons": lambda x: torch.where(x > 0, x, -x).maximum(x * 2),
    "half types": lambda x: (x.bfloat16() * 0.1 + 0.1).to(torch.float16) / 3,
    "broadcast and strided": lambda x: (x[:, :1] + x.t()[:3, :3].t()) * x[::2][:1, 1::2][:, :1],
    "shapes in turn": lambda x: (x[0] + 1) * (x + x[1])[2],
    "between other operators": lambda x: ((x + 1).exp() * 2 - 1).sum(0) * x[0],
    "0-dim": lambda x: x[0, 0] * x[1, 1] + x,
    "one row": lambda x: (x[:1] * 2 + 1).relu(),
    "a part in place": lambda x: x.clone()[:, :2].mul_(2).add_(1),
}


def fused(function: Callable[..., Any], *inputs: Any) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        output = function(*inputs)
    assert graph.wait_for_functions(60)
    return graph, output


def levels(graph: graphs.CapturedGraph) -> list[int]:
    return [node.level for node in graph.levels()]


def same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_give_the_bits_of_torch_also_where_it_gives_two(name: str) -> None:
    x = X.clone()
    graph, result = fused(PROGRAMS[name], x)
    taken = levels(graph)
    assert 1 not in taken or name == "between other operators"
    for special in (1.0, NAN, -NAN, INF, -0.0, 0.0, 2.0, 1e-40):
        x.copy_(torch.randn(3, 4))
        x[1, 2] = x[0, 0] = special
        graph.replay()
        assert same_bits(result, PROGRAMS[name](x)), special
    assert levels(graph) == taken  # not one was found wrong in its first replay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("extreme", [torch.maximum, torch.minimum])
def test_an_extreme_of_a_number_and_nan_is_torchs(
    extreme: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    x, y = torch.randn(33, dtype=dtype), torch.randn(33, dtype=dtype)
    graph, result = fused(lambda: extreme(x, y))
    graph.replay()  # the first one is compared with torch's
    assert levels(graph) == [2]
    for special in (NAN, -NAN):
        for one, other in ((x, y), (y, x)):
            one[5], other[5] = special, 1.0
            graph.replay()
            assert same_bits(result, extreme(x, y))


def test_what_a_function_overwrites_is_there_again_where_torch_has_to_compute() -> None:
    x, y = torch.zeros(33), torch.ones(33)
    graph, _ = fused(lambda: x.add_(y).mul_(y).add_(1))
    assert levels(graph) == [2, 2, 2]
    for value in (0.5, NAN, INF, -INF, 2.0):
        y[7] = value
        expected = x.clone().add_(y).mul_(y).add_(1)
        graph.replay()
        assert same_bits(x, expected)


def test_a_bool_of_another_byte_is_one() -> None:
    x = torch.ones(33, dtype=torch.uint8)
    graph, result = fused(lambda: x.view(torch.bool).float() * 2)
    graph.replay()
    assert levels(graph)[-2:] == [2, 2]
    x[3] = 2
    graph.replay()
    assert result[3] == 2


def test_memory_that_overlaps_is_not_put_into_one_loop() -> None:
    x = torch.zeros(8)  # of which no order shows

    def program() -> Tensor:
        y = x[1:] * 2
        x[:-1].add_(y)
        return x[1:] + y

    graph, result = fused(program)
    graph.replay()  # the first one is compared with torch's
    assert levels(graph) == [2, 2, 2]
    x.copy_(torch.arange(8.0))
    expected_x = x.clone()
    for _ in range(3):
        graph.replay()
        y = expected_x[1:] * 2
        expected_x[:-1].add_(y)
        assert torch.equal(x, expected_x)
        assert torch.equal(result, expected_x[1:] + y)


@pytest.mark.parametrize("strides", [(1, 1), (3, 2)])
def test_tensors_whose_elements_share_memory_are_left_to_torch(strides: tuple[int, int]) -> None:
    def program(x: Tensor) -> None:
        x.as_strided((3, 4), strides).clamp_(max=5).mul_(2)

    x = torch.zeros(13)  # of which no order shows
    graph, _ = fused(program, x)
    assert levels(graph) == [1, 1]
    graph.replay()
    x.copy_(torch.arange(13.0))
    expected = x.clone()
    program(expected)
    graph.replay()
    assert torch.equal(x, expected)


def test_what_an_operator_of_others_gets_for_its_result_is_written() -> None:
    library = torch.library.Library("fused_runs", "DEF")
    library.define("gather_add(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("gather_add", lambda x, *, out: out.add_(x), "CPU")

    def program(x: Tensor) -> Tensor:
        out = x * 3
        torch.ops.fused_runs.gather_add(x, out=out)
        return out.exp()

    x = X.clone()
    graph, result = fused(program, x)
    assert levels(graph) == [2, 0, 1]
    for _ in range(3):
        x.mul_(0.5)
        graph.replay()
        assert same_bits(result, program(x))
    library._destroy()


def written_by(graph: graphs.CapturedGraph) -> list[int]:
    """Return how many results the graph's functions write."""
    rows, _, uses = graph._content.native.fusable()
    groups, _ = _fuse.groups_of(rows)
    used = _fuse.Uses(*uses)
    return [len(_fuse.Writer(one, _fuse.dead_in(one, used)).write().writes) for one in groups]


def test_functions_write_what_is_read_and_nothing_else() -> None:
    kept: list[Tensor] = []

    def program(x: Tensor) -> Tensor:
        y = (x + 1) * 2 - x  # x + 1 and its double are dead
        kept.append((y / 2)[1:])
        return (y.exp() + 1) * y

    x = X.clone()
    graph, result = fused(program, x)
    assert written_by(graph) == [2, 1]
    for _ in range(3):
        x.add_(1)
        graph.replay()
        (alias,), expected = [one.clone() for one in kept], program(x)
        assert same_bits(result, expected)
        assert same_bits(alias, kept.pop())
    del result
    assert written_by(graph) == [2, 0]


def test_what_another_graph_of_the_pool_reads_is_written() -> None:
    x, pool = X.clone(), graphs.graph_pool_handle()
    first, second = (graphs.CapturedGraph(optimize=2) for _ in range(2))
    with graphs.capture(first, pool=pool):
        y = (x + 1) * 2
    with graphs.capture(second, pool=pool):
        result = (y * 3) - 1
    del y
    for graph in (first, second):
        assert graph.wait_for_functions(60)
        assert levels(graph) == [2, 2]
    for _ in range(3):
        x.add_(1)
        first.replay()
        second.replay()
        assert same_bits(result, (x + 1) * 2 * 3 - 1)


@pytest.mark.parametrize(
    ("nodes", "held", "dead"),
    [
        ([[]], [], True),
        ([[]], [(40, 41)], False),
        ([[]], [(30, 40), (50, 60)], True),
        ([[(49, 1, False)]], [], False),
        ([[(50, 9, False)], [(39, 1, False)]], [], True),
        ([[(40, 10, True)], [(40, 10, False)]], [(40, 50)], True),
        ([[(40, 9, True)], [(40, 10, False)]], [], False),
        ([[(41, 9, True)]], [(40, 50)], False),
        ([[(40, 10, False), (40, 10, True)]], [], False),
        ([None, [(40, 10, True)]], [], False),
    ],
)
def test_memory_is_dead_that_is_filled_before_it_is_read(
    nodes: list[Any], held: list[tuple[int, int]], dead: bool
) -> None:
    uses = _fuse.Uses([[(40, 10, False)], *nodes], [(0, 30), (40, 50)], held)
    assert uses.is_dead(40, 50, 0) == dead
    assert not uses.is_dead(25, 35, 0)


def test_large_tensors_are_shared_among_threads() -> None:
    former = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x, y = torch.zeros(300, 701), torch.randn(701)
        graph, result = fused(lambda: torch.relu(x * 1.5 + y).minimum(y) - x.t().t())
        assert levels(graph) == [2] * 5
        for special in (1.0, NAN, -0.0, INF):
            x.copy_(torch.randn(300, 701))
            x[299, 700] = special
            graph.replay()
            assert same_bits(result, torch.relu(x * 1.5 + y).minimum(y) - x)
        graph, result = fused(lambda: x.mul_(1.5).add_(0.25).relu_())
        assert levels(graph) == [2] * 3  # in place, and no copy of what was there
        for special in (1.0, NAN, -NAN):
            x.copy_(torch.randn(300, 701))
            x[150, 0] = x[299, 700] = special
            expected = x.clone().mul_(1.5).add_(0.25).relu_()
            graph.replay()
            assert same_bits(result, expected)
    finally:
        torch.set_num_threads(former)


def test_what_a_function_moves_before_it_is_overwritten_may_be_nan() -> None:
    x, y = torch.randn(2, 8)

    def program() -> Tensor:
        product = x * y
        kept = torch.where(x > 0, product, x)
        product.zero_()
        return kept

    graph, kept = fused(program)
    graph.replay()
    assert levels(graph) == [2] * 4
    assert same_bits(kept, program())
    assert graph._content is not None
    (group,), _ = _fuse.groups_of(graph._content.native.fusable()[0])
    assert "NANF(" in _fuse.Writer(group, set()).write().body  # which of two NaN is torch's choice


def test_levels_say_why_a_node_is_not_in_a_function() -> None:
    graph, _ = fused(lambda x: (x.exp() + x.double(), torch.zeros(20000) + 1), X)
    reasons = {node.op: node.reason for node in graph.levels() if node.level < 2}
    assert "not among those" in reasons["aten::exp"]
    assert any("no faster" in reason for reason in reasons.values())
    graph, _ = fused(lambda x: x.exp(), X)
    assert levels(graph) == [1]
    graph, _ = fused(lambda x: (x * NAN, x + (2**53 + 1), x.clamp(max=2**53 + 1)), X)
    assert {node.reason for node in graph.levels()} == {"a number is NaN or too long"}
    graph, _ = fused(lambda x: (x.clone(), x.float(), x.float().fill_(True)), X.int())
    assert levels(graph) == [2, 1, 1, 1]
    assert [node.reason for node in graph.levels()][1:] == [
        *["an argument is converted"] * 2, "a number is no plain one",
    ]  # fmt: skip


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplications are written as additions."""
    rule = replace(_fuse.RULES["mul.Tensor"], text="{a} + {b}")
    monkeypatch.setitem(_fuse.RULES, "mul.Tensor", rule)


@pytest.mark.usefixtures("wrong")
def test_a_function_that_gives_other_bits_is_not_used(
    capfd: pytest.CaptureFixture[str],
) -> None:
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    x = X.clone()
    graph, result = fused(lambda: x * 3)
    for _ in range(3):
        graph.replay()
        assert torch.equal(result, x * 3)
        x.add_(1)
    torch.set_warn_always(always)
    assert "other bits" in graph.levels()[0].reason
    assert capfd.readouterr().err.count("a generated function gave other bits than torch") == 1


@pytest.mark.usefixtures("wrong")
def test_verified_replays_find_a_function_that_gives_other_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_VERIFY", "2")
    x = torch.full((4,), 2.0)
    graph, _ = fused(lambda: x * 2)
    graph.replay()  # 2 * 2 is 2 + 2
    graph.replay()
    x.fill_(3)
    with pytest.raises(RuntimeError, match=r"level 2 gave other bits.*aten::mul"):
        graph.replay()


def test_without_a_compiler_level_1_goes_on_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "/nowhere/cxx")
    monkeypatch.setattr(_fuse_build.worker, "warned", False)
    x = X.clone()
    for number in (7, 8):
        graph, result = fused(lambda n=number: (x * n + n).relu() - n)
        assert levels(graph) == [1] * 4
        assert "not compiled" in graph.levels()[0].reason
        x.add_(1)
        graph.replay()
        assert torch.equal(result, (x * number + number).relu() - number)
    assert len([record for record in caplog.records if "level 1" in record.message]) == 1


def test_a_defect_of_the_writer_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fuse_build, "dead_in", None)
    graph, _ = fused(lambda x: x + 1, X)
    assert [(node.level, node.reason) for node in graph.levels()] == [
        (1, "its function was not written")
    ]


SECOND = """
import torch
from bringup import graphs, jit
from bringup.jit.lookup import events
before = [torch.ones(size) for size in range(1, {addresses})]
x, graph = torch.ones(3), graphs.CapturedGraph(optimize=2)
{freeze}
with torch.no_grad(), graphs.capture(graph):
    y = (x + 1) * x - 0.5
assert graph.wait_for_functions(60)
x.fill_(2)
graph.replay()
assert y.tolist() == [5.5] * 3, y
print([node.level for node in graph.levels()])
"""


def test_a_second_process_compiles_nothing(tmp_path: Any) -> None:
    environment = {**os.environ, "BRINGUP_CACHE_DIR": str(tmp_path)}
    runs = (("jit.freeze()", "[1, 1, 1]"), ("", "[2, 2, 2]"), ("jit.freeze()", "[2, 2, 2]"))
    for addresses, (freeze, expected) in enumerate(runs, start=1):
        code = SECOND.format(freeze=freeze, addresses=addresses)
        done = run_forked(code, environment=environment)
        assert done.stdout.strip() == expected, done.stderr


Held: TypeAlias = tuple[threading.Event, threading.Event]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Compiling sets the first event and waits for the second one."""
    written, go = threading.Event(), threading.Event()
    compiled = _fuse_build.compile_bodies

    def wait(bodies: list[str]) -> list[int]:
        written.set()
        assert go.wait(60)
        return compiled(bodies)

    monkeypatch.setattr(_fuse_build, "compile_bodies", wait)
    return written, go


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("name", "slot", "values"),
    [
        ("add", "alpha", (1, 2, -1.5, 0.3)),
        ("clamp", "min", (-1, 2, None, 0.5, NAN, INF)),
    ],
)
def test_updates_reach_functions(name: str, slot: str, values: tuple[Any, ...]) -> None:
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {name: [("kwarg", slot, slot)]}

    def program(x: Tensor, value: Any) -> Tensor:
        y = torch.add(x, x[:1], alpha=value) if name == "add" else x.clamp(min=value, max=3)
        return y * 2

    graphs.register_graph_handler(name)(Handler)
    x = X.clone()
    graph, y = fused(program, x, values[0])
    assert levels(graph) == [2, 2]
    for value in (*values, *values):
        graph.update({f"{name}.{slot}": value})
        x.mul_(-0.7)
        graph.replay()
        assert same_bits(y, program(x, value)), value


@pytest.mark.usefixtures("handlers")
def test_updates_race_the_switch_and_none_is_lost(held: Held) -> None:
    class Add(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"add": [("kwarg", "alpha", "alpha"), ("arg", 1, "other")]}

    graphs.register_graph_handler("add")(Add)
    written, go = held
    x, other = X.clone(), X.clone()
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        y = torch.add(x, other, alpha=2) * 2
    assert written.wait(60)
    graph.update({"add.alpha": 3})  # behind what was written
    graph.replay()
    go.set()
    deadline = time.monotonic() + 60
    for number in itertools.count():
        graph.update({"add.alpha": number})
        graph.replay()
        assert torch.equal(y, torch.add(x, other, alpha=number) * 2)
        if number > 10 and (graph.wait_for_functions(0) or time.monotonic() > deadline):
            break
    assert levels(graph) == [2, 2]
    new = X * 7
    graph.update({"add.other": new})  # not what the function was written for
    graph.replay()
    assert torch.equal(y, torch.add(x, new, alpha=number) * 2)
    assert "an update gave" in graph.levels()[0].reason
    graph.update({"add.other": other})
    graph.replay()
    assert torch.equal(y, torch.add(x, other, alpha=number) * 2)
    assert levels(graph) == [2, 2]


def test_a_graph_that_goes_while_it_is_compiled_is_let_go(held: Held) -> None:
    written, go = held
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        X + 1
    assert written.wait(60)
    assert graph._content is not None
    fusing = graph._content.fusing
    assert fusing is not None
    graph.reset()
    gc.collect()
    assert fusing._native() is None
    go.set()
    assert fusing.done.wait(60)


def test_threads_replay_beside_the_switch() -> None:
    right = []

    def work(graph: graphs.CapturedGraph, x: Tensor, y: Tensor) -> None:
        last = False
        while not last:
            last = graph.wait_for_functions(0)
            x.normal_()
            graph.replay()
            right.append(torch.equal(y, (x * 0.7).relu() + x))

    threads = []
    for size in (16, 17, 18, 19):
        x = torch.randn(size)
        graph = graphs.CapturedGraph(optimize=2)
        with graphs.capture(graph):
            y = (x * 0.7).relu() + x
        threads.append(threading.Thread(target=work, args=(graph, x, y)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) >= 4
    assert all(right)


def test_a_forked_child_replays_and_fuses_graphs_of_its_own() -> None:
    x = X.clone()
    graph, y = fused(lambda: x * 5 + 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            x.add_(1)
            graph.replay()
            other, z = fused(lambda: x * 6 + 1)
            other.replay()
            good = torch.equal(y, x * 5 + 1) and torch.equal(z, x * 6 + 1)
            code = 0 if good and levels(other) == [2, 2] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_waits_for_nothing_that_its_parent_compiles(held: Held) -> None:
    written, go = held
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        y = X * 5 + 3
    assert written.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            graph.replay()
            if graph.wait_for_functions(60) and levels(graph) == [1, 1]:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert graph.wait_for_functions(60)
    graph.replay()
    assert torch.equal(y, X * 5 + 3)
    assert levels(graph) == [2, 2]


def test_a_process_ends_while_functions_are_compiled(tmp_path: Any) -> None:
    code = """
import torch
from bringup import graphs
graph = graphs.CapturedGraph(optimize=2)
with torch.no_grad(), graphs.capture(graph):
    y = torch.ones(3) * 5 + 3
"""
    run = [sys.executable, "-c", code]
    environment = {**os.environ, "BRINGUP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_default_graph_has_no_functions() -> None:
    graph, _ = captured(lambda: X + 1)
    assert graph.wait_for_functions(0)
    assert levels(graph) == [1]
