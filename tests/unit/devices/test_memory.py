"""The allocator: statistics, reuse, running out of memory; forked children; isolated memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


@pytest.mark.usefixtures("settled")
def test_statistics_count_what_tensors_hold() -> None:
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() == before + (1 << 20)
    assert torch.accelerator.memory_allocated() == torch.npu.memory_allocated()
    assert torch.npu.memory_reserved() >= torch.npu.memory_allocated()
    del x
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() == before + (1 << 20)
    stats = torch.npu.memory_stats()
    assert stats["allocation.all.freed"] >= 1
    assert stats["allocated_bytes.all.current"] == before


@pytest.mark.usefixtures("settled")
def test_empty_cache_gives_memory_back_to_the_driver() -> None:
    x = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    free, total = torch.npu.mem_get_info()
    del x
    assert torch.npu.mem_get_info()[0] == free
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] >= free + (64 << 20)
    assert torch.npu.mem_get_info()[1] == total


@pytest.mark.usefixtures("settled")
def test_thousand_rounds_of_training_do_not_grow() -> None:
    w = torch.randn(32, 32, device="npu", requires_grad=True)
    used = []
    for _ in range(300):
        (w @ w).relu().sum().backward()
        w.grad = None
        used.append(torch.npu.memory_reserved())
    assert used[-1] == used[20]


def test_running_out_of_memory_is_torchs_error_and_leaves_the_device_usable() -> None:
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 45, dtype=torch.uint8, device="npu")
    text = str(raised.value)
    assert text.startswith(
        "npu out of memory. Tried to allocate 32768.00 GiB. Device 0 has a total"
    )
    assert "is reserved by the allocator but unused." in text
    assert torch.ones(3, device="npu").sum().item() == 3


@pytest.mark.usefixtures("settled")
def test_cached_memory_is_given_back_before_giving_up() -> None:
    total = torch.npu.mem_get_info()[1]
    big = torch.empty(total // 8 * 5, dtype=torch.uint8, device="npu")
    del big  # cached: the next one fits only when it is given back
    retries = torch.npu.memory_stats()["num_alloc_retries"]
    other = torch.empty(total // 8 * 6, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_stats()["num_alloc_retries"] == retries + 1
    del other
    torch.npu.empty_cache()


def test_forked_child_is_refused_in_words_and_the_parent_goes_on(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import os, torch
from bringup import devices
devices.load_driver("sim")
x = torch.ones(3, device="npu")
pid = os.fork()
if pid == 0:
    said = []
    for use in (lambda: x + 1, lambda: torch.empty(3, device="npu"), torch.npu.synchronize):
        try:
            use()
        except RuntimeError as error:
            said.append("forked process" in str(error) and "spawn" in str(error))
    del x
    os._exit(0 if said == [True] * 3 and torch.npu._is_in_bad_fork() else 1)
status = os.waitpid(pid, 0)[1]
print(status, (x + 1).sum().item(), torch.npu._is_in_bad_fork())
"""
    assert fresh_python(code) == "0 6.0 False"


def test_everything_works_with_memory_that_the_host_cannot_touch(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
assert not devices.load_driver("sim").host_visible
torch.manual_seed(0)
x = torch.randn(4, 6, requires_grad=True)
y = x.detach().to("npu").requires_grad_()
def work(t):
    u = torch.nn.functional.layer_norm(t[:, ::2].t().contiguous(), (4,)).softmax(-1)
    v = torch.cat([u, u.flip(0)]).cumsum(0)
    v[1].mul_(2) if not v.requires_grad else None
    return (v * torch.arange(4.0, device=t.device)).sum()
work(x).backward(); work(y).backward()
torch.testing.assert_close(y.grad.cpu(), x.grad)
z = torch.zeros(3, 4, device="npu")
z[1].add_(1); z.t()[2] = 5
out = torch.empty(0, device="npu"); torch.add(z, 1, out=out)
conv = torch.nn.functional.conv1d(z[None], torch.ones(2, 3, 2, device="npu"))
tri = torch.tril_indices(3, 3, device="npu")
xs = torch._foreach_add([z, z], 1)
print(z.cpu().tolist(), out.shape, conv.cpu().sum().item(), tri.device, xs[1].sum().item())
print(1 - z[0, 0])
"""
    said = fresh_python(code, BRINGUP_SIM_ISOLATED="1")
    assert said == (
        "[[0.0, 0.0, 5.0, 0.0], [1.0, 1.0, 5.0, 1.0], [0.0, 0.0, 5.0, 0.0]] torch.Size([3, 4]) "
        "68.0 npu:0 30.0\ntensor(1., device='npu:0')"
    )


def test_large_results_are_right_where_they_are_staged_on_the_host(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
here = torch.randn(300_000)
there = here.to("npu")
results = [there + number for number in range(24)]  # each reuses staging memory of former ones
print(all(torch.equal(result.cpu(), here + number) for number, result in enumerate(results)))
for number in range(8):
    there.mul_(2).add_(results[number])
    here.mul_(2).add_(here.new_tensor(results[number].cpu()))
print(torch.equal(there.cpu(), here))
parts = [part + 1 for part in there.view(3, -1).unbind()]
print(torch.equal(torch.stack(parts).cpu(), here.view(3, -1) + 1))
"""
    assert fresh_python(code, BRINGUP_SIM_ISOLATED="1") == "True\nTrue\nTrue"


def test_process_with_pending_work_and_live_tensors_ends_cleanly(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
x = torch.empty(32 << 18, device="npu")
with torch.npu.stream(torch.npu.Stream()):
    for _ in range(50):
        y = x.clone()
print("end")
"""
    assert fresh_python(code) == "end"
