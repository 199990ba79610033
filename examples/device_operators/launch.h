// How this vendor's operators start a kernel: in stream order, by the driver, without torch. A
// vendor has functions of its own for this (a runtime library, <<<>>>); what is here is the
// simulator's, which runs functions of the host as its device code.
#pragma once

#include <bringup/driver.h>
#include <bringup/kernel.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace vendor {

// One launch and everything that it points at. Sizes and strides are in elements; memory of tensors
// is the device's, and must not go to another stream before this stream is done with it, which is
// what torch's allocators see to.
class Launch {
 public:
  explicit Launch(const char* operator_name) : name_(operator_name) {}

  Launch& tensor(void* data, DLDataType dtype, std::vector<int64_t> sizes,
                 std::vector<int64_t> strides);
  Launch& number(double value);
  Launch& integer(int64_t value);

  // Starts `kernel` on a stream of a device (its native handle). Throws std::runtime_error when the
  // driver refuses; what fails later is raised where somebody waits for the stream.
  void start(bringup_kernel_fn kernel, int32_t device, void* stream) &&;

 private:
  Launch& add(void* argument, bringup_arg_kind kind);

  struct Dims {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  std::string name_;
  std::deque<Dims> dims_;  // deques: what is pointed at must not move
  std::deque<DLTensor> tensors_;
  std::deque<double> numbers_;
  std::deque<int64_t> integers_;
  std::vector<void*> arguments_;
  std::vector<uint8_t> kinds_;
};

}  // namespace vendor
