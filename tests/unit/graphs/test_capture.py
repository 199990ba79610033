"""Capturing and replaying: the replay computes what the run computed, for new inputs too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from bringup import graphs
from bringup.errors import CaptureError

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def captured(function: Function, *inputs: Tensor) -> tuple[graphs.CapturedGraph, Tensor]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        output = function(*inputs)
    return graph, output


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


def test_replay_before_capture_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"CapturedGraph.replay: nothing is captured"):
        graphs.CapturedGraph().replay()
