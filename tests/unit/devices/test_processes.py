"""Tensors of the device that are handed to other processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch

REFUSED = "a tensor of device 'npu:0' cannot be shared with another process"


class Holder:
    """What a queue cannot look into."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x,
        lambda x: {"batch": [torch.ones(1), (x, 1)]},
        lambda x: torch.nn.Linear(2, 2).to(x.device),
    ],
    ids=["tensor", "containers", "module"],
)
@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_a_queue_refuses_a_tensor_of_the_device(kind: str, made: Callable[[Any], Any]) -> None:
    queue = getattr(multiprocessing, kind)()
    with pytest.raises(RuntimeError, match=REFUSED):
        queue.put(made(torch.ones(2, device="npu")))
    queue.put(torch.ones(2))
    assert queue.get().tolist() == [1, 1]


def test_the_receiver_of_an_object_with_a_tensor_of_the_device_is_told() -> None:
    queue = multiprocessing.Queue()
    queue.put(Holder(torch.ones(2, device="npu")))
    with pytest.raises(RuntimeError, match=REFUSED):
        queue.get(timeout=240)
    queue.put(Holder(torch.ones(2)))
    assert queue.get(timeout=240).tensor.tolist() == [1, 1]


def test_a_pipe_refuses_a_tensor_of_the_device() -> None:
    _, sender = multiprocessing.Pipe()
    with pytest.raises(RuntimeError, match=r"Hand over tensor\.cpu\(\)"):
        sender.send(torch.ones(2, device="npu"))


def test_memory_of_the_device_is_not_shared() -> None:
    x = torch.ones(2, device="npu")
    assert not x.is_shared()
    with pytest.raises(RuntimeError, match=REFUSED):
        x.share_memory_()
    assert torch.ones(2).share_memory_().is_shared()
