// bringup::packed_linear(Tensor x, Tensor panels, Tensor? bias) -> Tensor
//
// x[m, k] times a frozen weight that lies in panels [n / 16, k, 16] (see panel_gemm.h), plus
// bias[n] -> [m, n].
#include "bringup/kernel.h"
#include "panel_gemm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

// A task is a few panels by a few rows, so that there are tasks enough for many threads.
constexpr int64_t kRowsPerTask = 48;
constexpr int64_t kPanelsPerTask = 4;
constexpr int64_t kWorthAThread = 262144;  // multiplications

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR, 2> x(args[0]);
  const bringup::View<const SCALAR, 3> panels(args[1]);
  if (panels.size(2) != kPanel || panels.size(1) != x.size(1)) {
    return bringup::fail(ctx, "panels must be [n / 16, k, 16] for x of [m, k]");
  }
  const auto* bias = bringup::is_none(args[2])
                         ? nullptr
                         : static_cast<const SCALAR*>(bringup::tensor(args[2]).data);
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[3]).data);
  const int64_t rows = x.size(0);
  const int64_t depth = x.size(1);
  const int64_t count = panels.size(0);
  const PanelProduct<SCALAR> product{x.data(), depth,          panels.data(), bias,
                                     out,      count * kPanel, depth};
  const int64_t row_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t panel_tasks = (count + kPanelsPerTask - 1) / kPanelsPerTask;
  const int64_t work =
      kPanelsPerTask * kPanel * depth * (rows < kRowsPerTask ? rows : kRowsPerTask);
  bringup::parallel_for(ctx, row_tasks * panel_tasks, 1 + kWorthAThread / (work + 1),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t task = begin; task < end; ++task) {
                            const int64_t part = task % row_tasks;
                            const int64_t first = task / row_tasks * kPanelsPerTask;
                            const int64_t last =
                                first + kPanelsPerTask < count ? first + kPanelsPerTask : count;
                            panel_product(product, rows * part / row_tasks,
                                          rows * (part + 1) / row_tasks, first, last);
                          }
                        });
  return 0;
}
