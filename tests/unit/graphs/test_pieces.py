"""Captures that are split: what runs eagerly in every replay, between two pieces of one graph."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from torch import Tensor
from torch._inductor import config

from bringup import devices, graphs, ops
from bringup.compiler.captured_calls import ALIVE
from bringup.compiler.options import CompileOptions
from bringup.errors import BringupError, CaptureError, UpdateError

_calls: list[Any] = []
"""What eager calls saw, in order."""
_caches: dict[str, Tensor] = {}
"""What they find by a name, and write without saying so."""
_act: list[Callable[[Tensor], object]] = []
"""What `act` does."""


@torch.library.custom_op("pieces_test::attend", mutates_args=())
def attend(q: Tensor, cache: Tensor, lengths: Sequence[int], scale: float = 1.0) -> Tensor:
    """Row i of q and the mean of so many rows of its cache: Python that looks at numbers."""
    _calls.append(list(lengths))
    rows = [cache[i, : max(n, 1)].mean(0) for i, n in enumerate(lengths)]
    if q.sum().item() == 99:
        raise ValueError("99 is too far")
    return (q + torch.stack(rows)) * scale


@attend.register_fake
def _(q: Tensor, cache: Tensor, lengths: Sequence[int], scale: float = 1.0) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("pieces_test::write", mutates_args=("cache",))
def write(cache: Tensor, value: Tensor, at: int) -> None:
    cache[:, at] = value


@torch.library.custom_op("pieces_test::by_name", mutates_args=())
def by_name(value: Tensor, name: str) -> Tensor:
    """Appends to a cache that it finds by a name."""
    _caches[name].mul_(10).add_(value)
    return _caches[name] + 0


@torch.library.custom_op("pieces_test::act", mutates_args=())
def act(x: Tensor) -> Tensor:
    """What the test says, and x."""
    given = _act[0](x) if _act else None
    return given if isinstance(given, Tensor) else x.clone()


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    devices.load_driver("sim")
    return str(request.param)


@pytest.fixture(autouse=True)
def _act_on_nothing() -> Iterator[None]:
    yield
    _act.clear()
    _caches.clear()


def acting(function: Callable[[Tensor], object]) -> None:
    _act[:] = [function]


def split(
    run: Callable[[], Any], at: Any, level: int | None = None, **options: Any
) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph, split_at=at, **options):
        result = run()
    return graph, result


class Decoder(torch.nn.Module):
    """Layers with attention by `attend`, each with its cache."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.caches = [torch.randn(2, 5, 4).to(device) for _ in self.layers]
        self.to(device)

    def forward(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        for layer, cache in zip(self.layers, self.caches, strict=True):
            write(cache, x.relu() + 1, lengths[0])
            x = x + attend(layer(x).tanh() * 2, cache, lengths, 0.5).sigmoid()
        return x


@pytest.mark.parametrize("level", [0, 1, 2])
def test_replays_with_updates_are_eager(device: str, level: int) -> None:
    torch.manual_seed(0)
    model = Decoder(device)
    x = torch.randn(2, 4).to(device)
    names = [torch.ops.pieces_test.attend, "pieces_test::write"]
    before = [cache.clone() for cache in model.caches]
    graph, y = split(lambda: model(x, [1, 2]), names, level)
    assert all(map(torch.equal, model.caches, before)), "nothing has happened yet"
    assert [piece.then for piece in graph.pieces] == [
        *["pieces_test::write", "pieces_test::attend"] * 3,
        "",
    ]
    assert graph.wait_for_functions(120)
    for lengths in ([3, 1], [1, 1], [4, 5], [2, 0]):
        x.copy_(torch.randn(2, 4))
        kept = [cache.clone() for cache in model.caches]
        report = graph.update({"**.lengths": lengths, "**.at": lengths[0]})
        assert len(report.changed) + len(report.unchanged) == 6
        graph.replay()
        written = [cache.clone() for cache in model.caches]
        for cache, former in zip(model.caches, kept, strict=True):
            cache.copy_(former)
        assert torch.equal(y, model(x, lengths))
        assert all(map(torch.equal, model.caches, written))


def test_lists_take_any_length_and_shapes_stay() -> None:
    x, caches = torch.ones(2, 4), torch.randn(3, 5, 4)
    acting(lambda x: x[: int(x[0, 0])] + 0)
    graph, y = split(lambda: act(attend(x, caches, [1, 2]) * 0 + x) + 1, ["pieces_test::act"])
    graph.replay()
    assert torch.equal(y, x[:1] + 1)
    x.fill_(2)
    with pytest.raises(RuntimeError, match=r"pieces_test::act gives float32\[2, 4\] and, when it"):
        graph.replay()
    x.fill_(1)
    graph.replay()
    assert torch.equal(y, x[:1] + 1)
    graph, _ = split(lambda: attend(x, caches, [1, 2]), attend)
    graph.update({"attend.lengths": [1, 2, 3]})
    with pytest.raises(RuntimeError, match="size of tensor"):
        graph.replay()
    with pytest.raises(UpdateError, match="lengths"):
        graph.update({"attend.lengths": 3})


def test_what_an_eager_call_writes_unsaid_is_put_back(device: str) -> None:
    """As vLLM's attention finds its cache by a name; here the capture can reach it."""
    cache = _caches["kv"] = torch.zeros(2, dtype=torch.float64, device=device)
    x = torch.ones(2, dtype=torch.float64, device=device)
    graph, y = split(lambda: by_name(x * 2, "kv") + 1, [by_name])
    assert cache.tolist() == [0, 0]
    graph.replay()
    x.fill_(2)
    graph.replay()
    assert cache.tolist() == [24, 24]
    assert y.tolist() == [25, 25]


def unseen(tensor: Tensor) -> None:
    with torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C._parse_dispatch_key("DeferredInit"))
    ):
        tensor.fill_(3)


