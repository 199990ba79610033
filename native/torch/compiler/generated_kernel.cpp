#include "torch/compiler/generated_kernel.h"

#include <c10/util/SmallVector.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/common/errors.h"
#include "torch/common/tensor_caster.h"
#include "torch/devices/allocator.h"
#include "torch/devices/driver.h"

namespace nb = nanobind;

namespace bringup::torch_ext::compiler {
namespace {

constexpr const char* kCapsule = "bringup.generated_kernel";
constexpr size_t kInline = 32;  // values of most kernels

// Lives as long as the process: what is launched refers to it.
struct GeneratedKernel {
  LastingKernel lasting;
  std::string name;
  std::string parameters;  // "p" address, "d" and "l" a host tensor's number, "i" an integer
  std::vector<std::string> faults;
  int64_t threads;
  int64_t elements;
  int64_t most_blocks;
};

using Values = c10::SmallVector<bringup_value, kInline>;

bringup_value address_value(const void* address) {
  bringup_value made{BRINGUP_VALUE_ADDRESS, sizeof(void*), {}};
  made.value.address = const_cast<void*>(address);
  return made;
}

bringup_value integer_value(int64_t integer) {
  bringup_value made{BRINGUP_VALUE_INT, sizeof integer, {}};
  made.value.integer = integer;
  return made;
}

bringup_value number_value(double number) {
  bringup_value made{BRINGUP_VALUE_FLOAT, sizeof number, {}};
  made.value.number = number;
  return made;
}

const at::Tensor& tensor_of(const GeneratedKernel& kernel, PyObject* object) {
  TORCH_CHECK(THPVariable_Check(object), kernel.name, ": expected a tensor, got ",
              Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

// Appends one argument; `device` becomes that of the first tensor there.
void add(const GeneratedKernel& kernel, char kind, PyObject* object, Values& values,
         c10::DeviceIndex& device) {
  switch (kind) {
    case 'p': {
      const at::Tensor& tensor = tensor_of(kernel, object);
      TORCH_CHECK(tensor.is_privateuseone(), kernel.name,
                  ": expected a tensor of the device, got one on ", tensor.device());
      if (device < 0) device = tensor.device().index();
      values.push_back(address_value(tensor.const_data_ptr()));
      return;
    }
    case 'd':
      values.push_back(number_value(tensor_of(kernel, object).item().toDouble()));
      return;
    case 'l':
      values.push_back(integer_value(tensor_of(kernel, object).item().toLong()));
      return;
    default: {
      const int64_t integer = PyLong_AsLongLong(object);
      if (integer == -1 && PyErr_Occurred() != nullptr) raise_current_python_error();
      values.push_back(integer_value(integer));
    }
  }
}

// The two words in which a kernel reports the first thing that went wrong, and what reads them in
// stream order.
class Fault {
 public:
  Fault(const GeneratedKernel& kernel, c10::DeviceIndex device)
      : kernel_(kernel), device_(device), words_(allocate_block(sizeof(Words), device)) {
    const std::string what = "clearing the fault words of " + kernel.name;
    static const Words none{};  // the copy may read it at any time
    check_driver(
        active_driver()->copy_async(BRINGUP_HOST_TO_DEVICE, device, words_.get(), -1, none.data(),
                                    sizeof none, current_driver_stream(device)),
        what.c_str());
  }

  const void* address() const { return words_.get(); }

  // After the launch.
  void watch() {
    const bringup_driver& driver = *active_driver();
    const bringup_stream stream = current_driver_stream(device_);
    auto report = std::make_unique<Report>(Report{&kernel_, device_, {}});
    check_driver(driver.copy_async(BRINGUP_DEVICE_TO_HOST, -1, report->words.data(), device_,
                                   words_.get(), sizeof(Words), stream),
                 kernel_.name.c_str());
    if (driver.host_func == nullptr) {
      check_driver(wait_for_stream(device_, stream), kernel_.name.c_str());
      read(report.get());
      return;
    }
    check_driver(driver.host_func(device_, stream, &take, report.get()), kernel_.name.c_str());
    report.release();  // `take` frees it
  }

 private:
  using Words = std::array<int64_t, 2>;
  struct Report {
    const GeneratedKernel* kernel;
    c10::DeviceIndex device;
    Words words;
  };

  static void read(const Report* report) {
    const auto [number, value] = report->words;
    if (number < 1 || number > static_cast<int64_t>(report->kernel->faults.size())) return;
    std::string words = report->kernel->faults[static_cast<size_t>(number - 1)];
    const size_t place = words.find("{}");
    if (place != std::string::npos) words.replace(place, 2, std::to_string(value));
    report_host_failure(report->device,
                        words + " (in the compiled kernel " + report->kernel->name + ")");
  }

  static void take(void* user) {
    const std::unique_ptr<Report> report(static_cast<Report*>(user));
    read(report.get());
  }

  const GeneratedKernel& kernel_;
  c10::DeviceIndex device_;
  at::DataPtr words_;
};

void launch(const GeneratedKernel& kernel, int64_t work, Values& values, c10::DeviceIndex device) {
  const int64_t blocks =
      std::clamp<int64_t>((work + kernel.elements - 1) / kernel.elements, 1, kernel.most_blocks);
  const auto start = [&] {
    launch_plain_values(kernel.lasting, values.data(), values.size(), blocks, kernel.threads,
                        device);
  };
  if (kernel.faults.empty()) return start();
  Fault fault(kernel, device);
  values.push_back(address_value(fault.address()));
  start();
  fault.watch();
}

// work, then as kernel.parameters says.
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  try {
    const auto& kernel = *static_cast<const GeneratedKernel*>(PyCapsule_GetPointer(self, kCapsule));
    TORCH_CHECK(static_cast<size_t>(count) == kernel.parameters.size() + 1, kernel.name,
                ": expected ", kernel.parameters.size() + 1, " arguments, got ", count);
    const int64_t work = PyLong_AsLongLong(args[0]);
    if (work == -1 && PyErr_Occurred() != nullptr) return nullptr;
    Values values;
    c10::DeviceIndex device = -1;
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      add(kernel, kernel.parameters[i], args[i + 1], values, device);
    }
    TORCH_CHECK(device >= 0, kernel.name, ": none of its arguments is a tensor of the device");
    if (work > 0) launch(kernel, work, values, device);
    Py_RETURN_NONE;
  } catch (...) {
    set_python_error_from_current_exception();
    return nullptr;
  }
}

PyMethodDef definition{"generated_kernel",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)), METH_FASTCALL,
                       "Starts a generated kernel: (work, *arguments)."};

nb::object make(uint64_t id, std::string name, std::string parameters,
                std::vector<std::string> faults, int64_t threads, int64_t elements,
                int64_t most_blocks) {
  auto made = std::make_unique<GeneratedKernel>();
  made->lasting.kernel = runtime::KernelTable::instance().get(id);
  made->name = std::move(name);
  made->lasting.name = made->name.c_str();
  made->parameters = std::move(parameters);
  made->faults = std::move(faults);
  made->threads = threads;
  made->elements = elements;
  made->most_blocks = most_blocks;
  const nb::object capsule = nb::steal(PyCapsule_New(made.release(), kCapsule, nullptr));
  if (!capsule.is_valid()) throw nb::python_error();
  return nb::steal(PyCFunction_New(&definition, capsule.ptr()));
}

}  // namespace

void bind_generated_kernels(nb::module_& module) {
  module.def("generated_kernel", &make, nb::kw_only(), nb::arg("kernel"), nb::arg("name"),
             nb::arg("parameters"), nb::arg("faults"), nb::arg("threads"), nb::arg("elements"),
             nb::arg("most_blocks"));
}

}  // namespace bringup::torch_ext::compiler
