// A launch with arguments of its own, as a device keeps them in a graph.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bringup/driver.h"

namespace bringup::sim {

class LaunchCopy {
 public:
  // Copies all that the launch points at, but what its tensors hold. It owns nothing of `launch`.
  explicit LaunchCopy(const bringup_launch& launch);
  LaunchCopy& operator=(LaunchCopy&&) = delete;

  const bringup_launch& get() const noexcept { return launch_; }

 private:
  void* copy(const void* argument, uint8_t kind);
  DLTensor* copy(const DLTensor* tensor);
  bringup_list* copy_numbers(const bringup_list* list);
  bringup_list* copy_tensors(const bringup_list* list);
  int64_t* copy(const int64_t* values, int64_t count);

  bringup_launch launch_;
  std::string name_;
  std::vector<uint8_t> kinds_;
  std::vector<void*> args_;
  // Deques: what is pointed at must not move.
  std::deque<std::vector<int64_t>> numbers_;  // doubles too, by their bits
  std::deque<std::string> strings_;
  std::deque<DLTensor> tensors_;
  std::deque<std::vector<DLTensor*>> items_;
  std::deque<bringup_list> lists_;
};

}  // namespace bringup::sim
