// Running host code on device tensors: inputs become CPU tensors, results become device tensors. In
// alias mode nothing is copied: an input is a CPU alias of the device memory, and while the object
// lives the CPU allocations of this thread are made in device memory, so a result is already where
// it belongs. In copy mode (memory that the host cannot see, or host code that may keep what it is
// given) inputs and results are copied.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "torch/common/allocation.h"
#include "torch/devices/copies.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {

// The one device that all tensors of a call must share. A CPU kernel would not notice a mixture.
class CommonDevice {
 public:
  // CPU scalars go with any device; `cpu_too`: so do other CPU tensors, on purpose.
  void see(const at::Tensor& tensor, bool cpu_too) {
    const c10::Device device = tensor.device();
    if (device.type() == kDriverDevice) {
      if (found_.has_value() && *found_ != device) stranger_ = device;
      if (!found_.has_value()) found_ = device;
    } else if (tensor.dim() > 0 && !cpu_too) {
      stranger_ = device;
    }
  }
  bool known() const { return found_.has_value(); }
  // The device seen, or else the current one. Raises when another was seen too, naming both.
  template <class Name>
  c10::Device get(const Name& operator_name) const {
    const c10::Device device = found_.value_or(c10::Device(kDriverDevice, current_device()));
    TORCH_CHECK(!stranger_.has_value(), "expected all tensors of ", operator_name,
                " to be on the same device, but found ", device, " and ", *stranger_);
    return {kDriverDevice, checked_device(device.index())};
  }
  void take(c10::Device device) { found_ = device; }

 private:
  std::optional<c10::Device> found_;
  std::optional<c10::Device> stranger_;
};

class HostCall final : AllocationInterceptor {
 public:
  // kStage: copies too, for host code that keeps nothing it is given. What it allocates lies in
  // pinned memory, so that results go to the device without waiting.
  enum class Mode { kAlias, kCopy, kStage };

  // Alias mode waits for the current stream of `device`, and raises what failed in it; it requires
  // host-visible memory.
  HostCall(c10::DeviceIndex device, Mode mode);

  // The CPU stand-in for a device tensor; the same tensor gives the same one. Stand-ins are in one
  // storage where the tensors are, in copy mode if one is written that overlaps another, or may do
  // so once it is resized. Any other tensor as it is. `written`: the host code may write to it;
  // `resized`: and resize it, as results that it is given.
  at::Tensor stand_in(const at::Tensor& tensor, bool written, bool resized = false);

  // Before the host code, which reads the stand-ins: waits for the copies of all of them at once,
  // and raises what failed in the stream.
  void wait() {
    if (mode_ != Mode::kAlias) copies_.wait();
  }

  // After the host code: brings what it wrote, and resizes of what it wrote, to the device tensors.
  void write_back();

  // The device tensor for what the host code returned: the original of a stand-in, a view of its
  // storage, or a new device tensor. Changes the storage of `result`, so that nothing else may hold
  // it.
  at::Tensor adopt(const at::Tensor& result);

  // What was copied for the call until now.
  uint64_t bytes_to_host() const { return bytes_to_host_; }
  uint64_t bytes_to_device() const { return bytes_to_device_; }

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor host;
    bool written;
    bool resized = false;
    bool in_whole = false;  // in memory as large as the storage, where it lies in the original
  };
  struct Redirected {
    void* host;
    void* device;
  };

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;
  at::DataPtr allocate_staged(size_t bytes, c10::Device device, c10::Allocator& base);
  const Redirected* find_redirected(const void* host) const;
  at::DataPtr to_device(at::DataPtr&& data, size_t bytes);
  at::Tensor new_alias(const at::Tensor& tensor) const;
  void share_if_written(const at::Tensor& tensor);
  void write_alias_back(const Pair& pair);
  void write_copy_back(const Pair& pair);
  at::Tensor copy_to_device(const at::Tensor& tensor);

  // Tensors of layout sparse_coo are two dense ones (host_sparse.cpp).
  at::Tensor sparse_stand_in(const at::Tensor& tensor, bool written);
  void write_sparse_back(const Pair& pair);
  at::Tensor adopt_sparse(const at::Tensor& result);

  const c10::DeviceIndex device_;
  const Mode mode_;
  uint64_t bytes_to_host_ = 0;
  uint64_t bytes_to_device_ = 0;
  HostCopies copies_;
  c10::SmallVector<Pair, 4> pairs_;
  c10::SmallVector<Pair, 1> sparse_pairs_;
  c10::SmallVector<Redirected, 4> redirected_;
  AllocationInterceptor* const former_interceptor_;
  const InterceptorScope scope_;
};

// Aliases where the driver allows them.
inline HostCall::Mode host_call_mode() noexcept {
  return driver_facts().host_visible ? HostCall::Mode::kAlias : HostCall::Mode::kStage;
}

}  // namespace bringup::torch_ext
