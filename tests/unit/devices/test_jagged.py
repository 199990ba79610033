"""Jagged nested tensors on the device, as on cpu: attention, compiled, captured; and what refuses
strided ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bringup import devices, graphs
from bringup._native import has_torch_library


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    if not has_torch_library():
        pytest.skip("needs the native torch library: a device")
    return devices.load_driver("sim")


def jagged(device: str, *, grad: bool = False) -> torch.Tensor:
    parts = [torch.arange(16.0).reshape(2, 8) / 10, torch.arange(32.0).reshape(4, 8) / 20]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, requires_grad=grad)


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    heads = [t.unflatten(-1, [2, 4]).transpose(1, 2) for t in (x, y, x)]
    return torch.nn.functional.scaled_dot_product_attention(*heads)


def attended(device: str, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    x = jagged(device, grad=True)
    found = run(x, x * 0.5)
    found.values().square().sum().backward()
    assert x.grad is not None
    return [found.values().detach().cpu(), x.grad.values().cpu()]


@pytest.mark.parametrize("backend", [None, "aot_eager", "bringup"])
def test_attention_is_the_cpus(backend: str | None) -> None:
    torch._dynamo.reset()
    run: Any = attention if backend is None else torch.compile(attention, backend=backend)
    for got, want in zip(attended("npu", run), attended("cpu", attention), strict=True):
        torch.testing.assert_close(got, want)


def test_attention_that_the_cpu_refuses_is_refused() -> None:
    for device in ("cpu", "npu"):
        x = jagged(device).unflatten(-1, [2, 4]).transpose(1, 2)
        with pytest.raises(RuntimeError, match="No viable backend"):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_it_is_compiled_for_each_ragged_size(device: str) -> None:
    torch._dynamo.reset()
    linear = torch.nn.Linear(8, 8).to(device)
    run = torch.compile(lambda x: torch.relu(linear(x)), backend="bringup")
    for rows in ([2, 4], [3, 5, 1]):
        parts = [torch.randn(n, 8) for n in rows]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
        found = run(x)
        assert found.shape[1] == x.shape[1]
        torch.testing.assert_close(found.values(), torch.relu(linear(x.values())))


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_it_is_captured(device: str) -> None:
    norm = torch.nn.LayerNorm(8).to(device)
    x = jagged(device)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        y = norm(torch.relu(x * 2 - 1))
    x.values().copy_(torch.randn(6, 8))
    graph.replay()
    torch.testing.assert_close(y.values(), norm(torch.relu(x.values() * 2 - 1)))


STRIDED: dict[str, Callable[[], object]] = {
    "of numbers": lambda: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="npu"),
    "of tensors on cpu": lambda: torch.nested.nested_tensor([torch.ones(2, 3)], device="npu"),
    "of the device's": lambda: torch.nested.as_nested_tensor([torch.ones(2, 3, device="npu")]),
    "of leaves": lambda: torch.nested.as_nested_tensor(
        [torch.ones(2, 3, device="npu", requires_grad=True)]
    ),
    "moved": lambda: torch.nested.nested_tensor([torch.ones(2, 3)]).to("npu"),
    "masked": lambda: torch._nested_tensor_from_mask(
        torch.ones(2, 3, 4, device="npu"), torch.ones(2, 3, dtype=torch.bool, device="npu")
    ),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_strided_one_is_refused_when_it_is_made(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"make them with layout=torch\.jagged"):
        STRIDED[name]()


def test_the_cpus_strided_ones_move_there() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert x.to(torch.float64).unbind()[1].tolist() == [[1.0] * 3]


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_cell_without_biases_is_compiled(cell: Any) -> None:
    torch._dynamo.reset()
    module = cell(4, 4, bias=False).to("npu")
    x = torch.randn(2, 4, device="npu")
    found, expected = torch.compile(module, backend="bringup")(x), module(x)
    for got, want in zip(
        *(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True
    ):
        torch.testing.assert_close(got, want)
