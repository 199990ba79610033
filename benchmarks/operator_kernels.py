"""Operators of torch with a kernel of `devices.kernel` on the simulated NPU, against cpu.

The dispatch is the point, so tensors have one element. A call on the device hands its work to the
simulator's thread and does not wait for it; cpu's computes. Host-visible memory, one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks._harness import Row, compare
from bringup import devices, jit

ADD = "template <class T> T add(T a, T b, T alpha) { return a + alpha * b; }"
RELU = "template <class T> T relu(T x) { return x > T(0) ? x : x != x ? x : T(0); }"
LAYER_NORM = """
#include <cmath>
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const DLTensor& x = bringup::tensor(args[0]);
  int64_t n = 1;
  for (const int64_t size : bringup::list<int64_t>(args[1])) n *= size;
  const int64_t rows = bringup::numel(bringup::tensor(args[6]));
  const auto* in = static_cast<const float*>(x.data);
  auto* out = static_cast<float*>(bringup::tensor(args[5]).data);
  for (int64_t r = 0; r < rows; ++r, in += n, out += n) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += in[i], squares += double(in[i]) * in[i];
    const double mean = sum / n;
    const double rstd = 1 / std::sqrt(squares / n - mean * mean + bringup::scalar<double>(args[4]));
    static_cast<float*>(bringup::tensor(args[6]).data)[r] = float(mean);
    static_cast<float*>(bringup::tensor(args[7]).data)[r] = float(rstd);
    for (int64_t i = 0; i < n; ++i) out[i] = float((in[i] - mean) * rstd);
  }
  return 0;
}
"""


def run(*, quick: bool = False) -> list[Row]:
    device = devices.load_driver("sim").device_name
    x, there = torch.ones(1, 1), torch.ones(1, 1, device=device)
    kernels = [
        devices.kernel("aten::add", source=_source(ADD), kind="pointwise"),
        devices.kernel("aten::relu", source=_source(RELU), kind="pointwise"),
        devices.kernel(
            "aten::native_layer_norm",
            source=_source(LAYER_NORM),
            kind="raw",
            supports=(torch.float32,),
        ),
    ]
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "add": (lambda: torch.add(there, there), lambda: torch.add(x, x)),
        "relu": (lambda: torch.relu(there), lambda: torch.relu(x)),
        "layer_norm": (lambda: torch.layer_norm(there, (1,)), lambda: torch.layer_norm(x, (1,))),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return [
                compare(
                    f"native kernel, {name} of 1",
                    ours,
                    peer,
                    peer_name=f"torch.{name} on cpu",
                    budget=1.1,
                    rounds=7 if quick else 61,
                )
                for name, (ours, peer) in calls.items()
            ]
    finally:
        torch.set_num_threads(threads)
        for kernel in kernels:
            kernel.close()


def _source(text: str) -> jit.Source:
    return jit.Source(text=text, name="kernel.cpp")
