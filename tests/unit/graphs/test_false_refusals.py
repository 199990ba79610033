"""What a capture refused without need, or for another reason than it gave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bringup import devices, graphs
from bringup.errors import CaptureError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def captured(run: Callable[[], Any]) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = run()
    return graph, result


def test_record_stream_leaves_no_node() -> None:
    x, stream = torch.ones(3, device="npu"), torch.npu.Stream()  # type: ignore[attr-defined]

    def run() -> Tensor:
        y = x + 1
        y.record_stream(stream)
        x.record_stream(stream)
        return y * 2

    graph, y = captured(run)
    assert [node.op for node in graph.nodes] == ["aten::add.Tensor", "aten::mul.Tensor"]
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def test_streams_tell_that_they_are_captured() -> None:
    x = torch.ones(3, device="npu")
    one, other = torch.npu.Stream(), torch.npu.Stream()  # type: ignore[attr-defined]

    def run() -> list[bool]:
        main = torch.accelerator.current_stream()
        one.wait_stream(main)
        with one:
            x.add_(1)
            inside = [torch.npu.current_stream().is_capturing()]  # type: ignore[attr-defined]
        main.wait_stream(one)
        return [*inside, main.is_capturing(), one.is_capturing(), other.is_capturing()]

    assert captured(run)[1] == [True, True, True, False]
    assert not torch.accelerator.current_stream().is_capturing()
    assert not one.is_capturing()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_tensor_may_be_deep_copied_in_the_block(device: str) -> None:
    x = torch.ones(3, device=device)
    graph, y = captured(lambda: copy.deepcopy(x) * 2)
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def test_a_state_of_a_random_generator_may_be_kept() -> None:
    x = torch.ones(64, device="npu")
    graph, (state, y) = captured(
        lambda: (torch.npu.get_rng_state(), torch.dropout(x, 0.5, True))  # type: ignore[attr-defined]
    )
    assert state.numel() == 16
    graph.replay()
    former = y.clone()
    graph.replay()
    assert not torch.equal(y, former)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_seed_alone_is_named(device: str) -> None:
    seed = torch.manual_seed if device == "cpu" else torch.npu.manual_seed  # type: ignore[attr-defined]
    words = rf"no operator ran in the capture, and the torch\.Generator of {device}.* was seeded"
    with pytest.raises(CaptureError, match=words):
        captured(lambda: seed(3))


class _Passes(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_Passes, lambda: FlopCounterMode(display=False)])
def test_results_that_an_out_variant_resizes_are_captured_under_a_dispatch_mode(mode: Any) -> None:
    x, y = torch.ones(3), torch.zeros(3)
    with mode():
        graph, loss = captured(lambda: torch.nn.functional.huber_loss(x, y))
    x.fill_(5)
    graph.replay()
    assert loss.item() == 4.5


@pytest.mark.parametrize("options", [{"capture": True}, {"mode": "serve"}])
def test_huber_loss_is_compiled_and_captured(options: dict[str, Any]) -> None:
    compiled = torch.compile(torch.nn.functional.huber_loss, backend="bringup", options=options)
    x = torch.ones(3)
    with torch.no_grad():
        for value in (5.0, 0.5, 2.0):
            expected = torch.nn.functional.huber_loss(x * value, x * 0)
            torch.testing.assert_close(compiled(x * value, x * 0), expected)
