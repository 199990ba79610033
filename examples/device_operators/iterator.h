// A TensorIterator's operands as arguments of a launch: of one shape, inputs first.
#pragma once

#include <ATen/TensorIterator.h>
#include <c10/util/Exception.h>

#include <vector>

#include "tensors.h"

namespace vendor {

// Starts an elementwise kernel over everything that the iterator covers. Its strides are in bytes
// and its dimensions in an order of its own, the same for all operands.
inline void run(at::TensorIteratorBase& iterator, const char* name, bringup_kernel_fn kernel) {
  if (iterator.numel() == 0) return;
  Launch launch(name);
  const auto add = [&](int operand) {
    std::vector<int64_t> strides;
    for (const int64_t bytes : iterator.strides(operand)) {
      strides.push_back(bytes / static_cast<int64_t>(iterator.element_size(operand)));
    }
    launch.tensor(iterator.data_ptr(operand), dl_dtype(iterator.dtype(operand)),
                  iterator.shape().vec(), std::move(strides));
  };
  for (int i = iterator.noutputs(); i < iterator.ntensors(); ++i) {
    TORCH_CHECK(iterator.dtype(i) == iterator.dtype(0), name, ": the device's kernel wants ",
                iterator.dtype(0), " for all of its tensors, and got ", iterator.dtype(i));
    add(i);
  }
  for (int i = 0; i < iterator.noutputs(); ++i) add(i);
  start(std::move(launch), kernel, iterator.device(0));
}

}  // namespace vendor
