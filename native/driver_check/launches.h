// The device code of the checks (src/bringup/devices/driver_check_kernels.cpp): what a launch of it
// needs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "driver_check/context.h"

namespace bringup::driver_check {

// A module that goes back by itself.
class Module : Held {
 public:
  explicit Module(Context& context);  // skips the check where there is no file of kernels
  ~Module();
  bringup_kernel_fn function(const char* name);

 private:
  void* handle_ = nullptr;
};

// check_accumulate(out, x, factor): out += x * factor, elementwise over int32.
class Accumulate {
 public:
  Accumulate(bringup_kernel_fn fn, uint8_t* out, const uint8_t* x, int64_t count, int64_t factor,
             int64_t grid = 3);
  const bringup_launch* launch() const { return &launch_; }
  int released() const { return *released_; }
  void set_factor(int64_t factor) { factor_ = factor; }

 private:
  int64_t count_;
  int64_t stride_ = 1;
  int64_t factor_;
  DLTensor out_{};
  DLTensor x_{};
  void* args_[3];
  std::shared_ptr<std::atomic<int>> released_ = std::make_shared<std::atomic<int>>(0);
  bringup_launch launch_{};
};

// Device memory of two arrays with their first content, and the stream that it came in.
struct Arrays {
  Arrays(Context& context, const Bytes& sums, const Bytes& values);
  Bytes result() const { return context.download(0, out.data(), out.bytes(), stream); }

  Context& context;
  const Memory out;
  const Memory x;
  const Stream stream;
};

// Skips the check where there is no file of device code.
void require_kernels(Context& context);

// int32 values, and their bytes.
Bytes integers(size_t count, int32_t first, int32_t step);
Bytes accumulated(const Bytes& out, const Bytes& x, int32_t factor);

}  // namespace bringup::driver_check