def test_code_that_no_replay_calls_is_found_beside_eager_calls(device: str) -> None:
    cache, x = torch.zeros(2, device=device), torch.ones(2, device=device)

    def run() -> Tensor:
        unseen(cache)
        return act(x * 2)

    with pytest.raises(CaptureError, match="a tensor that predates the capture"):
        split(run, [act])
    assert cache.tolist() == [0, 0]


def test_what_raises_is_named_and_the_graph_goes_on(device: str) -> None:
    x, cache = torch.ones(2, 4, device=device), torch.ones(2, 5, 4, device=device)
    graph, y = split(lambda: attend(x * 2, cache, [1, 1]) + 1, [attend])
    graph.replay()
    kept = y.cpu()
    x.zero_()[0, 0] = 49.5
    with pytest.raises(ValueError, match="99 is too far") as raised:
        graph.replay()
    (note,) = raised.value.__notes__
    assert note.startswith("raised by an eager call of a captured graph: pieces_test::attend, call")
    acting(lambda x: torch.ones(2) @ torch.ones(3))
    x.fill_(1)
    graph.replay()
    assert torch.equal(y.cpu(), kept)


def test_names_show_the_pieces(tmp_path: Any) -> None:
    x, cache = torch.ones(2, 4), torch.ones(2, 5, 4)

    def run() -> Tensor:
        with graphs.scope("first"):
            y = attend(x * 2, cache, [1, 2]) + 1
        return attend(y, cache, [3, 4]) * 2

    graph, _ = split(run, [attend])
    assert [(piece.nodes, piece.then) for piece in graph.pieces] == [
        (range(1), "pieces_test::attend"),
        (range(2, 3), "pieces_test::attend"),
        (range(4, 5), ""),
    ]
    assert [(node.kind, node.piece) for node in graph.nodes] == [
        ("operator", 0),
        ("eager", 0),
        ("operator", 1),
        ("eager", 1),
        ("operator", 2),
    ]
    assert {name: slot.piece for name, slot in graph.slots.items()} == {
        "first.attend.0.cache": 0,
        "first.attend.0.lengths": 0,
        "first.attend.0.scale": 0,
        "attend.0.cache": 1,
        "attend.0.lengths": 1,
        "attend.0.scale": 1,
    }
    eager = [row for row in graph.levels() if row.reason == "split_at: it runs eagerly"]
    assert [(row.node, row.level, row.piece) for row in eager] == [(1, 0, 0), (3, 0, 1)]
    dot = graph.to_dot()
    assert [line for line in dot.splitlines() if "cluster" in line] == [
        f'  subgraph cluster_piece_{i} {{ label="piece {i}";' for i in range(3)
    ]
    assert repr(graph).startswith("CapturedGraph(5 nodes in 3 pieces, ")
    graph.trace(tmp_path / "trace.json")
    assert '"piece": 2' in (tmp_path / "trace.json").read_text()
    other, _ = split(run, None)
    assert "eager by copy" in str(other.diff(graph))


