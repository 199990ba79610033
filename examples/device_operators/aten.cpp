// Operators that torch has already, for the device: TORCH_LIBRARY_IMPL(aten, PrivateUse1). What is
// registered here wins over the kit's fallback, whichever came first.
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include "iterator.h"
#include "kernels.h"
#include "tensors.h"

namespace vendor {
namespace {

void start_relu(const at::Tensor& self, const at::Tensor& out) {
  const char* const name = "aten::relu";
  const auto kernel = checked(relu_kernel(dl_dtype(self.scalar_type())), name, self.scalar_type());
  Launch launch(name);
  add_tensor(launch, self);
  add_tensor(launch, out);
  start(std::move(launch), kernel, self.device());
}

at::Tensor relu(const at::Tensor& self) {
  at::Tensor out = at::empty_like(self);
  start_relu(self, out);
  return out;
}

at::Tensor& relu_(at::Tensor& self) {
  start_relu(self, self);
  return self;
}

// A structured operator is implemented by its out form alone: torch checks the arguments, promotes
// nothing, allocates the result and calls this for maximum(a, b), too. A user's own out= is resized
// and its memory looked at by the iterator.
at::Tensor& maximum_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const c10::ScalarType type = at::result_type(self, other);
  const at::Tensor x = self.to(out.device(), type);  // a number is a tensor on cpu
  const at::Tensor y = other.to(out.device(), type);
  at::TensorIterator iterator = at::TensorIterator::borrowing_binary_op(out, x, y);
  const char* const name = "aten::maximum.out";
  run(iterator, name, checked(maximum_kernel(dl_dtype(type)), name, type));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("relu", &relu);
  m.impl("relu_", &relu_);
  m.impl("maximum.out", &maximum_out);
}

}  // namespace vendor
