#include "torch/devices/metadata.h"

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_unsafe_view_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/view_native.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <unordered_map>
#include <utility>

#include "torch/devices/dtypes.h"
#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

using at::Tensor;

// Never changed, so that tensors in several threads can share it.
struct PackageMetadata final : c10::BackendMeta {
  explicit PackageMetadata(std::string given) : json(std::move(given)) {}
  const std::string json;
};

const PackageMetadata* package_metadata(const Tensor& tensor) {
  return dynamic_cast<const PackageMetadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

Tensor view_dtype(const Tensor& self, at::ScalarType dtype) {
  check_dtype(dtype, self.device().index());
  return at::native::view_dtype(self, dtype);
}

// A kernel whose result keeps the metadata of its first argument.
template <auto kKernel>
struct Keeping;
template <class... Args, Tensor (*kKernel)(const Tensor&, Args...)>
struct Keeping<kKernel> {
  static Tensor call(const Tensor& self, Args... args) {
    return with_metadata_of(self, kKernel(self, std::move(args)...));
  }
};

// torch's files have room for names of flags alone.
constexpr std::string_view kSaved = "bringup.metadata:";

// One pair of functions for a device type and a process: what a library registered before goes on.
void register_serialization() {
  using torch::jit::BackendMetaPtr;
  using Flags = std::unordered_map<std::string, bool>;
  auto& slot =
      torch::jit::GetBackendMetaSerialization()[static_cast<size_t>(c10::DeviceType::PrivateUse1)];
  const auto former = slot.value_or(std::pair<BackendMetaPtr, BackendMetaPtr>());
  const auto save = [former](const Tensor& tensor, Flags& flags) {
    if (former.first) former.first(tensor, flags);
    const std::string json = metadata_of(tensor);
    if (!json.empty()) flags[std::string(kSaved) + json] = true;
  };
  const auto load = [former](const Tensor& tensor, Flags& flags) {
    for (const auto& [name, set] : flags) {
      if (name.starts_with(kSaved)) set_metadata(tensor, name.substr(kSaved.size()));
    }
    std::erase_if(flags, [](const auto& flag) { return flag.first.starts_with(kSaved); });
    if (former.second && !flags.empty()) former.second(tensor, flags);
  };
  slot = std::pair<BackendMetaPtr, BackendMetaPtr>(save, load);
}

}  // namespace

at::Tensor with_metadata_of(const at::Tensor& source, at::Tensor result) {
  if (C10_LIKELY(source.unsafeGetTensorImpl()->get_backend_meta() == nullptr)) return result;
  if (!source.is_privateuseone() || !result.is_privateuseone()) return result;
  const auto kept = source.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  result.unsafeGetTensorImpl()->set_backend_meta(kept->clone(kept));
  return result;
}

std::string metadata_of(const at::Tensor& tensor) {
  const PackageMetadata* found = package_metadata(tensor);
  return found != nullptr ? found->json : "";
}

void set_metadata(const at::Tensor& tensor, std::string json) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK(impl->get_backend_meta() == nullptr || package_metadata(tensor) != nullptr,
              "the tensor has metadata of another library (c10::BackendMeta), which takes the place"
              " that devices.set_metadata has");
  if (json.empty()) {
    if (impl->get_backend_meta() != nullptr) impl->set_backend_meta(nullptr);
    return;
  }
  impl->set_backend_meta(c10::make_intrusive<PackageMetadata>(std::move(json)));
}

// The kernels of views and copies that keep it; what torch.save and torch.load do with it.
void register_metadata() {
  static auto* library = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("as_strided", &Keeping<&at::native::as_strided_tensorimpl>::call);
  library->impl("view", &Keeping<&at::native::view>::call);
  library->impl("view.dtype", &Keeping<&view_dtype>::call);
  library->impl("_reshape_alias", &Keeping<&at::native::_reshape_alias>::call);
  library->impl("_unsafe_view", &Keeping<&at::native::_unsafe_view>::call);
  library->impl("alias", &Keeping<&at::native::alias>::call);
  library->impl("detach", &Keeping<&at::native::detach>::call);
  library->impl("clone", &Keeping<&at::native::clone>::call);
  library->impl("_to_copy", &Keeping<&at::native::_to_copy>::call);
  register_serialization();
}

}  // namespace bringup::torch_ext
