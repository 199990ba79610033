"""Unloading: what nothing holds is closed, and nothing is closed under anybody."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.jit.support import run

from bringup import jit, ops
from bringup.errors import CompileError

SCALE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), y(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) y(i) = 3 * x(i);
  return 0;
}
"""


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_kernel_that_nothing_holds_is_closed_and_loaded_again(
    root: Path, source: jit.Source
) -> None:
    binary = jit.compile(source, macros={"N": 4712})  # no other test has it loaded
    first = binary.kernel_id
    assert is_mapped(binary.path)
    done = jit.cache().unload()
    assert binary.key in done.closed
    assert not is_mapped(binary.path)
    x = np.zeros(2, np.float32)
    run(binary, x)
    assert x.tolist() == [4712, 4712]
    assert binary.kernel_id != first


def test_what_was_unloaded_may_be_pruned(root: Path, source: jit.Source) -> None:
    binary = jit.compile(source, macros={"N": 4711})
    _ = binary.kernel_id
    assert jit.cache().clear().in_use == (binary.key,)
    jit.cache().unload()
    assert jit.cache().clear().removed == (binary.key,)
    with pytest.raises(CompileError, match=r"removed from the cache before it was loaded"):
        _ = binary.kernel_id


def test_an_operator_keeps_its_kernel(root: Path) -> None:
    scale = ops.kernel_op(
        "unload_test::scale(Tensor x) -> Tensor",
        source=jit.Source(text=SCALE),
        outputs=ops.empty_like("x"),
    )
    x = torch.ones(4)
    scale(x)
    (entry,) = jit.cache().entries()
    done = jit.cache().unload()
    assert entry.key in done.held
    assert entry.key not in done.closed
    assert scale(x).tolist() == [3, 3, 3, 3]
    assert jit.cache().clear().in_use == (entry.key,)


def test_unloading_while_kernels_are_loaded_and_run_harms_nobody(
    root: Path, source: jit.Source
) -> None:
    binaries = [jit.compile(source, macros={"N": n}) for n in range(3)]
    wrong: list[str] = []
    stop = threading.Event()

    def work(scale: int) -> None:
        operator = ops.kernel_op(
            f"unload_test::race{scale}(Tensor x) -> Tensor",
            source=jit.Source(text=SCALE.replace("3 *", f"{scale} *")),
            outputs=ops.empty_like("x"),
        )
        for _ in range(50):
            for binary in binaries:
                if binary.kernel_id == 0:
                    wrong.append("no id")
            if operator(torch.ones(2)).tolist() != [scale, scale]:
                wrong.append("another result")

    def unload() -> None:
        while not stop.is_set():
            jit.cache().unload()

    workers = [threading.Thread(target=work, args=(n,)) for n in (5, 7)]
    unloader = threading.Thread(target=unload)
    for thread in (*workers, unloader):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    unloader.join()
    assert wrong == []
