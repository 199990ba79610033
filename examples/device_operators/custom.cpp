// Operators of the vendor's own, in three forms: forward only; forward and backward registered
// apart; both in one autograd::Function. Shapes for torch.compile (Meta) in C++ for two of them;
// the page registers the third one's in Python.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "kernels.h"
#include "tensors.h"

namespace vendor {
namespace {

void check_float(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == c10::kFloat, name, " takes float32, got ",
                              tensor.scalar_type());
}

void check_pair(const at::Tensor& grad, const at::Tensor& self, const char* name) {
  check_float(grad, name);
  check_float(self, name);
  TORCH_CHECK(grad.sizes() == self.sizes(), name, ": the gradient is ", grad.sizes(),
              ", the input ", self.sizes());
}

// --- the device's kernels

at::Tensor hard_threshold(const at::Tensor& self, double cut) {
  check_float(self, "vendor::hard_threshold");
  at::Tensor out = at::empty_like(self);
  Launch launch("vendor::hard_threshold");
  add_tensor(launch, self);
  launch.number(cut);
  add_tensor(launch, out);
  start(std::move(launch), &threshold, self.device());
  return out;
}

at::Tensor cube_forward(const at::Tensor& self) {
  check_float(self, "vendor::cube");
  at::Tensor out = at::empty_like(self);
  Launch launch("vendor::cube");
  add_tensor(launch, self);
  add_tensor(launch, out);
  start(std::move(launch), &cube, self.device());
  return out;
}

at::Tensor cube_gradient(const at::Tensor& grad, const at::Tensor& self) {
  check_pair(grad, self, "vendor::cube_backward");
  at::Tensor out = at::empty_like(self);
  Launch launch("vendor::cube_backward");
  for (const at::Tensor& tensor : {grad, self, out}) add_tensor(launch, tensor);
  start(std::move(launch), &cube_backward, self.device());
  return out;
}

at::Tensor softclip_forward(const at::Tensor& self, double limit) {
  check_float(self, "vendor::softclip");
  at::Tensor out = at::empty_like(self);
  Launch launch("vendor::softclip");
  add_tensor(launch, self);
  launch.number(limit);
  add_tensor(launch, out);
  start(std::move(launch), &softclip, self.device());
  return out;
}

at::Tensor softclip_gradient(const at::Tensor& grad, const at::Tensor& self, double limit) {
  check_pair(grad, self, "vendor::softclip_backward");
  at::Tensor out = at::empty_like(self);
  Launch launch("vendor::softclip_backward");
  add_tensor(launch, grad);
  add_tensor(launch, self);
  launch.number(limit);
  add_tensor(launch, out);
  start(std::move(launch), &softclip_backward, self.device());
  return out;
}

// --- gradients

// Calls the operator below autograd, so that the kernel of the device, of fake tensors or of a mode
// takes it from here.
at::Tensor call_softclip(const at::Tensor& self, double limit) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("vendor::softclip", "")
                             .typed<at::Tensor(const at::Tensor&, double)>();
  return op.call(self, limit);
}

at::Tensor call_softclip_backward(const at::Tensor& grad, const at::Tensor& self, double limit) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("vendor::softclip_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
  return op.call(grad, self, limit);
}

class Softclip : public torch::autograd::Function<Softclip> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& self,
                            double limit) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({self});
    context->saved_data["limit"] = limit;
    return call_softclip(self, limit);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor self = context->get_saved_variables()[0];
    const double limit = context->saved_data["limit"].toDouble();
    return {call_softclip_backward(gradients[0], self, limit), at::Tensor()};
  }
};

at::Tensor softclip_with_gradient(const at::Tensor& self, double limit) {
  return Softclip::apply(self, limit);
}

// --- shapes

at::Tensor like(const at::Tensor& self) { return at::empty_like(self); }
at::Tensor like_second(const at::Tensor&, const at::Tensor& self) { return at::empty_like(self); }
at::Tensor like_clipped(const at::Tensor& self, double) { return at::empty_like(self); }
at::Tensor like_second_clipped(const at::Tensor&, const at::Tensor& self, double) {
  return at::empty_like(self);
}

}  // namespace

// By this tag an operator says that its tags are complete: without nondeterministic_seeded it draws
// no random numbers, and captured graphs hold it.
const std::vector<at::Tag> kDrawsNothing = {at::Tag::pt2_compliant_tag};

TORCH_LIBRARY(vendor, m) {
  m.def("hard_threshold(Tensor self, float cut) -> Tensor");
  m.def("cube(Tensor self) -> Tensor", kDrawsNothing);
  m.def("cube_backward(Tensor grad, Tensor self) -> Tensor", kDrawsNothing);
  m.def("softclip(Tensor self, float limit) -> Tensor");
  m.def("softclip_backward(Tensor grad, Tensor self, float limit) -> Tensor");
}

TORCH_LIBRARY_IMPL(vendor, PrivateUse1, m) {
  m.impl("hard_threshold", &hard_threshold);
  m.impl("cube", &cube_forward);
  m.impl("cube_backward", &cube_gradient);
  m.impl("softclip", &softclip_forward);
  m.impl("softclip_backward", &softclip_gradient);
}

// A backward pass through these raises and names the operator; without this line torch would warn
// and give no gradient.
TORCH_LIBRARY_IMPL(vendor, AutogradPrivateUse1, m) {
  m.impl("hard_threshold", torch::autograd::autogradNotImplementedFallback());
  m.impl("cube_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("softclip_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("softclip", &softclip_with_gradient);
}

TORCH_LIBRARY_IMPL(vendor, Meta, m) {
  m.impl("cube", &like);
  m.impl("cube_backward", &like_second);
  m.impl("softclip", &like_clipped);
  m.impl("softclip_backward", &like_second_clipped);
}

}  // namespace vendor
