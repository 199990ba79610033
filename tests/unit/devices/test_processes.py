"""Tensors of a device whose driver shares no memory, handed to other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import multiprocessing
import sys

import torch

from bringup import devices

name = devices.load_driver(sys.argv[1]).device_name


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor


def refused(call):
    try:
        call()
    except RuntimeError as error:
        text = str(error)
        print("shared with another process" in text and "BRINGUP_HAS_IPC" in text)
    else:
        print("nothing was refused")


x = torch.ones(2, device=name)
for kind in ("Queue", "JoinableQueue", "SimpleQueue"):
    queue = getattr(multiprocessing, kind)()
    for made in (x, {"batch": [torch.ones(1), (x, 1)]}, torch.nn.Linear(2, 2).to(name)):
        refused(lambda: queue.put(made))
    queue.put(torch.ones(2))
    print(queue.get().tolist() == [1, 1])
queue = multiprocessing.Queue()
queue.put(Holder(x))
refused(lambda: queue.get(timeout=240))
queue.put(Holder(torch.ones(2)))
print(queue.get(timeout=240).tensor.tolist() == [1, 1])
refused(lambda: multiprocessing.Pipe()[1].send(x))
print(not x.is_shared())
refused(x.share_memory_)
print(torch.ones(2).share_memory_().is_shared())
"""


def test_every_way_is_refused_in_words(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    said = fresh_python(PROGRAM.replace("sys.argv[1]", repr(str(build_driver()))))
    assert said.split() == ["True"] * 18
