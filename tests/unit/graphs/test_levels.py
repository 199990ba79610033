"""The levels of a replay: which nodes are prepared, and what they never change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor, library

from bringup import graphs
from bringup.errors import CaptureError, SettingError

X = torch.arange(12.0).reshape(3, 4) - 5
LEVEL_1: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: x * 0.5 + 1,
    "in place": lambda x: x.clone().add_(x).relu_(),
    "another dtype as result": lambda x: x > 0,
    "broadcast": lambda x: x + x[:1] * x[:, :1],
    "strided": lambda x: x.t().clone()[::2].exp(),
    "a choice": lambda x: torch.where(x > 0, x, x.sum(0)),
    "products": lambda x: torch.addmm(x[:, :3], x, x.t()).softmax(-1),
    "sums": lambda x: x.sum(0) + x.mean(1).sum(),
    "zero-size": lambda x: x[:0].clone() * 2,
    "bool": lambda x: (x > 0) & (x < 3),
    "integers": lambda x: torch.arange(4) * 3,
    "converted": lambda x: x + x.double(),
    "a 0-dim tensor of another dtype": lambda x: x + x.view(torch.int32)[0, 0],
    "converted in place": lambda x: torch.ones(3, 4).double().mul_(x),
    "a conversion": lambda x: x.to(torch.bfloat16).to(torch.float64),
    "a fresh number": lambda x: torch.scalar_tensor(2.0),
    "numbers as tensors": lambda x: torch.ops.aten.add_.Scalar(x.clone(), 2, 3).div_(2),
    "means": lambda x: x.bfloat16().mean() + x.mean((0, 1)) + x.mean(-1, keepdim=True),
    "one behind the other": lambda x: torch.cat((x, x[:0], x[:1].t().reshape(1, 4).double()[:1])),
    "slices that an index says": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "slices to where an index says": lambda x: x.clone().index_copy_(
        0, torch.tensor([2, 0]), x[1:]
    ),
    "several indices": lambda x: x[torch.tensor([[2], [0]]), torch.tensor([3, -1, 3])],
    "indices apart": lambda x: x.reshape(2, 3, 2)[torch.tensor([1, -2]), :, torch.tensor([1, 1])],
    "an embedding": lambda x: torch.nn.functional.embedding(torch.tensor([[2], [1]]), x),
    "a mask": lambda x: x.masked_fill(x > 0, -1.5).masked_fill_(x < -2, 7),
    "filled": lambda x: x.clone().fill_(3),
    "a product with an expanded matrix": lambda x: x.double() @ x[:, :1].double().expand(3, 4).t(),
    "a sum of products with one": lambda x: torch.addmm(x[:, :3], x, x[:1].expand(3, 4).t()),
    "softmax of other strides": lambda x: x.t().softmax(1).log_softmax(0),
    "a layer norm": lambda x: torch.nn.functional.layer_norm(x, (4,), x[0], x[1]),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None, None], x[None, None, :2], x[None, None, :2], attn_mask=x[:, :2] > -9
    ),
    "causal attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True
    ),
    "gelu of a half type": lambda x: torch.nn.functional.gelu(x.bfloat16()),
    "batched products": lambda x: torch.baddbmm(
        x[:1], x[None], x.t()[None, :, :3].repeat(1, 1, 1)[:, :, :1].expand(1, 4, 4)
    ),
}
LEVEL_0: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a result that is converted": (lambda x: x.clone().mul_(x.double()), "converted"),
    "many indices": (lambda x: x.index_select(1, torch.zeros(30000).long())[:, :4], "shapes"),
    "a short index": (lambda x: torch.ops.aten.index(x, [torch.tensor(2).int()]), "converted"),
    "random numbers": (torch.rand_like, "no prepared form"),
    "unknown": (lambda x: x.cumprod(0), "no prepared form"),
    "a lazy negation": (lambda x: torch._neg_view(x).clone() + 1, "more than"),
    "a conjugate": (lambda x: torch.view_as_complex(x.view(3, 2, 2)).conj() * 2, "more than"),
}


@pytest.mark.parametrize("name", LEVEL_1)
def test_what_torch_computes_by_structured_kernels_is_prepared(name: str) -> None:
    x = X.clone()
    graph, result = captured(LEVEL_1[name], x)
    assert graph.levels()
    assert {(node.level, node.reason) for node in graph.levels()[-1:]} == {(1, "")}
    for factor in (2, -3, 0.25):
        x.mul_(factor)
        graph.replay()
        torch.testing.assert_close(result, LEVEL_1[name](x), rtol=0, atol=0)


def _bits_are_those_of_eager(approximate: str, count: int, x: Tensor) -> None:
    def gelu(y: Tensor) -> Tensor:
        return torch.nn.functional.gelu(y, approximate=approximate)

    part = x[:count].clone()
    graph, result = captured(gelu, part)
    for begin in range(0, len(x) - count + 1, count):
        part.copy_(x[begin : begin + count])
        graph.replay()
        assert result.view(torch.int16).equal(gelu(part).view(torch.int16))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_every_value_is_looked_up_as_torch_computes_it(approximate: str) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for count in (2, 4096):
        _bits_are_those_of_eager(approximate, count, every[-4096:] if count == 2 else every)
    mixed = every[torch.randperm(1 << 16)]
    for count in range(1, 66):
        _bits_are_those_of_eager(approximate, count, mixed[: 2 * count])


@pytest.mark.parametrize("is_later", [False, True])
def test_what_is_looked_up_follows_how_torch_computes(is_later: bool) -> None:
    x = torch.full((8,), 1e-39).bfloat16()
    graph = graphs.CapturedGraph()
    other_modes = (
        lambda: torch.set_flush_denormal(True),
        lambda: torch.backends.mkldnn.set_flags(False),
    )
    for enter in other_modes:
        try:
            if not is_later:
                enter()
            graph, result = captured(torch.nn.functional.gelu, x)
            enter()
            graph.replay()
            expected = torch.nn.functional.gelu(x)
            assert result.view(torch.int16).equal(expected.view(torch.int16))
        finally:
            torch.set_flush_denormal(False)
            torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize("name", LEVEL_0)
def test_what_is_not_prepared_says_why_and_is_right(name: str) -> None:
    function, reason = LEVEL_0[name]
    x = X.clone()
    graph, result = captured(function, x)
    assert any(node.level == 0 and reason in node.reason for node in graph.levels())
    for _ in range(2):
        x.mul_(2)
        torch.manual_seed(3)
        graph.replay()
        torch.manual_seed(3)
        torch.testing.assert_close(result, function(x), rtol=0, atol=0)


def test_a_kernel_that_takes_an_operand_out_of_the_iterator_finds_it_there_again() -> None:
    x, factor = X.bfloat16(), torch.tensor(3.0, dtype=torch.bfloat16)
    graph, result = captured(lambda: x * factor)
    for number in (1.0, 2.0, 5.0):
        factor.fill_(number)
        x.add_(1)
        graph.replay()
        torch.testing.assert_close(result, x * factor, rtol=0, atol=0)
    assert [node.level for node in graph.levels()] == [1]


def test_an_index_out_of_range_is_the_error_of_eager_and_a_right_one_runs_again() -> None:
    x, index = X.clone(), torch.tensor([2, 0])
    graph, result = captured(lambda: x.clone().index_copy_(0, index, x[1:]).index_select(0, index))
    for wrong in (3, -1):
        index[1] = wrong
        with pytest.raises(IndexError, match="out of"):
            graph.replay()
        index[1] = 1
        graph.replay()
        assert torch.equal(result, x.clone().index_copy_(0, index, x[1:]).index_select(0, index))
        assert {node.level for node in graph.levels()} == {1}


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("form", ["out", "in place"])
def test_a_kernel_that_is_registered_later_runs(level: int, form: str) -> None:
    x = X.clone()
    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        result = x.clone().mul_(2) if form == "in place" else x * 2
    assert graph.wait_for_functions()
    assert {node.level for node in graph.levels()} == {level}
    name = "mul_.Tensor" if form == "in place" else "mul.out"
    with torch.library._scoped_library("aten", "IMPL") as library:

        def replaced(self: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
            return (self if out is None else out).fill_(7)

        library.impl(name, replaced, "CPU", allow_override=True)
        graph.replay()
        assert result.eq(7).all()
    graph.replay()
    torch.testing.assert_close(result, X * 2)


def test_what_fails_fails_at_the_replay_as_in_eager() -> None:
    x = torch.tensor([1, 2])
    graph, _ = captured(lambda: torch.div(7, x, rounding_mode="floor"))
    x.zero_()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        graph.replay()
    x.fill_(2)
    graph.replay()


def test_memory_that_was_taken_away_is_noticed_at_every_level() -> None:
    x = X.clone()
    graph, _ = captured(lambda: x * 2)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(48)
    with pytest.raises(CaptureError, match="memory"):
        graph.replay()


@library.custom_op("levels_test::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_code_in_python_alone_gets_memory_that_it_may_keep() -> None:
    graph = graphs.CapturedGraph(optimize=0)
    with graphs.capture(graph):
        y = torch.nn.functional.layer_norm(doubled(X), (4,)).roll(1, 0).cumprod(0)
    assert [(node.op.partition("::")[2], node.method) for node in graph.nodes] == [
        ("doubled", "copy"), ("native_layer_norm", "allocations"), ("roll", "allocations"),
        ("cumprod", "out"),
    ]  # fmt: skip
    assert y.shape == X.shape


def test_level_0_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_OPTIMIZE", "0")
    graph, _ = captured(lambda x: x * 2, X)
    assert [(node.level, node.reason) for node in graph.levels()] == [
        (0, "the graph was captured with optimize=0")
    ]


def test_another_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="optimize is 0, 1 or 2, got 3"):
        graphs.CapturedGraph(optimize=3)
    monkeypatch.setenv("BRINGUP_GRAPH_OPTIMIZE", "fast")
    with pytest.raises(SettingError, match="expected 0, 1 or 2"):
        graphs.CapturedGraph()


def replay(graph: graphs.CapturedGraph, times: int) -> None:
    for _ in range(times):
        graph.replay()


def test_verified_replays_find_what_differs_and_leave_results_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_VERIFY", "2")
    x, total = X.clone(), torch.zeros(3, 4)
    graph, _ = captured(lambda: total.add_(x * 2))
    replay(graph, 4)
    torch.testing.assert_close(total, X * 8)
    wide = torch.zeros(1 << 20)
    graph, _ = captured(lambda: wide * 2)
    with written_meanwhile(wide), pytest.raises(RuntimeError, match=r"other bits.*aten::mul"):
        replay(graph, 1000)


@contextmanager
def written_meanwhile(x: Tensor) -> Iterator[None]:
    """Another thread writes `x` all the time."""
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            x.add_(1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def test_a_node_that_gives_other_bits_when_it_is_captured_stays_at_level_0() -> None:
    wide = torch.zeros(1 << 18)
    reasons = []
    with written_meanwhile(wide):
        for _ in range(200):
            with suppress(CaptureError):  # where the writer was not there for two replays
                graph, _ = captured(lambda: wide.mul_(1) * 2)
                reasons.append(graph.levels()[-1].reason)
            if any("other bits" in reason for reason in reasons):
                return
    raise AssertionError(reasons)


SLOTS: dict[str, tuple[Callable[[Tensor, Any], Tensor], str, tuple[Any, ...]]] = {
    "add": (lambda x, alpha: torch.add(x, x[:1], alpha=alpha), "alpha", (1, 2, -1, 3)),
    "clamp": (lambda x, least: torch.clamp(x, least, 3), "min", (-1, 2, None, 9)),
    "pow": (lambda x, power: torch.pow(x, power), "exponent", (2, 3, 0.5, -1)),
    "leaky_relu": (torch.nn.functional.leaky_relu, "negative_slope", (0.1, 2.0, 0.0, -1.0)),
    "cumsum": (torch.cumsum, "dim", (0, 1, -2, -1)),
    "lerp": (lambda x, weight: torch.lerp(x, x[:1], weight), "weight", (0.25, 0.75, 0, 2)),
}


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", SLOTS)
def test_updates_reach_what_was_prepared(name: str, level: int) -> None:
    function, slot, values = SLOTS[name]
    specs = {name: [("kwarg", slot, slot)]}
    graphs.register_graph_handler(name)(
        type("Handler", (graphs.GraphOpHandler,), {"UPDATE_SPECS": specs})
    )
    x = X.clone()
    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        y = function(x, values[0])
    assert [node.level for node in graph.levels()] == [level]
    for value in (*values, *values):
        graph.update({f"{name}.{slot}": value})
        for _ in range(2):
            x.mul_(-0.5)
            graph.replay()
            torch.testing.assert_close(y, function(x, value), rtol=0, atol=0, equal_nan=True)
    assert [node.level for node in graph.levels()] == [level]


@pytest.mark.usefixtures("handlers")
def test_tensors_of_updates_reach_what_was_prepared() -> None:
    class Add(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"add": [("arg", 1, "other")]}

    graphs.register_graph_handler("add")(Add)
    x, other = X.clone(), X.clone()
    graph, y = captured(lambda: x + other)
    for given in (X * 2, X * 3):
        graph.update({"add.other": given})
        graph.replay()
        assert torch.equal(y, x + given)
        assert [node.level for node in graph.levels()] == [1]


@pytest.mark.parametrize("level", [0, 1])
def test_a_list_with_a_lazy_negation_is_read_anew_by_every_replay(level: int) -> None:
    x, graph = X.clone(), graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        y = torch.cat([torch._neg_view(x), x * 2])
    for _ in range(3):
        x.add_(1)
        graph.replay()
        assert torch.equal(y, torch.cat([-x, x * 2]))
