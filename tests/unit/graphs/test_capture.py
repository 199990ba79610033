"""Capturing and replaying: the replay computes what the run computed, for new inputs too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.graphs.support import ReferenceRecorder, captured
from torch import Tensor, nn

from bringup import graphs

Function = Callable[..., Tensor]


def amp(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.relu(x @ torch.ones(8, 8)).float()


def written_in_place(x: Tensor) -> Tensor:
    buffer = torch.zeros(4, 8)
    buffer[1:3] = x[1:3]
    buffer.add_(1)
    buffer[:, 0] = 0
    return buffer


def many_views(x: Tensor) -> Tensor:
    tall = x.t()[1:].reshape(-1).view(2, -1).unsqueeze(0).expand(3, -1, -1)
    return (tall + x.select(0, 1).sum()).chunk(3)[1].contiguous()


DECODER = nn.TransformerDecoderLayer(8, 2, 16).eval()
CONVOLUTION = nn.Conv1d(4, 3, 3)
LSTM = nn.LSTM(8, 4)

FUNCTIONS: dict[str, Function] = {
    "mlp": nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)),
    "encoder": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
    "decoder": lambda x: DECODER(x, x),
    "convolution": lambda x: torch.relu(CONVOLUTION(x)),
    "lstm": lambda x: LSTM(x)[0],
    "autocast": amp,
    "in place": written_in_place,
    "views": many_views,
    "scalars": lambda x: 2 - x * 0.5 + (x > 0) * 3,
    "literals": lambda x: x[[0, 2]] + torch.tensor([1.0] * 8) * torch.arange(8),
    "masks": lambda x: torch.where(x > 0, x, -1.0).masked_fill(x < 0.5, 7.0).softmax(-1),
    "bool mask write": lambda x: x.clone().index_put_((x > 0,), torch.tensor(2.0)),
    "empty part": lambda x: torch.cat([torch.empty(0), x.flatten()]),
    "lists": lambda x: torch.stack(torch._foreach_add([x, x * 2], 1.0)),
    "several results": lambda x: torch.topk(x, 2, dim=1)[0] + x.max(dim=1, keepdim=True).values,
    "complex": lambda x: (torch.fft.fft(x).conj() * 2).real,
    "max pool": lambda x: nn.functional.max_pool1d(x[None], 2).relu(),
    "beta 0": lambda x: torch.addmm(torch.empty(4, 4), x, x.t(), beta=0),
    "out argument": lambda x: torch.add(x, 1, out=torch.empty(0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_replay_equals_eager_for_new_inputs(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(4, 8)
    expected = function(x)
    graph, output = captured(function, x)
    assert torch.equal(output, expected)
    for _ in range(2):
        x.copy_(torch.randn(4, 8))
        graph.replay()
        assert torch.equal(output, function(x))


@pytest.mark.parametrize("name", ["mlp", "in place", "views", "several results"])
def test_replay_equals_the_replay_in_plain_python(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(4, 8)
    with ReferenceRecorder() as reference:
        expected = function(x)
    graph, output = captured(function, x)
    x.copy_(torch.randn(4, 8))
    reference.replay()
    graph.replay()
    assert torch.equal(output, expected)


def test_replay_runs_under_any_mode_of_the_caller() -> None:
    x = torch.randn(4, 4)
    graph, output = captured(lambda: torch.relu(x @ x))
    x.copy_(torch.randn(4, 4))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.enable_grad(),
        ReferenceRecorder() as mode,
    ):
        graph.replay()
    assert mode.calls == []
    assert output.dtype == torch.float32
    assert torch.equal(output, torch.relu(x @ x))


def test_dispatch_modes_do_not_hide_operators_from_the_capture() -> None:
    x = torch.randn(4, 4)

    def profiled() -> Tensor:
        with ReferenceRecorder():
            return torch.relu(x @ x)

    graph, output = captured(profiled)
    assert [node.op for node in graph.nodes] == ["aten::mm", "aten::relu"]
    x.copy_(torch.randn(4, 4))
    graph.replay()
    assert torch.equal(output, torch.relu(x @ x))


def test_dispatch_modes_do_not_hide_what_operators_are_made_of_in_inference_mode() -> None:
    linear, state = torch.nn.Linear(4, 4), torch.full((4, 4), 7.0)

    def profiled() -> Tensor:
        with ReferenceRecorder():
            return linear(torch.nn.functional.relu6(state, inplace=True))

    with torch.inference_mode():
        graph, output = captured(profiled)
        assert [node.op for node in graph.nodes] == ["aten::hardtanh_", "aten::addmm"]
        assert torch.equal(state, torch.full((4, 4), 7.0))
        graph.replay()
        assert torch.equal(output, linear(torch.full((4, 4), 6.0)))
    assert torch.equal(state, torch.full((4, 4), 6.0))


def test_a_view_that_the_schema_does_not_name_is_no_node() -> None:
    x, weight = torch.ones(1, 2, 4), torch.eye(4)
    graph, output = captured(lambda: torch.relu(torch.matmul(x, weight)))
    # matmul of three dimensions ends in aten::_unsafe_view
    assert [node.op for node in graph.nodes] == ["aten::mm", "aten::relu"]
    x.fill_(3)
    graph.replay()
    torch.testing.assert_close(output, torch.full((1, 2, 4), 3.0))


def test_custom_operator_in_python_is_replayed() -> None:
    @torch.library.custom_op("graphs_test::twice_plus", mutates_args=())
    def twice_plus(x: Tensor, n: int) -> Tensor:
        return x * 2 + torch.full_like(x, n)

    x = torch.randn(3)
    graph, output = captured(lambda: twice_plus(x, 3) - 1)
    x.copy_(torch.randn(3))
    graph.replay()
    assert torch.equal(output, x * 2 + 3 - 1)


def test_vmap_inside_a_capture_is_replayed() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    graph, output = captured(lambda: torch.vmap(torch.dot)(x, y))
    x.copy_(torch.randn(3, 4))
    graph.replay()
    assert torch.allclose(output, (x * y).sum(1))


@pytest.mark.parametrize("make", [lambda: torch.randn(0, 4), lambda: torch.randn(2, 3)[:, 1:]])
def test_empty_and_strided_inputs(make: Callable[[], Tensor]) -> None:
    x = make()
    graph, output = captured(lambda: torch.relu(x) + x.sum())
    x.copy_(torch.randn(x.shape))
    graph.replay()
    assert torch.equal(output, torch.relu(x) + x.sum())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_is_captured_as_compiled_and_stays_compiled(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: torch.relu(x @ y) + torch.sin(x) * 2, backend=backend)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    compiled(x, y)
    before = _compiles()
    graph, output = captured(compiled, x, y)
    recompiles = _compiles() - before
    assert recompiles <= 1
    x.copy_(torch.randn(4, 4))
    graph.replay()
    assert torch.equal(output, compiled(x, y))
    graph, output = captured(compiled, x, y)
    assert _compiles() - before == recompiles
    assert [node.op for node in graph.nodes] == [
        "aten::mm",
        "aten::relu",
        "aten::sin",
        "aten::mul.Tensor",
        "aten::add.Tensor",
    ]


def _compiles() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_resized_blank_memory_is_filled_by_the_graph() -> None:
    x = torch.ones(4)
    graph, (filled, shrunk) = captured(
        lambda: (torch.empty(0).resize_as_(x).copy_(x), (x * 2).resize_(2))
    )
    x.fill_(3)
    graph.replay()
    assert (filled.tolist(), shrunk.tolist()) == ([3, 3, 3, 3], [6, 6])


def reduced_losses(x: Tensor) -> tuple[Tensor, ...]:
    """Losses whose kernels leave undefined bytes behind their result, or resize it on the way."""
    target = torch.arange(x.shape[0]) % x.shape[1]
    inside = torch.sigmoid(x)
    return (
        nn.functional.cross_entropy(x, target),
        nn.functional.mse_loss(x, x * 2),
        nn.functional.binary_cross_entropy(inside, inside.flip(0)),
        nn.functional.huber_loss(x, inside),
        nn.functional.smooth_l1_loss(x, inside),
    )


@pytest.mark.parametrize("repeats", [1, 3])
def test_losses_are_compared_in_the_bytes_that_they_write_and_keep_their_memory(
    repeats: int,
) -> None:
    x = torch.randn(8, 5)
    graph, outputs = captured(lambda: [reduced_losses(x) for _ in range(repeats)][-1])
    for _ in range(3):
        x.copy_(torch.randn(8, 5))
        graph.replay()
        for output, expected in zip(outputs, reduced_losses(x), strict=True):
            assert torch.equal(output, expected)


def test_partly_filled_memory_is_compared_where_it_was_filled() -> None:
    x = torch.randn(4, 8)

    def partly() -> Tensor:
        for n in range(5):
            (x * n).sum()  # leaves content in memory that is used again
            buffer = torch.empty(4, 8)
            buffer[1:3] = x[1:3]
            buffer[:, ::3] = 7
        return buffer

    graph, output = captured(partly)
    x.copy_(torch.randn(4, 8))
    graph.replay()
    expected = partly()
    assert torch.equal(output[1:3], expected[1:3])
    assert torch.equal(output[:, ::3], expected[:, ::3])


@pytest.mark.parametrize("operator", ["mm", "relu"])
def test_a_kernel_in_the_place_of_torchs_is_what_replays(operator: str) -> None:
    script = f"""
