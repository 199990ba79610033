// Metadata of a library of its own on tensors of the device, as the reference backend has it.
#include <torch/csrc/jit/serialization/pickler_helper.h>

namespace {

struct Own final : c10::BackendMeta {
  explicit Own(int given) : number(given) {}
  const int number;
};

c10::TensorImpl* impl_of(void* tensor) { return static_cast<c10::TensorImpl*>(tensor); }

const Own* own(c10::TensorImpl* tensor) {
  return dynamic_cast<const Own*>(tensor->get_backend_meta());
}

}  // namespace

extern "C" void mark(void* tensor, int number) {
  impl_of(tensor)->set_backend_meta(c10::make_intrusive<Own>(number));
}

extern "C" int marked(void* tensor) {
  const Own* found = own(impl_of(tensor));
  return found != nullptr ? found->number : 0;
}

// One number is saved: torch's files have names of flags.
extern "C" void save_marks() {
  using Flags = std::unordered_map<std::string, bool>;
  torch::jit::TensorBackendMetaRegistry(
      c10::DeviceType::PrivateUse1,
      [](const at::Tensor& tensor, Flags& flags) {
        const Own* found = own(tensor.unsafeGetTensorImpl());
        if (found != nullptr && found->number == 29) flags["format_29"] = true;
      },
      [](const at::Tensor& tensor, Flags& flags) {
        if (flags.count("format_29") != 0) mark(tensor.unsafeGetTensorImpl(), 29);
      });
}
