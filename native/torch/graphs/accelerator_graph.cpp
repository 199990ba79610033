#include "torch/graphs/accelerator_graph.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>

namespace bringup::torch_ext::graphs {
namespace {

namespace nb = nanobind;

const char* name_of(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return "thread_local";
    case at::GraphCaptureMode::Relaxed:
      return "relaxed";
    case at::GraphCaptureMode::Default:
    case at::GraphCaptureMode::Global:
      break;
  }
  return "global";
}

// Hands every call to bringup.graphs. Its exceptions go on as pybind11's, which torch's binding
// knows.
class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  AcceleratorGraph() {
    call([&] {
      graph_ = nb::module_::import_("bringup.graphs._accelerator").attr("AcceleratorGraph")();
    });
  }
  ~AcceleratorGraph() override {
    if (!nb::is_alive()) {
      static_cast<void>(graph_.release());
      return;
    }
    const nb::gil_scoped_acquire gil;
    graph_.reset();
  }

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    call([&] { graph_.attr("capture_begin")(name_of(mode), pool.second); });
  }
  void capture_end() override {
    call([&] { graph_.attr("capture_end")(); });
  }
  void instantiate() override {
    call([&] { graph_.attr("instantiate")(); });
  }
  void replay() override {
    call([&] { graph_.attr("replay")(); });
  }
  void reset() override {
    call([&] { graph_.attr("reset")(); });
  }
  at::MempoolId_t pool() const override {
    uint64_t id = 0;
    call([&] { id = nb::cast<uint64_t>(graph_.attr("pool")()); });
    return {0, id};
  }
  void enable_debug_mode() override {}  // a dump needs nothing that is not kept anyhow
  void debug_dump(const std::string& path) override {
    call([&] { graph_.attr("debug_dump")(path); });
  }

 private:
  template <class Body>
  static void call(Body&& body) {
    const nb::gil_scoped_acquire gil;
    try {
      body();
    } catch (nb::python_error& error) {
      error.restore();
      throw pybind11::error_already_set();
    }
  }

  nb::object graph_;
};

}  // namespace

void register_accelerator_graph(const std::string& device_name) {
  std::string key = device_name;  // as c10::DeviceTypeName spells it
  std::ranges::transform(key, key.begin(),
                         [](unsigned char letter) { return static_cast<char>(toupper(letter)); });
  if (at::GraphImplRegistry()->Has(key)) return;
  at::GraphImplRegistry()->Register(
      key, [](const at::GraphImplArgs&) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<AcceleratorGraph>();
      });
}

}  // namespace bringup::torch_ext::graphs

#else

namespace bringup::torch_ext::graphs {

void register_accelerator_graph(const std::string&) {}

}  // namespace bringup::torch_ext::graphs

#endif
