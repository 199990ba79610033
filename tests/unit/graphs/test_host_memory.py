"""Memory of the host that no operator shows: NumPy's and buffers', and tensors that operators made
of others read themselves.
"""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import devices
from bringup.errors import CaptureError


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_indices_that_tensor_split_reads_on_the_host_are_refused(device: str) -> None:
    if device == "npu":
        devices.load_driver("sim")
    x, sections = torch.arange(8.0).to(device), torch.tensor([4])
    with pytest.raises(CaptureError, match=r"reads the value of a tensor int64\[1\] on the host"):
        captured(lambda: torch.tensor_split(x, sections)[0] + 0)


def test_indices_that_the_captured_code_itself_writes_down_are_constants() -> None:
    x = torch.arange(8.0)

    def split() -> torch.Tensor:
        sections = torch.tensor([4])
        return torch.tensor_split(x, sections)[0] + sections  # which makes them a node

    graph, y = captured(split)
    x.add_(1)
    graph.replay()
    assert y.tolist() == [5, 6, 7, 8]


def test_batch_sizes_of_a_packed_sequence_are_refused() -> None:
    data, sizes = torch.arange(6.0).reshape(6, 1), torch.tensor([3, 2, 1])
    with pytest.raises(CaptureError, match=r"reads the value of a tensor int64\[3\] on the host"):
        captured(lambda: torch._VF._pad_packed_sequence(data, sizes, False, 0.0, 5))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.choose_qparams_optimized(x, 4, 200, 0.16, 8),
        torch.fbgemm_pack_gemm_matrix_fp16,
        lambda x: torch.fbgemm_linear_fp16_weight(x.view(1, 4), PACKED, torch.zeros(2)),
    ],
)
def test_values_that_quantisation_reads_on_the_host_are_refused(call: Any) -> None:
    x = torch.arange(4.0).view(2, 2)
    with pytest.raises(CaptureError, match=r"reads the value of a tensor float32\[\d, \d\] on the"):
        captured(lambda: call(x))


PACKED = torch.fbgemm_pack_gemm_matrix_fp16(torch.ones(2, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.ones(2, np.float32)),
        lambda: torch.as_tensor(np.ones(2, np.float32)),
        lambda: torch.frombuffer(bytearray(8), dtype=torch.float32),
        lambda: torch.from_dlpack(np.ones(2, np.float32)),
        lambda: torch.from_numpy(np.ones(4, np.float32))[::2],
    ],
)
def test_memory_that_comes_in_inside_the_block_is_read_and_not_written(
    make: Callable[[], Any],
) -> None:
    x = torch.zeros(2)
    with pytest.raises(CaptureError, match="that came in inside the capture"):
        captured(lambda: x + make().add_(1))
    graph, y = captured(lambda: x + make())
    first = y.clone()
    graph.replay()
    assert torch.equal(y, first)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.float32),
        np.zeros(4, np.float32)[::2],
        np.zeros(2, np.float32)[::1],
        bytearray(8),
        (ctypes.c_float * 2)(),
    ],
)
def test_memory_that_was_there_before_is_written_by_every_replay(array: Any) -> None:
    x = torch.ones(2)

    def total() -> torch.Tensor:
        is_array = isinstance(array, np.ndarray)
        own = torch.from_numpy(array) if is_array else torch.frombuffer(array, dtype=torch.float32)
        return own.add_(x) + 0

    graph, y = captured(total)
    for count in (1, 2, 3):
        graph.replay()
        assert y.tolist() == [count, count]


def test_what_hands_memory_to_others_is_refused() -> None:
    x = torch.ones(2)
    for read in (
        lambda: np.from_dlpack(x),
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: torch.save(x, io.BytesIO()),
        lambda: torch.save({"x": torch.nn.Parameter(x)}, io.BytesIO()),
        lambda: pickle.dumps(x),
    ):
        with pytest.raises(CaptureError, match="reads the value of a tensor float32"):
            captured(lambda read=read: (read(), x + 1)[1])
        read()  # outside it works


def test_tensors_of_the_same_memory_are_not_refused() -> None:
    x = torch.ones(2)
    graph, y = captured(lambda: torch.from_dlpack(x) + copy.copy(x))
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [6, 6]
