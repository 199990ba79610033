"""fill_ and zero_ on the device: the bytes that cpu writes, in stream order, without the host; and
copies of rows by the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.unit.devices import fills
from tests.unit.devices.gate import Gate

from bringup import devices, graphs

OUT_OF_REACH = """
from bringup import devices
devices.load_driver("sim")
from tests.unit.devices import fills
from tests.unit.devices.gate import Gate
"""


@pytest.fixture
def no_fallback() -> Iterator[None]:
    with devices.fallback_policy("forbid"):
        yield


@pytest.mark.parametrize("dtype", fills.DTYPES, ids=str)
def test_a_fill_leaves_the_bytes_that_it_leaves_on_cpu(dtype: torch.dtype) -> None:
    assert fills.fills_unlike_cpu(dtype) == []


def test_so_does_one_of_memory_that_the_host_does_not_see(
    fresh_python: Callable[..., str],
) -> None:
    code = OUT_OF_REACH + "print([fills.fills_unlike_cpu(dtype) for dtype in fills.DTYPES])"
    said = fresh_python(code, BRINGUP_SIM_ISOLATED="1")
    assert said == str([[] for _ in fills.DTYPES])


def test_a_fill_waits_in_its_stream_and_the_host_does_not_wait(
    held_write: Callable[[torch.Tensor, int], None], gate: Gate
) -> None:
    x = torch.zeros(4, device="npu")
    held_write(x, gate.address)
    x.fill_(5)
    x[1:].zero_()
    assert not torch.npu.current_stream().query()
    gate.release()
    assert x.tolist() == [5, 0, 0, 0]


def test_a_fill_of_dense_memory_needs_no_fallback(no_fallback: None) -> None:
    dense = torch.empty(3, 4, 5, device="npu").permute(2, 0, 1)
    assert set(dense.fill_(2).cpu().flatten().tolist()) == {2}
    assert torch.zeros(3, device="npu").tolist() == [0, 0, 0]
    assert torch.full((2,), 7, dtype=torch.int16, device="npu").tolist() == [7, 7]
    with pytest.raises(RuntimeError, match="aten::fill_"):
        dense[..., ::2].fill_(1)


def test_a_fill_of_nothing_needs_no_fallback_and_refuses_as_on_cpu(no_fallback: None) -> None:
    x = torch.empty(0, 3, dtype=torch.int8, device="npu")
    assert x.zero_() is x
    assert x.fill_(3).shape == (0, 3)
    for device in ("cpu", "npu"):
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.empty(0, dtype=torch.int8, device=device).fill_(300)


def test_a_value_that_does_not_fit_is_refused_as_on_cpu() -> None:
    refused = []
    for place in ("cpu", "npu"):
        x = torch.zeros(3, dtype=torch.float16, device=place)
        with pytest.raises(RuntimeError) as caught:
            x.fill_(1e30)
        refused.append(str(caught.value))
        assert x.tolist() == [0, 0, 0]
    assert refused[0] == refused[1]


def test_a_value_on_the_device_is_taken_from_there() -> None:
    value = torch.tensor(3.5, device="npu")
    assert torch.empty(2, device="npu").fill_(value).tolist() == [3.5, 3.5]
    with pytest.raises(RuntimeError, match="0-dimension"):
        torch.empty(2, device="npu").fill_(torch.ones(2, device="npu"))


def test_views_that_negate_and_conjugate_are_filled_with_the_value() -> None:
    for place in ("cpu", "npu"):
        x = torch.zeros(2, dtype=torch.complex64, device=place)
        x.conj().fill_(1 + 2j)
        assert x.tolist() == [1 - 2j] * 2
        x.conj().imag.fill_(5)
        assert x.tolist() == [1 - 5j] * 2


@pytest.mark.parametrize("value", [3.0, -0.0, float("nan")])
def test_a_captured_fill_is_replayed(value: float) -> None:
    x = torch.ones(5, device="npu")
    y = torch.ones(5, device="npu")
    g = graphs.CapturedGraph()
    with graphs.capture(g):
        x.fill_(value)
        y.zero_()
        z = torch.full((5,), value, device="npu")
    assert x.tolist() == y.tolist() == [1] * 5  # only replays change what was there
    for _ in range(2):
        x.copy_(torch.arange(5.0))
        y.copy_(torch.arange(5.0))
        z.copy_(torch.arange(5.0))
        g.replay()
        torch.npu.synchronize()
        expected = torch.full((5,), value)
        assert fills.bits(x) == fills.bits(z) == fills.bits(expected)
        assert fills.bits(y) == fills.bits(torch.zeros(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex128], ids=str)
def test_rows_are_copied_as_on_cpu(dtype: torch.dtype) -> None:
    assert fills.row_copies_unlike_cpu(dtype) == []


def test_so_are_rows_of_memory_that_the_host_does_not_see(fresh_python: Callable[..., str]) -> None:
    code = OUT_OF_REACH + "print(fills.row_copies_unlike_cpu())"
    assert fresh_python(code, BRINGUP_SIM_ISOLATED="1") == "[]"


def test_rows_are_copied_in_stream_order(
    held_write: Callable[[torch.Tensor, int], None], gate: Gate
) -> None:
    x = torch.zeros(4, 3, device="npu")
    held_write(x, gate.address)
    left = torch.zeros(4, 2, device="npu").copy_(x[:, :2])
    assert not torch.npu.current_stream().query()
    gate.release()
    assert left[0].tolist() == [1, 0]


def test_rows_that_meet_their_own_source_are_copied_as_on_cpu() -> None:
    expected = torch.arange(24.0).view(4, 6)
    x = expected.to("npu")
    x[:, :3].copy_(x[:, 3:])
    expected[:, :3].copy_(expected[:, 3:].clone())
    assert x.tolist() == expected.tolist()


def test_memory_that_partly_overlaps_its_source_is_refused_as_on_cpu() -> None:
    for place in ("cpu", "npu"):
        x = torch.arange(8.0, device=place)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:5].copy_(x[2:7])
