"""Operators on DTensors whose parts lie in two processes, which talk by gloo."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch has no gloo",
)

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from bringup import jit, ops

SCALE_ROWS = '''
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<const float, 1> by(args[1]);
  const bringup::View<float, 2> out(args[2]);
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j) out(i, j) = x(i, j) * by(j);
  return 0;
}
'''
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def scale_rows(name):
    return ops.kernel_op(
        f"sharded::{name}(Tensor x, Tensor by) -> Tensor",
        source=jit.Source(text=SCALE_ROWS, name="scale_rows.cpp"),
        outputs=ops.empty_like("x"),
        checks=[ops.shape("by", "x.shape[1]"), ops.dtype("x", torch.float32),
                ops.same_dtype("x", "by")],
    )

def by_rows_or_columns(x, by):
    return [([Replicate()], [Replicate(), Replicate()]), ([Shard(0)], [Shard(0), Replicate()]),
            ([Shard(1)], [Shard(1), Shard(0)])]

# the gradient of x is scaled in the same way
scale, backward = scale_rows("scale_rows"), scale_rows("scale_rows_backward")
scale.register_backward(backward.qualified_name, save=("by",), gradients=("x",))
for operator in (scale, backward):
    operator.register_sharding(by_rows_or_columns)

@ops.custom_op("sharded::column_sums")
def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)

column_sums.register_fake(lambda x: x.new_empty(x.shape[1]))

@column_sums.register_sharding
def _(x):
    return [([Replicate()], [Replicate()]), ([Partial()], [Shard(0)]), ([Shard(0)], [Shard(1)])]

torch.manual_seed(0)
x, by = torch.randn(4, 6), torch.randn(6)
for placement, local in ((Shard(0), (2, 6)), (Shard(1), (4, 3))):
    parts = distribute_tensor(x, mesh, [placement]).requires_grad_()
    whole = distribute_tensor(by, mesh, [Replicate()])
    scaled = scale(parts, whole)
    assert scaled.placements == (placement,), scaled.placements
    assert tuple(scaled.to_local().shape) == local
    torch.testing.assert_close(scaled.full_tensor(), x * by)
    scaled.sum().backward()
    torch.testing.assert_close(parts.grad.full_tensor(), by.expand(4, 6))
    torch.testing.assert_close(column_sums(parts.detach()).full_tensor(), x.sum(0))
partial = column_sums(distribute_tensor(x, mesh, [Shard(0)]))
assert partial.placements == (Partial(),), partial.placements
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # how gloo's threads end with the interpreter is not what is tested
"""


def test_sharded_operators_compute_and_differentiate_in_two_processes(tmp_path: Path) -> None:
    """A kernel with a backward operator, and a Python function whose parts are summed."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(PROGRAM))
    argv = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen(
            [*argv, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)[-6000:]
