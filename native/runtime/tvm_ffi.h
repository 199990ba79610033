// What calling an exported function takes of tvm-ffi's C ABI (tvm/ffi/c_api.h, 0.1), without it.
#pragma once

#include <cstdint>
#include <string>

#include "bringup/kernel.h"
#include "runtime/loader.h"

namespace bringup::runtime {

struct TvmAny {
  enum Type : int32_t {
    kNone = 0,
    kInt = 1,
    kBool = 2,
    kFloat = 3,
    kOpaquePointer = 4,
    kDataType = 5,
    kDevice = 6,
    kDLTensor = 7,
    kRawText = 8,
    kFirstObject = 64,  // counted objects from here on
    kTensor = 70,
  };
  static TvmAny none() { return {kNone, 0, {0}}; }

  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    double floating;
    const void* pointer;
    DLDataType dtype;
  };
};

using TvmFunction = int (*)(void* handle, const TvmAny* args, int32_t count, TvmAny* result);

// What a library needs of tvm-ffi's runtime; all null when it does not link it.
class TvmRuntime {
 public:
  TvmRuntime() = default;
  explicit TvmRuntime(const Library& library);

  // The error that the last call on this thread has set: "kind: message".
  std::string take_error() const;
  // Releases what a function returned, and says what it was; empty for nothing and for status 0.
  std::string drop(const TvmAny& result) const;
  // The elements of a list as an Array of the runtime, which release() gives back. None, with a
  // reason by refuse(), where the library has no runtime or that makes none.
  TvmAny array(const bringup_list& list, TvmAny::Type element, const char*& reason) const;
  void release(const TvmAny& object) const;
  // Makes `stream` the current one of `device` for this thread; gives the one before.
  void* set_stream(DLDevice device, void* stream) const;

 private:
  void (*move_error_)(void** error) = nullptr;
  int (*release_)(void* object) = nullptr;
  int (*global_)(const void* name, void** function) = nullptr;
  int (*call_)(void* function, TvmAny* args, int32_t count, TvmAny* result) = nullptr;
  int (*from_dlpack_)(void* tensor, int32_t aligned, int32_t contiguous, void** made) = nullptr;
  int (*set_stream_)(int32_t device_type, int32_t device_id, void* stream, void** before) = nullptr;
};

// What a returned Tensor (kTensor) describes.
const DLTensor& tensor_in(const TvmAny& returned);

}  // namespace bringup::runtime
