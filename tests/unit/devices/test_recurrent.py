"""LSTM and GRU on the device: torch sends them to fused cells that only GPUs have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

MODULES: dict[str, Any] = {
    "LSTM": lambda: nn.LSTM(8, 6),
    "LSTM of two layers, both ways": lambda: nn.LSTM(8, 6, 2, bidirectional=True),
    "LSTM without bias": lambda: nn.LSTM(8, 6, bias=False),
    "LSTM with a projection": lambda: nn.LSTM(8, 6, proj_size=4),
    "LSTM, batch first": lambda: nn.LSTM(8, 6, batch_first=True),
    "GRU": lambda: nn.GRU(8, 6),
    "GRU of two layers, both ways": lambda: nn.GRU(8, 6, 2, bidirectional=True),
    "GRU without bias": lambda: nn.GRU(8, 6, bias=False),
    "LSTMCell": lambda: nn.LSTMCell(8, 6),
    "LSTMCell without bias": lambda: nn.LSTMCell(8, 6, bias=False),
    "GRUCell": lambda: nn.GRUCell(8, 6),
    "GRUCell without bias": lambda: nn.GRUCell(8, 6, bias=False),
}


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result for tensor in tensors(part)]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the input and of every parameter, for different weights of the results."""
    results = tensors(module(x))
    total = sum((r * (i + 1)).square().sum() for i, r in enumerate(results))
    assert isinstance(total, Tensor)
    return [r.detach() for r in results] + list(
        torch.autograd.grad(total, [x, *module.parameters()])
    )


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_and_gradients_are_the_cpus(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = MODULES[name]().to(dtype)
    x = torch.randn(*(() if "Cell" in name else (5,)), 3, 8, dtype=dtype, requires_grad=True)
    on_device = copy.deepcopy(module).to("npu")
    wanted = gradients(module, x)
    got = gradients(on_device, x.detach().to("npu").requires_grad_())
    for a, b in zip(got, wanted, strict=True):
        assert a.device.type == "npu"
        torch.testing.assert_close(a.cpu(), b)


def test_packed_sequences() -> None:
    torch.manual_seed(2)
    module, x, lengths = nn.LSTM(8, 6), torch.randn(5, 3, 8), torch.tensor([5, 2, 4])
    on_device = copy.deepcopy(module).to("npu")
    wanted, _ = pad_packed_sequence(
        module(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
    )
    got, sizes = pad_packed_sequence(
        on_device(pack_padded_sequence(x.to("npu"), lengths, enforce_sorted=False))[0]
    )
    assert sizes.tolist() == [5, 2, 4]
    torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_only_some_of_the_results_have_a_gradient(cell: Any) -> None:
    module = cell(4, 3).to("npu", torch.float64)
    x = torch.randn(2, 4, device="npu", dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, device="npu", dtype=torch.float64, requires_grad=True)
    hidden = (state, state * 2) if cell is nn.LSTMCell else state
    for part in range(2 if cell is nn.LSTMCell else 1):

        def one(x: Tensor, part: int = part) -> Tensor:
            result = module(x, hidden)
            return result[part] if isinstance(result, tuple) else result

        assert torch.autograd.gradcheck(one, (x,))


def test_trains_as_on_cpu() -> None:
    losses = []
    for device in ("cpu", "npu"):
        torch.manual_seed(4)
        module = nn.GRU(8, 6, 2).to(device)
        head = nn.Linear(6, 1).to(device)
        x, y = torch.randn(7, 4, 8).to(device), torch.randn(7, 4, 1).to(device)
        optimizer = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss = (head(module(x)[0]) - y).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0] < 0.9
