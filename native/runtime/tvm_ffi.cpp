#include "runtime/tvm_ffi.h"

#include <dlfcn.h>

#include <cstddef>

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

}  // namespace

TvmRuntime::TvmRuntime(const Library& library) {
  find(library, "TVMFFIErrorMoveFromRaised", move_error_);
  find(library, "TVMFFIObjectDecRef", release_);
  find(library, "TVMFFIEnvSetStream", set_stream_);
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

void* TvmRuntime::set_stream(DLDevice device, void* stream) const {
  void* before = nullptr;
  if (set_stream_ != nullptr) set_stream_(device.device_type, device.device_id, stream, &before);
  return before;
}

}  // namespace bringup::runtime
