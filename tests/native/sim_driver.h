// What the simulator's tests share: the driver itself, and kernels that are plain functions here.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bringup/driver.h"

namespace sim_test {

inline const bringup_driver& driver() {
  static const bringup_driver* driver = [] {
    void* library = dlopen(SIM_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get = reinterpret_cast<bringup_driver_get_fn>(dlsym(library, "bringup_driver_get"));
    return get(BRINGUP_DRIVER_ABI);
  }();
  return *driver;
}

inline std::string last_error() { return driver().last_error(); }

// Device memory that is freed with its holder.
class Memory {
 public:
  explicit Memory(size_t bytes, int32_t device = 0) : device_(device) {
    if (driver().mem_alloc(device, bytes, &address_) != BRINGUP_OK)
      throw std::runtime_error(last_error());
  }
  ~Memory() { driver().mem_free(device_, address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* get() const { return address_; }

 private:
  int32_t device_;
  void* address_ = nullptr;
};

class Stream {
 public:
  explicit Stream(int32_t device = 0) { driver().stream_create(device, 0, &stream_); }
  ~Stream() { driver().stream_destroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bringup_stream get() const { return stream_; }

 private:
  bringup_stream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(int32_t timing = 0) { driver().event_create(0, timing, &event_); }
  ~Event() { driver().event_destroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bringup_event get() const { return event_; }

 private:
  bringup_event event_ = nullptr;
};

// A host function that holds its stream until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> reached{false};

  static void wait(void* self) {
    auto* gate = static_cast<Gate*>(self);
    gate->reached = true;
    gate->reached.notify_all();
    gate->open.wait(false);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

// One launch of `fn` over one int64 vector and one integer, with the memory it needs.
struct Launch {
  int64_t extent[2];
  DLTensor tensor{};
  int64_t number;
  void* args[2];
  uint8_t kinds[2] = {BRINGUP_ARG_TENSOR, BRINGUP_ARG_INT};
  std::atomic<int> released{0};
  bringup_launch launch{};

  Launch(bringup_kernel_fn fn, void* data, int64_t size, int64_t value, int64_t grid = 1)
      : extent{size, 1}, number(value), args{&tensor, &number} {
    tensor = DLTensor{data, {12, 0}, 1, {0, 64, 1}, &extent[0], &extent[1], 0};
    launch.struct_size = sizeof(launch);
    launch.nargs = 2;
    launch.args = args;
    launch.kinds = kinds;
    launch.fn = fn;
    launch.grid = grid;
    launch.name = "test::kernel";
    launch.owner = this;
    launch.release = [](void* self) { ++static_cast<Launch*>(self)->released; };
  }
  Launch(const Launch&) = delete;
};

// Adds its number to every element of its block's share.
inline int32_t add_number(void** args, int32_t, const bringup_ctx* ctx) {
  const auto* tensor = static_cast<const DLTensor*>(args[0]);
  auto* data = static_cast<int64_t*>(tensor->data);
  for (int64_t i = ctx->block_index; i < tensor->shape[0]; i += ctx->block_count) {
    data[i] += *static_cast<const int64_t*>(args[1]);
  }
  return 0;
}

// Fails with its number as status.
inline int32_t fail(void** args, int32_t, const bringup_ctx* ctx) {
  ctx->set_error(ctx, "the number is wrong");
  return static_cast<int32_t>(*static_cast<const int64_t*>(args[1]));
}

inline std::vector<int64_t> read(const Memory& memory, size_t count,
                                 bringup_stream stream = nullptr) {
  std::vector<int64_t> values(count);
  driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, values.data(), 0, memory.get(),
                      count * sizeof(int64_t), stream);
  driver().stream_synchronize(0, stream);
  return values;
}

}  // namespace sim_test
