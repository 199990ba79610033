"""How templates run: workspace, no waiting, the vendor's entry form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import variant_count

from bringup import devices, jit, ops
from bringup.errors import KernelError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@pytest.fixture(scope="module", autouse=True)
def npu(simulator: devices.DriverInfo | None) -> devices.DriverInfo | None:
    return simulator


WORKSPACE = """
#include "bringup/params.h"
struct P { bringup_params head; int64_t* out; int64_t bytes; };
extern "C" uint64_t workspace_size(const P* p) { return p->bytes; }
extern "C" void run(uint32_t, void*, const P* p) {
  char* scratch = static_cast<char*>(p->head.workspace);
  for (int64_t i = 0; i < p->bytes; i += 512) scratch[i] = 1;  // all of it is there
  p->out[0] = reinterpret_cast<int64_t>(scratch);
  p->out[1] = static_cast<int64_t>(p->head.workspace_size);
}
"""


@pytest.fixture
def uses_workspace(define: Define) -> ops.KernelOperator:
    return define(
        "w(Tensor x, int bytes) -> Tensor",
        source=jit.Template(text=WORKSPACE, name="workspace.cpp", params="ptr(out), bytes"),
        outputs=ops.empty(2, dtype=torch.int64),
    )


@DEVICES
def test_ten_thousand_calls_use_one_workspace(uses_workspace: Any, device: str) -> None:
    """Stream-ordered, reused, given back when its launch has finished: nothing leaks."""
    x = torch.ones(1, device=device)
    results = [uses_workspace(x, 1 << 20) for _ in range(10_000)]
    addresses, sizes = torch.stack(results).cpu().t().tolist()
    assert len(set(addresses)) == 1
    assert set(sizes) == {1 << 20}


@DEVICES
def test_the_size_of_the_workspace_is_a_run_time_value(uses_workspace: Any, device: str) -> None:
    x = torch.ones(1, device=device)
    for size in (0, 1, 64, 100_000, 3):
        address, bytes_there = uses_workspace(x, size).tolist()
        assert bytes_there == size
        assert (address == 0) == (size == 0)
        assert address % 64 == 0
    assert variant_count(uses_workspace) <= 2


@PATHS
def test_a_workspace_larger_than_memory_is_an_error_in_words(
    uses_workspace: Any, path: Any
) -> None:
    with pytest.raises(KernelError, match=r"::w: .*no memory left for its workspace of \d+ bytes"):
        path(uses_workspace)(torch.ones(1), 1 << 60)


WAITS = """
#include "bringup/params.h"
#include <time.h>
struct P { bringup_params head; int64_t* out; };
extern "C" void run(uint32_t, void*, const P* p) {
  const timespec pause = {0, 300000000};
  nanosleep(&pause, nullptr);
  p->out[0] = 1;
}
"""


def test_a_launch_on_a_device_does_not_wait_for_it(define: Define) -> None:
    """No synchronisation per call."""
    waits = define(
        "waits(Tensor x) -> Tensor",
        source=jit.Template(text=WAITS, name="waits.cpp", params="ptr(out)"),
        outputs=ops.empty(1, dtype=torch.int64),
    )
    x = torch.ones(1, device="npu")
    waits(x)
    torch.npu.synchronize()
    result = waits(x)
    assert not torch.npu.current_stream().query()
    torch.npu.synchronize()
    assert result.item() == 1


ASCENDC = """
#include <stdint.h>
extern "C" uint32_t aclrtlaunch_add_one(uint32_t block_dim, void*, uint8_t* out, uint8_t* x,
                                        uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) ((float*)out)[i] = ((float*)x)[i] + block_dim;
  return 0;
}
"""


@PATHS
@DEVICES
def test_an_ascendc_entry_is_an_operator(define: Define, path: Any, device: str) -> None:
    """The third entry form."""
    add = define(
        "add(Tensor x) -> Tensor",
        source=jit.Template(
            text=ASCENDC,
            name="add.cpp",
            entry="add_one",
            abi="ascendc",
            params="ptr(out), ptr(x), numel(x)",
        ),
        outputs=ops.empty_like("x"),
    )
    x = torch.arange(12.0, device=device).reshape(3, 4)[1:]
    assert torch.equal(path(add)(x).cpu(), x.cpu() + 1)
