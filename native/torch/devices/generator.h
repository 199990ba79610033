// Random numbers of a device. Random operators run on the host, so a device's generator is a CPU
// generator of its own under the device's name: seeding one device neither disturbs another one nor
// the CPU.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>

namespace bringup::torch_ext {

class DriverGenerator final : public c10::GeneratorImpl {
 public:
  explicit DriverGenerator(c10::DeviceIndex device);
  DriverGenerator(c10::DeviceIndex device, at::Generator host);

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_offset(uint64_t offset) override { host_.set_offset(offset); }
  uint64_t get_offset() const override { return host_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // What a kernel on the host draws from.
  const at::Generator& host() const noexcept { return host_; }

 private:
  DriverGenerator* clone_impl() const override;

  at::Generator host_;
};

// The generator that operators of `device` use when they are given none.
const at::Generator& default_generator(c10::DeviceIndex device);

// The host generator behind a device's generator; raises for another device's.
at::Generator host_generator(const at::Generator& generator, c10::DeviceIndex device);

// Lets a CPU kernel that takes no generator (native_dropout) draw from a device's default
// generator: while this lives, torch's default CPU generator goes on where the device's stopped.
// One at a time.
class BorrowedCpuGenerator {
 public:
  explicit BorrowedCpuGenerator(c10::DeviceIndex device);
  ~BorrowedCpuGenerator();
  BorrowedCpuGenerator(const BorrowedCpuGenerator&) = delete;
  BorrowedCpuGenerator& operator=(const BorrowedCpuGenerator&) = delete;

 private:
  at::Generator device_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace bringup::torch_ext
