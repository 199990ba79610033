"""Rows: one call of a kernel operator on small tensors of an NVIDIA GPU, up to the launch, and the
same calls as a CUDA graph. Not measured without a GPU and nvcc.

Peers are torch's own operator, an operator of `torch.library.custom_op` that calls it, and the
calls one by one.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks._harness import Row, compare, missing
from bringup import jit, ops

_CALLS = 50
_ADD = """
#include "bringup/cuda.h"
__global__ void add(const float* x, const float* y, float* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 1> x(args[0]), y(args[1]);
  const bringup::View<float, 1> out(args[2]);
  add<<<static_cast<uint32_t>((x.size(0) + 255) / 256), 256, 0, bringup::cuda_stream(ctx)>>>(
      x.data(), y.data(), out.data(), x.size(0));
  return bringup::cuda_status(ctx);
}
"""
_PEERS = ("torch.add", "torch.library.custom_op")


def _operator() -> ops.KernelOperator:
    return ops.kernel_op(
        "bringup_benchmark_cuda::add(Tensor x, Tensor y) -> Tensor",
        source=jit.Source(text=_ADD, name="add.cu"),
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("x", "y"),
    )


def _graph_row(add: ops.KernelOperator, x: torch.Tensor, y: torch.Tensor, rounds: int) -> Row:
    def step() -> torch.Tensor:
        result = x
        for _ in range(_CALLS):
            result = add(result, y)
        return result

    def waited(call) -> None:
        call()
        torch.cuda.current_stream().synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return compare(
        f"{_CALLS} calls on a GPU, replayed by torch.cuda.CUDAGraph",
        partial(waited, graph.replay),
        partial(waited, step),
        peer_name="called",
        rounds=rounds,
    )


def run(*, quick: bool = False) -> list[Row]:
    """The rows; with the ratio to each peer on the same tensors."""
    name, rounds = "operator call on a GPU", 11 if quick else 61
    reason = "" if torch.cuda.is_available() else "there is no NVIDIA GPU"
    if reason := reason or jit.toolchain("cuda").problem:
        return [missing(name, peer, reason) for peer in _PEERS]
    x, y = torch.randn(2, 16, device="cuda").unbind()
    add = _operator()

    @torch.library.custom_op("bringup_benchmark_cuda::theirs", mutates_args=())
    def theirs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)

    assert torch.equal(add(x, y), x + y)
    rows = [
        compare(name, partial(add, x, y), partial(peer, x, y), peer_name=peer_name, rounds=rounds)
        for peer_name, peer in zip(_PEERS, (torch.add, theirs), strict=True)
    ]
    rows.append(_graph_row(add, x, y, rounds))
    add.undefine()
    return rows
