#include "runtime/tvm_ffi.h"

#include <dlfcn.h>

#include <cstddef>
#include <vector>

#include "runtime/c_parameter.h"

namespace bringup::runtime {
namespace {

struct TvmObject {
  uint64_t reference_count;
  int32_t type;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct TvmBytes {
  const char* data;
  size_t size;
};

// What follows the header of an error object; more may come behind.
struct TvmError {
  TvmObject object;
  TvmBytes kind;
  TvmBytes message;
};

// The copy that the library is linked with, or else the one that the process has for everybody.
template <class Function>
void find(const Library& library, const char* name, Function& function) {
  void* found = library.find_symbol(name);
  function = reinterpret_cast<Function>(found != nullptr ? found : dlsym(RTLD_DEFAULT, name));
}

std::string text_of(const TvmBytes& bytes) { return std::string(bytes.data, bytes.size); }

// A tensor of the caller's for the runtime to hold until the call is over.
struct Borrowed {
  DLTensor tensor;
  void* context;
  void (*deleter)(Borrowed* self);
};

}  // namespace

const DLTensor& tensor_in(const TvmAny& returned) {
  const auto* bytes = static_cast<const std::byte*>(returned.pointer);
  return *reinterpret_cast<const DLTensor*>(bytes + sizeof(TvmObject));
}

TvmRuntime::TvmRuntime(const Library& library) {
  find(library, "TVMFFIErrorMoveFromRaised", move_error_);
  find(library, "TVMFFIObjectDecRef", release_);
  find(library, "TVMFFIEnvSetStream", set_stream_);
  find(library, "TVMFFIFunctionGetGlobal", global_);
  find(library, "TVMFFIFunctionCall", call_);
  find(library, "TVMFFITensorFromDLPack", from_dlpack_);
}

std::string TvmRuntime::take_error() const {
  if (move_error_ == nullptr) return "";
  void* handle = nullptr;
  move_error_(&handle);
  if (handle == nullptr) return "";
  const auto* error = static_cast<const TvmError*>(handle);
  std::string text = text_of(error->kind) + ": " + text_of(error->message);
  if (release_ != nullptr) release_(handle);
  return text;
}

std::string TvmRuntime::drop(const TvmAny& result) const {
  switch (result.type) {
    case TvmAny::kNone:
      return "";
    case TvmAny::kInt:
      return result.integer == 0 ? "" : std::to_string(result.integer);
    case TvmAny::kBool:
      return result.integer != 0 ? "true" : "false";
    case TvmAny::kFloat:
      return std::to_string(result.floating);
    default:
      break;
  }
  const std::string type = " (tvm-ffi type " + std::to_string(result.type) + ")";
  if (result.type < TvmAny::kFirstObject) return "a value" + type;
  if (release_ != nullptr) release_(const_cast<void*>(result.pointer));
  return "an object" + type;
}

void TvmRuntime::release(const TvmAny& object) const {
  if (object.type >= TvmAny::kFirstObject && release_ != nullptr) {
    release_(const_cast<void*>(object.pointer));
  }
}

TvmAny TvmRuntime::array(const bringup_list& list, TvmAny::Type element,
                         const char*& reason) const {
  constexpr TvmBytes kArray{"ffi.Array", 9};
  void* make = nullptr;
  TvmAny made = TvmAny::none();
  if (global_ == nullptr || call_ == nullptr || from_dlpack_ == nullptr ||
      global_(&kArray, &make) != 0) {
    reason = refuse("an Array is an object of tvm-ffi's runtime, which the library does not have");
    return made;
  }
  std::vector<TvmAny> items(static_cast<size_t>(list.size), TvmAny::none());
  bool failed = false;
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].type = element;
    if (element != TvmAny::kTensor) {
      items[i].integer = static_cast<const int64_t*>(list.data)[i];  // a double too, by its bits
      continue;
    }
    const DLTensor* tensor = static_cast<const DLTensor* const*>(list.data)[i];
    void* held = nullptr;
    if (tensor == nullptr) {
      items[i].type = TvmAny::kNone;
      continue;
    }
    auto* borrowed = new Borrowed{*tensor, nullptr, [](Borrowed* self) { delete self; }};
    failed = failed || from_dlpack_(borrowed, 0, 0, &held) != 0;
    items[i].pointer = held;
  }
  failed = failed || call_(make, items.data(), static_cast<int32_t>(items.size()), &made) != 0;
  if (failed) reason = refuse(take_error());
  for (const TvmAny& item : items) {
    if (item.pointer != nullptr) release(item);
  }
  release_(make);
  return made;
}

void* TvmRuntime::set_stream(DLDevice device, void* stream) const {
  void* before = nullptr;
  if (set_stream_ != nullptr) set_stream_(device.device_type, device.device_id, stream, &before);
  return before;
}

}  // namespace bringup::runtime
