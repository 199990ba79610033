// Running host code on device tensors: inputs become CPU tensors, results become device tensors.
// With host-visible memory nothing is copied: an input is a CPU alias of the device memory, and
// while the object lives the CPU allocations of this thread are made in device memory, so a result
// is already where it belongs.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <utility>

#include "torch/common/allocation.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {

class HostCall final : AllocationTap {
 public:
  // Waits for the current stream of `device`, and raises what failed in it. Requires host-visible
  // memory.
  explicit HostCall(c10::DeviceIndex device);

  // The CPU alias of a device tensor; the same tensor or storage gives the same alias. Any other
  // tensor as it is.
  at::Tensor alias(const at::Tensor& tensor);

  // The device tensor for what the host code returned: the original of an alias, a view of its
  // storage, or a new device tensor. `result` must be the last reference but its holder's.
  at::Tensor adopt(const at::Tensor& result);

  // After the host code: carries a resize of an alias back to the device tensor that it stands for.
  void write_back();

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor alias;
  };
  struct Redirected {
    void* host;
    void* device;
  };

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;
  const Redirected* find_redirected(const void* host) const;
  at::DataPtr to_device(at::DataPtr&& data, size_t bytes) const;

  const c10::DeviceIndex device_;
  c10::SmallVector<Pair, 4> pairs_;
  c10::SmallVector<Redirected, 4> redirected_;
  AllocationTap* const former_tap_;
  TapScope scope_;
};

}  // namespace bringup::torch_ext
