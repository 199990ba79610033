// Operators as torch's own C++ interface makes them: one that adds into a new tensor
// (TORCH_LIBRARY), and one that multiplies and knows its derivative (autograd::Function). Built by
// benchmarks/_op_peers.py against the torch that is installed.
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Operation>
at::Tensor each(const at::Tensor& x, const at::Tensor& y, Operation operation) {
  TORCH_CHECK(x.sizes() == y.sizes() && x.is_contiguous() && y.is_contiguous() &&
                  x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat,
              "expected two contiguous float32 tensors of one shape");
  at::Tensor out = at::empty_like(x);
  const auto* a = x.const_data_ptr<float>();
  const auto* b = y.const_data_ptr<float>();
  auto* result = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) result[i] = operation(a[i], b[i]);
  return out;
}

at::Tensor add(const at::Tensor& x, const at::Tensor& y) {
  return each(x, y, [](float a, float b) { return a + b; });
}

at::Tensor product(const at::Tensor& x, const at::Tensor& y) {
  return each(x, y, [](float a, float b) { return a * b; });
}

struct Mul : torch::autograd::Function<Mul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, y});
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("bringup_benchmark_cpp::mul", "")
                               .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
    return op.call(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous();  // that of a sum, for one, is expanded
    return {product(grad, saved[1]), product(grad, saved[0])};
  }
};

at::Tensor mul_autograd(const at::Tensor& x, const at::Tensor& y) { return Mul::apply(x, y); }

}  // namespace

TORCH_LIBRARY(bringup_benchmark_cpp, library) {
  library.def("add(Tensor x, Tensor y) -> Tensor");
  library.def("mul(Tensor x, Tensor y) -> Tensor");
}
TORCH_LIBRARY_IMPL(bringup_benchmark_cpp, CPU, library) {
  library.impl("add", &add);
  library.impl("mul", &product);
}
TORCH_LIBRARY_IMPL(bringup_benchmark_cpp, Autograd, library) { library.impl("mul", &mul_autograd); }

// Says that the operators are there.
extern "C" int op_peers() { return 2; }