import torch
from bringup import graphs
calls = []
def mine(x, *others):
    calls.append(operator)
    return (x * 0 if x.max() < 5 else x * 0 + 7).clone()
operator = {operator!r}
library = torch.library.Library("aten", "IMPL")
library.impl(operator, mine, "CPU")
x = torch.eye(3)
graph = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(graph):
    y = getattr(torch, operator)(x, *([x] if operator == "mm" else []))
x.fill_(9)
calls.clear()
graph.replay()
assert calls == [operator], calls
assert y.tolist() == [[7.0] * 3] * 3, y
"""
    output_of(script)


def test_outputs_without_a_form_of_their_own_are_exact() -> None:
    """relu is replayed as clamp_min; what it gives is relu's, to the bit."""
    x = torch.tensor([-1.0, -0.0, 0.0, 3.0, float("nan"), float("inf"), -float("inf")])
    graph, y = captured(torch.relu, x)
    assert [node.method for node in graph.nodes] == ["out"]
    for fresh in (x.clone(), torch.randn(7), torch.full((7,), -0.0)):
        x.copy_(fresh)
        graph.replay()
        expected = torch.relu(fresh)
        assert torch.equal(y.view(torch.int32), expected.view(torch.int32))


OUT_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "T": torch.tanh,
    "TT": lambda x: torch.maximum(x, x.t()),
    "TTS": lambda x: torch.add(x, x.t(), alpha=2),
    "TS": lambda x: torch.pow(x, 2.0),
    "TSS": lambda x: torch.clamp(x, -0.5, 0.5),
    "TTT": lambda x: torch.where(x > 0, x, x.t()),
    "TTTS": lambda x: torch.addcmul(x, x, x, value=0.5),
    "TTTSS": lambda x: torch.addmm(x, x, x, beta=0.5, alpha=2),
    "str": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "int, bool": lambda x: torch.softmax(x, 1),
    "dims": lambda x: torch.amax(x, 0) + x.mean((0, 1), dtype=torch.float64),
    "no dims": lambda x: torch.mean(x, dim=None, keepdim=True, dtype=None),
    "comparison": lambda x: (x > x.t()) & (x < 1.0),
    "several results": lambda x: torch.cat(torch.max(x, 1)),
}


@pytest.mark.parametrize("name", OUT_FORMS)
def test_every_form_of_a_call_gives_what_eager_gives(name: str) -> None:
    x = torch.randn(5, 5)
    graph, y = captured(OUT_FORMS[name], x)
    for _ in range(2):
        x.normal_()
        graph.replay()
        expected = OUT_FORMS[name](x)
        assert y.dtype == expected.dtype
        assert torch.equal(y, expected)


@pytest.mark.parametrize("level", [0, 1])
def test_a_list_that_a_kernel_overwrites_is_read_anew(level: int) -> None:
    """torch's kernel puts clamped indices into the list of indices that it is given."""
    x, mask = torch.randn(5, 5), torch.ones(4, 3, dtype=torch.bool)
    rows, columns = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64)

    def run() -> Tensor:
        return torch.ops.aten._unsafe_masked_index(x, mask, [rows, columns], 0.5)

    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        y = run()
    for row in range(4):
        rows.fill_(row)
        columns.copy_(torch.tensor([row, 0, 4]))
        graph.replay()
        assert torch.equal(y, run())
