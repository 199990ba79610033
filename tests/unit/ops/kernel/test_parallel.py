"""A kernel's `parallel_for` runs on libtorch's threads, as many as `torch.set_num_threads` says."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import kernel

from bringup import jit, ops

# (x, n) -> the number of the thread that did each of n pieces.
WHO = jit.Source(
    text="#include <sys/syscall.h>\n#include <unistd.h>\n"
    + kernel("""
      ctx->parallel_for(ctx, INT(1), 1, [](int64_t begin, int64_t end, void* user) {
        for (int64_t i = begin; i < end; ++i) static_cast<T*>(user)[i] = syscall(SYS_gettid);
      }, DATA(2));""").text,
    name="who.cpp",
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def who(define: Define) -> ops.KernelOperator:
    return define(
        "who(Tensor x, int n) -> Tensor",
        source=WHO,
        outputs=ops.empty("n", dtype=torch.int64),
        macros={"T": "int64_t"},
    )


@pytest.mark.parametrize("size", [1, 1 << 15], ids=["with the GIL", "without the GIL"])
def test_a_kernel_runs_on_as_many_threads_as_torch_has(who: ops.KernelOperator, size: int) -> None:
    x = torch.ones(size)
    for count in (3, 1, 2):
        torch.set_num_threads(count)
        for call in (who, who.overload):
            assert len(set(call(x, 6).tolist())) == count


def in_a_new_process(script: str) -> str:
    prologue = """
import torch
from bringup import ops
from tests.unit.ops.kernel.test_parallel import WHO
who = ops.kernel_op("bringup_test_parallel::who(Tensor x, int n) -> Tensor", source=WHO,
                    outputs=ops.empty("n", dtype=torch.int64), macros={"T": "int64_t"})
torch.set_num_threads(2)
assert len(set(who(torch.ones(1), 2).tolist())) == 2
"""
    return output_of(prologue + script)


def test_one_openmp_library_serves_torch_and_kernels() -> None:
    script = """
lines = open("/proc/self/maps").read().splitlines()
print(len({line.split()[-1] for line in lines if "omp" in line.rpartition("/")[2]}))
"""
    assert in_a_new_process(script) == "1"


def test_a_forked_child_runs_kernels_that_were_parallel_before() -> None:
    script = """
import multiprocessing
def run(results):
    results.send(len(set(who(torch.ones(1), 8).tolist())))
receive, send = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=run, args=(send,))
child.start()
assert receive.poll(240), "the child hangs"
print(receive.recv(), len(set(who(torch.ones(1), 8).tolist())))
child.join()
"""
    assert in_a_new_process(script) == "1 2"


def test_several_python_threads_may_run_parallel_kernels_at_once(who: ops.KernelOperator) -> None:
    torch.set_num_threads(2)
    x = torch.ones(1 << 15)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: who(x, 50).tolist(), range(100)))
    assert all(0 not in row for row in rows)
