// Launches of the checks' device code (src/bringup/devices/driver_check_kernels.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver_check/context.h"

namespace bringup::driver_check {

// A module that goes back by itself.
class Module : Held {
 public:
  explicit Module(Context& context);  // skips the check where there is no file of kernels
  // From memory, by module_load_data.
  Module(Context& context, const std::vector<char>& data);
  ~Module();
  bringup_kernel_fn function(const char* name);
  // The same; NULL where the module has none of that name.
  bringup_kernel_fn find(const char* name);

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

// A launch of check_values(out, x, count, threads, factor, single, number), elementwise over int32:
// out += x * factor + `added`, which is single * number, a double where the device has any.
class ValuesWork {
 public:
  ValuesWork(Context& context, bringup_kernel_fn fn, uint8_t* out, uint8_t* x, int64_t count,
             int32_t factor, int32_t added, bringup_dim3 grid = {3, 1, 1},
             bringup_dim3 block = {8, 1, 1});
  const bringup_launch_values_args* launch() const { return &launch_; }
  void set_factor(int32_t factor) { values_[4] = {BRINGUP_VALUE_INT, 4, {.integer = factor}}; }
  void set_block(bringup_dim3 block) { launch_.block = block; }
  void set_grid(bringup_dim3 grid);
  // Says that its threads are independent.
  void set_work_items();
  void set_shared_bytes(uint32_t bytes) { launch_.shared_bytes = bytes; }

 private:
  bringup_value values_[7]{};
  bringup_launch_values_args launch_{};
};

// out += x * factor by `launch` of check_accumulate, or else by `launch_values` of check_values.
class Work {
 public:
  Work(Context& context, Module& module, uint8_t* out, uint8_t* x, int64_t count, int64_t factor,
       int64_t grid = 3);
  // The same with a kernel that fails; skips the check where the device code has none.
  static Work failing(Context& context, Module& module, uint8_t* memory, int64_t count);
  void launch(bringup_stream stream) const;
  void add_to(bringup_graph graph) const;
  // Of the graph's kernel; a status.
  int32_t update(bringup_graph graph, int32_t kernel) const;
  void set_factor(int64_t factor);
  const char* name() const;
  // Fails the check unless release was called so often, where there is something to release.
  void expect_released(int times, const std::string& when) const;

 private:
  Work(Context& context, bringup_kernel_fn fn, uint8_t* out, uint8_t* x, int64_t count,
       int64_t factor, int64_t grid);

  Context& context_;
  std::optional<Accumulate> launched_;
  std::optional<ValuesWork> values_;
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
