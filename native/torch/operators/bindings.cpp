// bringup._native._torch.operators: what src/bringup/ops needs to register kernels for operators
// that exist.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "torch/module.h"
#include "torch/operators/operator_kernel.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

// What Python holds; the kernel itself lives for ever.
struct OperatorKernelHandle {
  OperatorKernel* kernel;
};

OperatorKernelHandle register_operator(const std::string& name, const std::string& overload,
                                       OperatorKernelKind kind, const std::vector<int>& strided,
                                       bool takes_views, bool random, nb::object plan,
                                       std::optional<OperatorKernelHandle> behind,
                                       size_t most_listed) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  auto made = std::make_unique<OperatorKernel>(handle, kind, strided, random);
  made->takes_views = takes_views;
  made->most_listed = most_listed;
  made->compile = plan.release().ptr();
  return {behind ? &put_in_front(*behind->kernel, std::move(made))
                 : &register_operator_kernel(std::move(made))};
}

}  // namespace

void bind_operators(nanobind::module_& module) {
  nb::enum_<OperatorKernelKind>(module, "Kind")
      .value("pointwise", OperatorKernelKind::kPointwise)
      .value("reduction", OperatorKernelKind::kReduction)
      .value("raw", OperatorKernelKind::kRaw);
  nb::class_<OperatorKernelHandle>(module, "OperatorKernel")
      .def_prop_rw(
          "enabled", [](const OperatorKernelHandle& self) { return self.kernel->enabled.load(); },
          [](const OperatorKernelHandle& self, bool enabled) {
            self.kernel->enabled.store(enabled);
          })
      .def("remove",
           [](const OperatorKernelHandle& self) { remove_operator_kernel(*self.kernel); });
  module.def("register", &register_operator, nb::kw_only(), nb::arg("name"), nb::arg("overload"),
             nb::arg("kind"), nb::arg("strided"), nb::arg("takes_views"), nb::arg("random"),
             nb::arg("plan"), nb::arg("behind"), nb::arg("most_listed"));
}

}  // namespace bringup::torch_ext