def test_predicates_are_asked_of_what_computes() -> None:
    x = torch.arange(6.0).view(2, 3)
    asked: list[str] = []

    def is_matmul(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        asked.append(str(op))
        return op is torch.ops.aten.mm.default and args[0].shape == (2, 3) and not kwargs

    graph, y = split(lambda: (x.t().relu() @ (x @ x.t() + 1)).add(x.t(), alpha=3), is_matmul)
    assert [(node.op, node.kind) for node in graph.nodes] == [
        ("aten::relu", "operator"),
        ("aten::mm", "eager"),
        ("aten::add.Tensor", "operator"),
        ("aten::mm", "operator"),
        ("aten::add.Tensor", "operator"),
    ]
    assert "aten.t.default" not in asked
    x.mul_(3)
    graph.replay()
    assert torch.equal(y, (x.t().relu() @ (x @ x.t() + 1)).add(x.t(), alpha=3))
    with pytest.raises(CaptureError, match="answers True or False, got 1"):
        split(lambda: x + 1, lambda op, args, kwargs: 1)
    with pytest.raises(ZeroDivisionError):
        split(lambda: x + 1, [lambda op, args, kwargs: 1 / 0])
    split(lambda: x + 1, [lambda op, args, kwargs: False])


@pytest.mark.parametrize(
    ("at", "error", "words"),
    [
        (["pieces_test::atend"], ValueError, "no operator 'pieces_test::atend'; did you mean 'pie"),
        ("attend", ValueError, "there is no operator 'attend'; did you mean 'pieces_test::attend'"),
        (["aten::add.Nope"], ValueError, "there is no operator 'aten::add.Nope'"),
        (["aten::view"], ValueError, "a replay does not call aten::view, which gives views"),
        ([torch.ops.aten.empty.memory_format], ValueError, "aten::empty.memory_format"),
        ([3], TypeError, "split_at takes operators, their names and functions .* got int"),
    ],
)
def test_wrong_points_are_refused(at: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        graphs.capture(graphs.CapturedGraph(), split_at=at)


def test_an_operator_that_never_comes_is_warned_of() -> None:
    x = torch.ones(2)
    with pytest.warns(UserWarning, match="split_at: no call came of aten::mm, aten::add.out"):
        split(lambda: x.add(1), ["aten::mm", torch.ops.aten.add.out, torch.ops.aten.add])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split(lambda: x.add(1), [torch.ops.aten.add.Tensor])


def test_every_kind_of_operator_can_be_named(device: str) -> None:
    library = ops.Library("pieces_more", "DEF")
    library.define("twice(Tensor x) -> (Tensor, Tensor?)")
    library.impl("twice", lambda x: (x * 2, None), "CompositeExplicitAutograd")

    @ops.custom_op("pieces_more::thrice", mutates_args=())
    def thrice(x: Tensor) -> Tensor:
        return x * 3

    x, w = torch.randn(3, 3).to(device), torch.randn(3, 3).to(device)
    names = [thrice, "pieces_more::twice", "aten::linear", torch.ops.aten.add_, "aten::nonzero"]

    def run() -> Any:
        y, _ = torch.ops.pieces_more.twice(thrice(x))
        z = torch.nn.functional.linear(y, w).t()
        return z.add_(1).cos(), (x > 0).nonzero(), torch.stack((x, x)).expand(2, 3, 3)

    graph, results = split(run, names)
    kinds = [node.op for node in graph.nodes if node.kind == "eager"]
    assert kinds == [
        "pieces_more::thrice",
        "pieces_more::twice",
        "aten::linear",
        "aten::add_.Tensor",
        "aten::nonzero",
    ]
    x.mul_(2)
    graph.replay()
    assert all(map(torch.equal, results, run()))
    x.neg_()[0, 0] = 0
    if len((x > 0).nonzero()) != len(results[1]):
        with pytest.raises(RuntimeError, match="aten::nonzero gives"):
            graph.replay()


def test_host_values_gradients_and_foreign_memory_are_refused() -> None:
    x = torch.ones(2)
    library = ops.Library("pieces_host", "DEF")
    library.define("size(Tensor x) -> (Tensor, int)")
    library.impl("size", lambda x: (x * 2, 3), "CompositeExplicitAutograd")
    with pytest.raises(CaptureError, match=r"pieces_host::size gives a value of the host \(Int\)"):
        split(lambda: torch.ops.pieces_host.size(x), ["pieces_host::size"])
    with pytest.raises(CaptureError, match=r"`x\[0\].item\(\)` reads the value"):
        split(lambda: x[0].item(), ["aten::_local_scalar_dense"])
    weight = torch.ones(2, requires_grad=True)
    with torch.enable_grad(), pytest.raises(CaptureError, match="a gradient for its result"):
        split(lambda: torch.mul(weight, x), ["aten::mul"])
    acting(lambda x: x.to_sparse())
    with pytest.raises(CaptureError, match="pieces_test::act gives a tensor of layout"):
        split(lambda: act(x), [act])


def test_what_an_eager_call_keeps_outlives_the_graph(device: str) -> None:
    kept: list[Tensor] = []
    acting(lambda x: kept.append(x))
    x = torch.full((5000,), 2.0, device=device)
    graph, y = split(lambda: act(x * 3) + 1, [act])
    x.fill_(5)
    graph.replay()
    graph.reset()
    del graph, y
    gc.collect()
    others = [torch.zeros(5000, device=device) for _ in range(20)]
    assert kept[-1].cpu().eq(15).all()
    assert not any(other.any() for other in others)


def test_results_that_share_memory_are_refused() -> None:
    library = ops.Library("pieces_aliases", "DEF")
    library.define("parts(Tensor x) -> (Tensor, Tensor)")
    library.impl("parts", lambda x: (x * 2).unbind(0), "CompositeExplicitAutograd")
    with pytest.raises(CaptureError, match=r"pieces_aliases::parts, .* gives results that share"):
        split(lambda: torch.ops.pieces_aliases.parts(torch.ones(2)), ["pieces_aliases::parts"])


def test_an_eager_call_draws_where_eager_does(device: str) -> None:
    acting(lambda x: torch.rand_like(x) + torch.randn(int(x[0].item()) + 1).sum().to(device))
    x = torch.ones(4, device=device)
    mine = [torch.Generator(device)]

    def run() -> Tensor:
        y = torch.rand_like(x)
        y = y + act(x) + torch.empty_like(x).normal_()
        return y + torch.empty_like(x).uniform_(0, 1, generator=mine[0]) + torch.rand_like(x)

    def draws(call: Callable[[], Any], seed: int) -> Any:
        torch.manual_seed(seed)
        mine[0].manual_seed(seed + 1)
        return [call() for _ in range(3)]

    graph, y = split(run, [act, "aten::uniform_"])

    def replayed() -> Tensor:
        graph.replay()
        return y.clone()

    for seed in range(3):
        x.fill_(seed)  # how many numbers it draws
        assert all(map(torch.equal, draws(replayed, seed), draws(run, seed)))
    mine.clear()
    with pytest.raises((CaptureError, RuntimeError), match="freed"):
        graph.replay()


def test_autocast_is_that_of_the_capture() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    acting(lambda x: (x @ w).float())
    with torch.autocast("cpu", torch.bfloat16):
        graph, y = split(lambda: act(x) * 2, [act])
        x.mul_(3)
        w.mul_(2)
        expected = act(x) * 2
    graph.replay()
    assert torch.equal(y, expected)
    assert not torch.equal(expected, act(x) * 2)


def test_branches_and_loops_have_eager_calls(device: str) -> None:
    cond, while_loop = torch.ops.higher_order.cond, torch.ops.higher_order.while_loop
    x, cache = torch.ones(2, 4, device=device), torch.randn(2, 5, 4).to(device)

    def run() -> Tensor:
        (y,) = cond(
            x.sum() > 0,
            lambda x: (attend(x * 2, cache, [1, 2]) + 1,),
            lambda x: (attend(x - 1, cache, [3, 3]) * 2,),
            (x,),
        )
        _, y = while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, attend(y, cache, [2, 2]) * 0.5),
            (torch.zeros((), device=device), y),
            (),
        )
        return y

    graph, y = split(run, [attend])
    for sign in (1, -1, 1):
        x.copy_(torch.full((2, 4), float(sign)))
        graph.replay()
        assert torch.equal(y, run())
    graph.update({"while_loop.body.attend.lengths": [1, 1]})
    graph.replay()


