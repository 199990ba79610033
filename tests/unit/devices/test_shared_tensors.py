"""Tensors of the device in several processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.devices import sharing
from torch.multiprocessing.reductions import StorageWeakRef

from bringup.devices import sim
from bringup.errors import DeviceError

SPAWN = torch.multiprocessing.get_context("spawn")
SECONDS = 240


class Other:
    """A process that does what it is asked for."""

    def __init__(self) -> None:
        self.requests, self.replies = SPAWN.Queue(), SPAWN.Queue()
        arguments = (self.requests, self.replies)
        self.process = SPAWN.Process(target=sharing.serve, args=arguments, daemon=True)
        self.process.start()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.requests.put((function.__name__, *arguments))
        return self.replies.get(timeout=SECONDS)


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    one = Other()
    yield one
    one.requests.put(None)
    one.process.join(SECONDS / 4)
    one.process.kill()


def await_end(storage: StorageWeakRef) -> None:
    """Return when no process uses a storage any more."""
    end = time.monotonic() + 60
    while not storage.expired():
        assert time.monotonic() < end, "memory is kept that no process uses"
        time.sleep(0.01)


def test_a_tensor_is_the_same_memory_in_both_processes(other: Other) -> None:
    x = torch.arange(4.0, device="npu")
    assert x.is_shared()
    assert x.share_memory_() is x
    assert other(sharing.values, [x, x[2:], x.t()]) == [[0, 1, 2, 3], [2, 3], [0, 1, 2, 3]]
    assert other(sharing.add_one, x) is None
    assert x.tolist() == [1, 2, 3, 4]
    assert other(sharing.is_one_storage, x[1:], x[:2]) is True
    other(sharing.keep, "x", x)
    assert other(sharing.is_kept, "x", x[3:]) is True  # also in another message
    assert other(sharing.give, x[1:]).data_ptr() == x.data_ptr() + 4
    other(sharing.forget, "x")


def test_parameters_modules_and_what_holds_tensors_arrive(other: Other) -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="npu"))
    module = torch.nn.Linear(2, 2).npu()
    held, empty = sharing.Held(torch.ones(5, device="npu")), torch.empty(0, 3, device="npu")
    found = other(sharing.kinds, weight, module, held, empty)
    assert found == ("Parameter", True, "Linear", 5.0, (0, 3), "npu")
    sparse = torch.eye(2).to_sparse().to("npu")
    assert other(sharing.values, [sparse.to_dense(), sparse._indices()])[1] == [[0, 1], [0, 1]]


def test_what_another_process_sends_is_its_memory(other: Other) -> None:
    x = torch.arange(3.0, device="npu")
    storage = StorageWeakRef(x.untyped_storage())
    received = other(sharing.twice, x)
    assert received.tolist() == [0, 2, 4]
    other(sharing.add_one, received)
    assert received.tolist() == [1, 3, 5]
    del x
    await_end(storage)


def test_memory_is_kept_as_long_as_a_receiver_has_it(other: Other) -> None:
    x = torch.full((70_000,), 7.0, device="npu")
    address, storage = x.data_ptr(), StorageWeakRef(x.untyped_storage())
    other(sharing.keep, "x", x)
    del x
    again = [torch.zeros(70_000, device="npu") for _ in range(4)]
    assert address not in [one.data_ptr() for one in again]
    assert set(other(sharing.kept_values, "x")) == {7.0}
    assert not storage.expired()
    other(sharing.forget, "x")
    await_end(storage)


def test_the_receivers_work_ends_before_memory_is_used_again(other: Other) -> None:
    x = torch.full((70_000,), 7.0, device="npu")
    storage = StorageWeakRef(x.untyped_storage())
    other(sharing.copy_held, x)
    del x
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        assert not storage.expired()
        time.sleep(0.01)
    other(sharing.release)
    await_end(storage)
    assert set(other(sharing.kept_values, "copy")) == {7.0}


@pytest.mark.parametrize("wrap", [lambda x: [x], sharing.Held], ids=["list", "held"])
def test_the_senders_work_ends_before_memory_is_sent(
    wrap: Callable[[torch.Tensor], Any], other: Other
) -> None:
    x, ones = torch.zeros(1000, device="npu"), torch.ones(1000, device="npu")
    put = threading.Thread(target=other.requests.put, args=(("keep", "x", wrap(x)),))
    with sharing.held_stream() as stream, stream:
        x.copy_(ones, non_blocking=True)
        put.start()
        with pytest.raises(queue.Empty):
            other.replies.get(timeout=0.3)
    put.join()
    other.replies.get(timeout=SECONDS)
    assert set(other(sharing.kept_values, "x")) == {1.0}
    other(sharing.forget, "x")


def test_failed_work_is_told_where_the_tensor_is_put(other: Other) -> None:
    x = torch.zeros(1000, device="npu")
    torch.npu.synchronize()
    with sim.faults(fail="copy_async", fail_async=True):
        x.copy_(torch.ones_like(x), non_blocking=True)
        with pytest.raises(DeviceError, match=r"before it was shared.*injected"):
            other.requests.put(("keep", "x", x))


def test_what_cannot_be_sent_is_told_to_the_receiver() -> None:
    messages = SPAWN.Queue()
    weight = torch.ones(2, device="npu", requires_grad=True)
    messages.put(sharing.Held(weight * 2))
    with pytest.raises(RuntimeError, match="non-leaf"):
        messages.get(timeout=SECONDS)


def test_a_shared_storage_keeps_its_size(other: Other) -> None:
    x = torch.ones(4, device="npu")
    assert "not resizable" in other(sharing.resize, x)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(10_000)


def test_many_tensors_take_one_connection(other: Other) -> None:
    other(sharing.keep, "many", [])
    files = other(sharing.open_files), sharing.open_files()
    many = [torch.full((2,), float(i), device="npu") for i in range(300)]
    other(sharing.keep, "many", many)
    now = other(sharing.open_files), sharing.open_files()
    assert max(a - b for a, b in zip(now, files, strict=True)) < 10
    other(sharing.forget, "many")


def test_a_killed_receiver_keeps_nothing() -> None:
    files = set(Path("/dev/shm").iterdir())
    x, one = torch.ones(1000, device="npu"), Other()
    storage = StorageWeakRef(x.untyped_storage())
    one(sharing.keep, "x", x)
    del x
    assert not storage.expired()
    os.kill(one.process.pid or 0, signal.SIGKILL)
    one.process.join()
    await_end(storage)
    one.requests.cancel_join_thread()
    assert not {file for file in set(Path("/dev/shm").iterdir()) - files if "torch" in file.name}


def test_what_was_received_outlives_its_sender() -> None:
    messages, release = SPAWN.Queue(), SPAWN.Queue()
    process = SPAWN.Process(target=sharing.send, args=(messages, release))
    process.start()
    x = messages.get(timeout=SECONDS)
    while messages.empty():
        time.sleep(0.01)
    process.kill()
    process.join()
    assert set(x.tolist()) == {1.0}
    with pytest.raises(RuntimeError, match="the process that shared it has ended"):
        messages.get(timeout=SECONDS)


def test_workers_of_a_loader_give_tensors_of_the_device() -> None:
    loader = torch.utils.data.DataLoader(
        sharing.OnDevice(), batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    batches = list(loader)
    assert [batch[0].item() for batch in batches] == list(range(8))
    assert {batch.device.type for batch in batches} == {"npu"}


def test_a_forked_receiver_is_refused_in_words() -> None:
    messages = multiprocessing.get_context("fork").SimpleQueue()
    reader, writer = os.pipe()
    messages.put(torch.ones(2, device="npu"))
    if (child := os.fork()) == 0:
        try:
            messages.get()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"cannot be used in a forked process" in os.read(reader, 1000)


def test_arguments_of_spawned_processes_on_memory_that_the_host_does_not_see() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.devices.sharing"],
        env=os.environ | {"BRINGUP_SIM_ISOLATED": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.stdout.strip() == "[10.0, 11.0]", done.stderr
