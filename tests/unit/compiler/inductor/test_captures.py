"""Captures of compiled functions: generated kernels are nodes, and replays give what calls give."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bringup import compiler, graphs
from bringup.errors import CaptureError, KernelError, UpdateError
from bringup.graphs._compiled_code import is_recorded

_NUMBER = torch.tensor(2.0)


def _captured(
    function: Callable[..., Any], *inputs: Any, **options: Any
) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, **options):
        outputs = function(*inputs)
    return graph, outputs


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("npu")


def test_replays_of_a_compiled_model_give_what_its_calls_give() -> None:
    model, x, other = _model(), *torch.randn(2, 3, 8, device="npu")
    compiled = torch.compile(model)
    with torch.no_grad():
        graph, _ = _captured(compiled, x)  # compiled within the capture
        expected = compiled(other)
    (node,) = [node for node in graph.nodes if node.method == "generated"]
    assert node.kind == "kernel"
    assert node.op == "npu_fused_gelu_native_layer_norm_0"
    assert __file__ in node.line
    assert torch.equal(graph.run(other), expected)
    with pytest.raises(UpdateError, match="x"):
        graph.update({"x": other})
    model[0].weight.data = model[0].weight.data.clone()
    with pytest.raises(CaptureError, match=r"weight.*memory"):
        graph.replay()


def test_what_a_compiled_function_writes_is_written_by_replays_alone() -> None:
    def write(cache: torch.Tensor, place: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[place] = x.sin()
        cache.mul_(2)
        return cache.sum(0)

    cache, x = torch.ones(5, 4, device="npu"), torch.randn(2, 4, device="npu")
    place = torch.tensor([1, 3], device="npu")
    compiled = torch.compile(write)
    compiled(cache.clone(), place, x)
    graph, result = _captured(compiled, cache, place, x)
    assert torch.equal(cache, torch.ones_like(cache))
    expected, version = cache.clone(), cache._version
    for moved in ([1, 3], [0, 4], [2, 2]):
        place.copy_(torch.tensor(moved))
        graph.replay()
        assert torch.equal(result, compiled(expected, place, x))
        assert torch.equal(cache, expected)
    assert cache._version > version


def test_a_wrong_index_in_a_replay_is_a_kernel_error_with_operator_and_index() -> None:
    pick = torch.compile(lambda w, i: nn.functional.embedding(i, w) * 2)
    weight, index = torch.randn(5, 3, device="npu"), torch.tensor([1, 4], device="npu")
    graph, picked = _captured(pick, weight, index)
    index.copy_(torch.tensor([1, 77]))
    graph.replay()
    with pytest.raises(KernelError, match=r"embedding.*index 77 is out of bounds.*size 5"):
        torch.npu.synchronize()
    index.copy_(torch.tensor([2, 0]))
    graph.replay()
    assert torch.equal(picked, weight[[2, 0]] * 2)


def test_a_compiled_step_of_training_is_one_replay() -> None:
    x, target = torch.randn(3, 8, device="npu"), torch.randn(3, 4, device="npu")

    def stepper(model: nn.Module) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
        run, update = torch.compile(model), torch.compile(optimizer.step)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(run(x), target)
            loss.backward()
            update()
            return loss.detach()

        step()
        return step

    model = _model()
    other = copy.deepcopy(model)
    step, (graph, loss) = stepper(other), _captured(stepper(model))
    for _ in range(3):
        x.copy_(torch.randn(3, 8))
        graph.replay()
        assert torch.equal(loss, step())
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, its)
            assert torch.equal(mine.grad, its.grad)


def test_random_numbers_of_replays_are_those_of_calls() -> None:
    drop, x = torch.compile(lambda x: nn.functional.dropout(x, 0.5)), torch.ones(99, device="npu")
    drop(x)
    graph, dropped = _captured(drop, x)
    torch.manual_seed(5)
    expected = [drop(x) for _ in range(3)]
    torch.manual_seed(5)
    for drawn in expected:
        graph.replay()
        assert torch.equal(dropped, drawn)
    assert not torch.equal(expected[0], expected[1])


@pytest.mark.parametrize(
    ("devices", "text", "recorded"),
    [
        ({"npu"}, "buf0 = empty_strided((3, ), (1, ))\nasync_compile.wait(globals())", True),
        ({"npu", "cpu"}, "cpp_fused_sin_0 = async_compile.cpp_pybinding(['float*'], '')", False),
        ({"npu", "cpu"}, "buf1 = empty_strided_cpu((), (), torch.float32)", False),
        ({"cpu"}, "buf0 = empty_strided((3, ), (1, ))", False),
    ],
)
def test_graphs_with_kernels_or_memory_of_the_cpu_are_not_entered(
    devices: set[str], text: str, recorded: bool
) -> None:
    # A real one, which takes ten seconds: tests/sweeps/test_captured_compiled.py.
    assert is_recorded(SimpleNamespace(device_types=devices, source_code=text)) is recorded
    assert not is_recorded(SimpleNamespace(device_types=devices))


def test_a_number_that_comes_by_value_is_refused() -> None:
    x, number = torch.ones(3, device="npu"), torch.tensor(2.0)
    compiled = torch.compile(lambda x, n: x * n)
    compiled(x, number)
    with pytest.raises(CaptureError, match=r"reads the value of a tensor float32\[\]"):
        _captured(compiled, x, number)


def test_passes_run_before_inductor_and_what_they_leave_is_captured(
    empty_registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRINGUP_PASS_LIBRARY")
    model, x = _model(), torch.randn(3, 8, device="npu")
    wrapped = nn.Sequential(model[0], _Residual(16), model[3]).to("npu")
    compiled = torch.compile(wrapped, backend="bringup", options={"inner": "inductor"})
    with torch.no_grad():
        expected = compiled(x)
        graph, result = _captured(compiled, x)
        torch.testing.assert_close(expected, wrapped(x))
    names = [node.op for node in graph.nodes]
    assert "bringup::add_layer_norm" in names
    assert any(name.startswith("npu_fused") for name in names)
    graph.replay()
    assert torch.equal(result, expected)


def test_passes_then_inductor_then_a_capture_are_one_replay_for_each_kind_of_call(
    captures: Callable[[], list[int]],
) -> None:
    model, x = _model(), torch.randn(3, 8, device="npu")
    options = {"inner": "inductor", "capture": True}
    compiled = torch.compile(model, backend="bringup", options=options)
    with torch.no_grad():
        first = compiled(x)
        for scale in (2, 3):
            torch.testing.assert_close(compiled(x * scale), model(x * scale))
        torch.testing.assert_close(first, model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        assert captures() == [1]
        with pytest.raises(CaptureError, match=r"code that Inductor generated.*for the cpu"):
            torch.compile(torch.sin, backend="bringup", options=options)(torch.ones(3))


class _Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(nn.functional.gelu(x) + x)


@pytest.fixture
def captures() -> Callable[[], list[int]]:
    """How often each function that is compiled from now on was captured."""
    gc.collect()
    others = len(compiler.captures())
    return lambda: [report.captures for report in compiler.captures()[others:]]


def test_reduced_overhead_captures_each_shape_and_gives_results_away(
    captures: Callable[[], list[int]],
) -> None:
    model = _model()
    plain, fast = torch.compile(model), torch.compile(model, mode="reduce-overhead", dynamic=True)
    with torch.no_grad():
        first = fast(x := torch.randn(3, 8, device="npu"))
        kept = first.clone()
        for rows in (3, 5, 5, 3):
            y = torch.randn(rows, 8, device="npu")
            assert torch.equal(fast(y), plain(y))
        assert torch.equal(first, kept)
        assert captures() == [2]
        model[0].weight.mul_(2)
        assert torch.equal(fast(x), plain(x))
        model[0].weight.data = model[0].weight.data * 2
        assert torch.equal(fast(x), plain(x))
        graph, result = _captured(fast, x)  # around it: its kernels are recorded
        graph.replay()
        assert torch.equal(result, plain(x))


def test_reduced_overhead_writes_what_stays_where_it_is(
    captures: Callable[[], list[int]],
) -> None:
    def step(mode: str) -> tuple[torch.Tensor, ...]:
        parameter = nn.Parameter(torch.ones(5, device="npu"))
        optimizer = torch.optim.AdamW([parameter], lr=0.1, capturable=True)
        update = torch.compile(optimizer.step, mode=mode)
        for count in range(3):
            parameter.grad = torch.full((5,), count - 0.5, device="npu")
            update()
        assert captures() == ([1] if mode == "reduce-overhead" else [])
        return parameter.detach(), *optimizer.state[parameter].values()

    for plain, fast in zip(step("default"), step("reduce-overhead"), strict=True):
        assert torch.equal(fast, plain)


def test_reduced_overhead_trains_by_a_capture_of_each_shape_forward_and_backward(
    captures: Callable[[], list[int]],
) -> None:
    def trained(mode: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        torch.npu.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.BatchNorm1d(8))
        model = model.append(nn.Linear(8, 2)).to("npu")
        compiled = torch.compile(model, mode=mode, dynamic=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        kept = []
        for count, rows in enumerate((3, 5, 3, 5, 3, 5)):
            x = torch.randn(rows, 4).to("npu").requires_grad_()
            loss = compiled(x).square().sum()
            loss.backward()
            kept += [loss.detach(), x.grad]
            if count % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=count == 3)
        assert captures() == ([2, 2] if mode == "reduce-overhead" else [])
        return [*kept, *model.state_dict().values(), torch.npu.get_rng_state()]

    for plain, fast in zip(trained("default"), trained("reduce-overhead"), strict=True):
        assert torch.equal(fast, plain)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.add_(1), "writes its inputs [0]"),
        (lambda x: x * _NUMBER, "reads the value of a tensor float32[]"),
    ],
)
def test_what_reduced_overhead_cannot_capture_runs_as_it_is_and_the_log_says_why(
    function: Any,
    words: str,
    caplog: pytest.LogCaptureFixture,
    captures: Callable[[], list[int]],
) -> None:
    compiled = torch.compile(function, mode="reduce-overhead")
    given, other = (torch.ones(3, device="npu") for _ in range(2))
    for _ in range(2):
        assert torch.equal(compiled(given), function(other))
    assert torch.equal(given, other)
    assert sum(captures()) == 0
    said = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert len(said) == 1
