// Copies between host and device and within the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace bringup::torch_ext {

struct OperatorKernel;

// A call of the device's kernel of an operator.
struct NativeCall {
  const OperatorKernel* kernel;
  std::vector<c10::IValue> arguments;
};

// A copy within the device by its kernel of the functional copy, in any layout and dtype. Nothing
// where it has none, or the copy is no such one.
std::optional<NativeCall> native_copy(const at::Tensor& source, const at::Tensor& target);

// A CPU tensor with the same values, sizes and strides, through linear copies only.
at::Tensor copy_to_host(const at::Tensor& device_tensor);

// The same for several tensors of a device with one wait, in its current stream.
class HostCopies {
 public:
  explicit HostCopies(c10::DeviceIndex device);
  HostCopies& operator=(HostCopies&&) = delete;
  ~HostCopies();  // waits for what nothing has waited for

  // What it holds is there after wait(). `pinned`: in memory from which it can go back without a
  // wait, also where it is small.
  at::Tensor start(const at::Tensor& device_tensor, bool pinned = false);
  // Raises what failed in the stream. Nothing where no copy was started.
  void wait();

 private:
  const c10::Stream stream_;
  std::vector<at::Storage> pending_;  // the host's side, which may end only when the copies did
};

}  // namespace bringup::torch_ext
