// An operator over torch's stable ABI: no C++ class of libtorch, so one binary goes on working when
// torch is updated.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <utility>
#include <vector>

#include "kernels.h"
#include "launch.h"

namespace vendor {
namespace {

using torch::stable::Tensor;

void add_tensor(Launch& launch, const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  launch.tensor(tensor.data_ptr(), DLDataType{2, 32, 1}, {sizes.begin(), sizes.end()},
                {strides.begin(), strides.end()});
}

Tensor hardswish_of_device(const Tensor& self) {
  STD_TORCH_CHECK(self.scalar_type() == torch::headeronly::ScalarType::Float,
                  "aten::hardswish: the device has a kernel for float32 only");
  Tensor out = torch::stable::empty_like(self);
  Launch launch("aten::hardswish");
  add_tensor(launch, self);
  add_tensor(launch, out);
  const int32_t device = self.get_device_index();
  const auto stream = torch::stable::accelerator::getCurrentStream(device);
  std::move(launch).start(&hardswish, device, stream.nativeHandle());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("hardswish", TORCH_BOX(&hardswish_of_device));
}

}  // namespace vendor
