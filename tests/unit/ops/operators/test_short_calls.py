"""Calls of kernels on few elements: the simulated NPU runs them in the call where nothing is before
them, in the order and with the failures that they have elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from bringup import devices

ADD = "template <class T> T add(T a, T b, T alpha) { return a + alpha * b; }"
FAILS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx* ctx) {
  ctx->set_error(ctx, "it never works");
  return 7;
}
"""

Declare = Callable[..., devices.OperatorKernel]


def is_over() -> bool:
    return torch.accelerator.current_stream().query()


def test_a_call_of_few_elements_is_over_when_it_returns(declare: Declare) -> None:
    declare("aten::add", ADD)
    x = torch.ones(3, device="npu")
    torch.add(x, x)  # compiles, and loads into the device
    torch.accelerator.synchronize()
    for _ in range(100):
        total = torch.add(x, x)
        assert is_over()
    assert total.tolist() == [2, 2, 2]


def test_a_call_that_shall_last_is_still_asynchronous(declare: Declare) -> None:
    declare("aten::add", ADD)
    x = torch.ones(3, device="npu")
    torch.add(x, x)
    torch.accelerator.synchronize()
    with devices.sim.faults(launch_latency_us=200_000):
        total = torch.add(x, x)
        assert not is_over()
    assert total.tolist() == [2, 2, 2]


def test_short_calls_come_after_long_ones(declare: Declare) -> None:
    declare("aten::add", ADD)
    x = torch.zeros(1 << 20, device="npu")
    for expected in range(1, 20):
        x.add_(1)  # on the simulator's thread
        assert torch.add(x[-2:], 1).tolist() == [expected + 1] * 2


def test_threads_share_a_stream(declare: Declare) -> None:
    declare("aten::add", ADD)
    long = torch.zeros(1 << 16, device="npu")
    short = torch.zeros(2, device="npu")

    def adds(start: int) -> None:
        for i in range(start, start + 300):
            (long if i % 4 == 0 else short).add_(1)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(adds, range(3)))
    assert short.tolist() == [675, 675]
    assert long.unique().tolist() == [225]


def test_a_short_call_that_fails_is_raised_by_the_next_wait(declare: Declare) -> None:
    declare("aten::relu", FAILS, "raw")
    x = torch.ones(3, device="npu")
    torch.relu(x)
    with pytest.raises(RuntimeError, match=r"aten::relu.*it never works"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()


def test_calls_on_two_devices_load_the_kernel_into_each(declare: Declare) -> None:
    declare("aten::add", ADD)
    results: list[Any] = []
    for index in (0, 1, 0, 1):
        x = torch.full((2,), index + 1.0, device=f"npu:{index}")
        results.append(torch.add(x, x).tolist())
    assert results == [[2, 2], [4, 4], [2, 2], [4, 4]]


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(2.5),
        torch.ones(0, 3),
        torch.arange(6.0).reshape(2, 3),
        torch.ones(2, 1, 3, 3).to(memory_format=torch.channels_last),  # contiguous in two ways
        torch.arange(4, dtype=torch.int64),
        torch.arange(6.0).half().reshape(3, 1, 2),
    ],
    ids=["scalar", "empty", "matrix", "one_channel", "integers", "half"],
)
def test_contiguous_operands_give_what_they_give_on_cpu(declare: Declare, x: torch.Tensor) -> None:
    declare("aten::add", ADD, supports=("floating", "integral"))
    there = x.to("npu")
    result = torch.add(there, there, alpha=3)
    expected = torch.add(x, x, alpha=3)
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)
    assert (result.shape, result.stride(), result.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )
    assert devices.fallback_report().native


def test_contiguous_operands_of_two_devices_are_refused(declare: Declare) -> None:
    declare("aten::add", ADD)
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(torch.ones(2, device="npu:0"), torch.ones(2, device="npu:1"))
