"""What another process does with tensors that it is sent; see test_shared_tensors.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from bringup import devices
from bringup.devices import sim

kept: dict[str, Any] = {}


class Held:
    """What a queue cannot look into."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class OnDevice(Dataset[torch.Tensor]):
    """Eight tensors, made on the device by whoever asks."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        devices.load_driver("sim")
        return torch.full((3,), float(index), device="npu")


def serve(requests: Any, replies: Any) -> None:
    """Answer requests (name of a function, arguments) until None comes."""
    while (request := requests.get()) is not None:
        name, *arguments = request
        del request
        try:
            answer = globals()[name](*arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        replies.put(answer)
        del arguments, answer
        gc.collect()


def values(tensors: Any) -> Any:
    return [tensor.tolist() for tensor in tensors]


def add_one(x: torch.Tensor) -> None:
    x.add_(1)
    torch.npu.synchronize()


def keep(name: str, value: Any) -> None:
    kept[name] = value


def kept_values(name: str) -> Any:
    value = kept[name]
    if isinstance(value, Held):
        value = value.tensor
    return (value[0] if isinstance(value, list) else value).tolist()


def forget(name: str) -> None:
    del kept[name]


def is_kept(name: str, value: torch.Tensor) -> bool:
    return bool(kept[name].untyped_storage()._cdata == value.untyped_storage()._cdata)


def is_one_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def kinds(weight: Any, module: Any, held: Held, empty: torch.Tensor) -> Any:
    names = type(weight).__name__, weight.requires_grad, type(module).__name__
    return *names, held.tensor.sum().item(), tuple(empty.shape), empty.device.type


def give(x: torch.Tensor) -> torch.Tensor:
    return x


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@contextmanager
def held_stream() -> Iterator[torch.Stream]:
    """Give a stream whose work does not begin before the end."""
    torch.npu.synchronize()
    stream = torch.Stream("npu")
    with sim.faults(lost_event=1):
        stream.wait_event(torch.Stream("npu").record_event())
        yield stream


def copy_held(x: torch.Tensor) -> None:
    """Queue a copy that `release` lets begin, and let go of what is copied."""
    kept["copy"] = torch.zeros_like(x)
    kept["held"] = held_stream()
    with kept["held"].__enter__():
        kept["copy"].copy_(x, non_blocking=True)


def release() -> None:
    kept.pop("held").__exit__(None, None, None)
    torch.npu.synchronize()


def resize(x: torch.Tensor) -> None:
    x.resize_(10_000)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def send(queue: Any, release: Any) -> None:
    """Put two tensors, and wait to be killed."""
    devices.load_driver("sim")
    for value in (1.0, 2.0):
        queue.put(torch.full((1000,), value, device="npu"))
    release.get()


def spawned(rank: int, x: torch.Tensor) -> None:
    x[rank] = rank + 10
    torch.npu.synchronize()


if __name__ == "__main__":  # with settings that the tests' own process cannot have
    devices.load_driver("sim")
    x = torch.zeros(2, device="npu")
    torch.multiprocessing.spawn(spawned, (x,), nprocs=2)
    print(x.tolist())