def test_modules_and_numbers_inside_are_the_operators_own() -> None:
    inner = torch.nn.Dropout()
    acting(lambda x: inner(x) + 0 if x.sum().item() > 0 and x.tolist() else x.numpy())
    x, outer = torch.ones(2), torch.nn.ReLU()
    inner.eval()
    graph, y = split(lambda: outer(act(x * 2)), [act])
    inner.train()
    torch.manual_seed(1)
    graph.replay()
    kept = y.clone()
    torch.manual_seed(1)
    assert torch.equal(kept, act(x * 2))
    outer.train(False)
    with pytest.raises(CaptureError, match="ReLU"):
        graph.replay()


def test_run_and_threads(device: str) -> None:
    x, cache = torch.ones(2, 4, device=device), torch.randn(2, 5, 4).to(device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, split_at=[attend], inputs=x):
        graph.outputs = attend(x * 2, cache, [1, 2]) + 1
    given = [torch.full((2, 4), float(i), device=device) for i in range(4)]
    lengths = [[1, 2], [3, 4], [5, 5], [2, 2]]
    expected = [attend(g * 2, cache, n) + 1 for g, n in zip(given, lengths, strict=True)]
    wrong: list[int] = []

    def serve(i: int) -> None:
        for _ in range(10):
            got = graph.run(given[i], slots={"attend.lengths": lengths[i]})
            if not torch.equal(got, expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_eager_call_cannot_replay_its_own_graph() -> None:
    x = torch.ones(2)
    graph, y = split(lambda: act(x) + 1, [act])
    acting(lambda _: graph.replay())
    with pytest.raises(CaptureError):
        graph.replay()
    acting(lambda x: x * 3)
    graph.replay()
    assert y.tolist() == [4, 4]


def test_handlers_and_split_points_go_together(handlers: None) -> None:
    @graphs.register_graph_handler("pieces_test::attend")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS = {"pieces_test::attend": [("arg", 2, "actual")]}  # noqa: RUF012

    x, cache = torch.ones(2, 4), torch.randn(2, 5, 4)
    graph, y = split(lambda: attend(x, cache, [1, 2]), [attend])
    graph.update(cpu_update_input=[{"actual": [4, 4]}])
    graph.update({"attend.scale": 2.0})
    graph.replay()
    assert torch.equal(y, attend(x, cache, [4, 4], 2.0))


def test_compiled_functions_are_split(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """One capture serves all lengths; results are eager's."""
    torch.compiler.reset()
    model = Decoder(device)

    def step(x: Tensor, lengths: list[int]) -> Tensor:
        return torch.relu(attend(model.layers[0](x), model.caches[0], lengths) * 2) + 1

    options = {"mode": "serve", "split_at": [attend, "aten::linear"]}  # which is addmm by then
    compiled = torch.compile(step, backend="bringup", options=options, dynamic=True)
    before = {id(one) for one in ALIVE.values()}
    for lengths in ([1, 2], [3, 1], [5, 5], [2, 4]):
        x = torch.randn(2, 4).to(device)
        torch.testing.assert_close(compiled(x, lengths), step(x, lengths))
    (calls,) = (one for one in ALIVE.values() if id(one) not in before)
    report = calls.report()
    assert (report.captures, report.uncaptured, report.pieces) == (1, 0, 2)
    assert report.plan is not None
    told = [one.getMessage() for one in caplog.records if "no call came" in one.getMessage()]
    assert [one.partition(":")[2] for one in told] == [
        " option split_at: no call came of aten::linear"
    ]
    for wrong, words in (
        (
            {"split_at": ["pieces_test::atend"], "mode": "serve"},
            "split_at': .*did you mean",
        ),
        ({"split_at": [attend]}, "option 'split_at' needs captures"),
        ({"split_at": 3, "mode": "max"}, "option 'split_at': split_at takes operators"),
    ):
        with pytest.raises(BringupError, match=words):
            CompileOptions.parse(wrong)


COLLECTIVES = """
import torch, torch.distributed as dist
from bringup import devices, graphs
devices.load_driver("sim")
functional = torch.ops._c10d_functional
backend = "cpu:gloo,npu:bringup"
dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
for device in ("cpu", "npu"):
    x = torch.ones(4, device=device)
    def run():
        y = x * 2
        dist.all_reduce(y)
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        reduced = functional.all_reduce(y + 1, "sum", dist.group.WORLD.group_name)
        y = functional.wait_tensor(reduced) * 3
        parts = [torch.empty_like(y)]
        dist.all_gather(parts, y)
        return parts[0] - 1
    graph = graphs.CapturedGraph()
    at = lambda op, args, kwargs: op.namespace in ("c10d", "_c10d_functional")
    with torch.no_grad(), graphs.capture(graph, split_at=at):
        y = run()
    eager = [node.op for node in graph.nodes if node.kind == "eager"]
    print(device, eager)
    assert sum("all_reduce" in op or "allreduce" in op for op in eager) == 3, eager
    for value in (5.0, -1.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, run()), (y, run())
dist.destroy_process_group()
print("done")
"""


def test_collectives_run_between_pieces() -> None:
    assert "done" in output_of(COLLECTIVES)


def test_reduce_overhead_splits_where_inductor_partitions() -> None:
    devices.load_driver("sim")
    torch.compiler.reset()
    x, cache = torch.randn(2, 4).to("npu"), torch.randn(2, 5, 4).to("npu")

    def step(x: Tensor) -> Tensor:
        return attend(x * 2 + 1, cache, [1, 2]).relu() * 3

    before = {id(one) for one in ALIVE.values()}
    with config.patch(custom_should_partition_ops=["pieces_test::attend"]):
        compiled = torch.compile(step, mode="reduce-overhead")
        for _ in range(3):
            x.copy_(torch.randn(2, 4))
            torch.testing.assert_close(compiled(x), step(x))
    (calls,) = (one for one in ALIVE.values() if id(one) not in before)
    assert calls.report().pieces == 2
