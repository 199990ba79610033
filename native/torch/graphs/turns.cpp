#include "torch/graphs/turns.h"

#include <algorithm>
#include <array>
#include <functional>

#include "torch/devices/driver.h"
#include "torch/graphs/errors.h"

namespace bringup::torch_ext::graphs {

thread_local int Turns::depth_ = 0;

void Turns::refuse_to_wait() {
  throw CaptureFailure(
      "CapturedGraph.run inside an operator of another graph: a run in another thread has memory "
      "that this one needs, and waiting for it could last forever. Run graphs that run others from "
      "one thread at a time");
}

Turns::Turn& Turns::turn(size_t number) {
  static auto& all = *new std::array<Turn, 256>;  // never destroyed: threads may outlive main
  return all[number % all.size()];
}

Turns::Turns(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
    if (address != 0) numbers_.push_back(address / 64 % 256);  // allocators align to 64 bytes
  }
  std::ranges::sort(numbers_);
  const auto repeated = std::ranges::unique(numbers_);
  numbers_.erase(repeated.begin(), repeated.end());
}

Turns::Held::Held(const Turns& turns) : turns_(turns) {
  locks_.reserve(turns.numbers_.size());
  for (const size_t number : turns.numbers_) locks_.push_back(lock(turn(number).mutex));
}

void Turns::Held::order_before(c10::DeviceIndex device) const {
  for (const size_t number : turns_.numbers_) {
    const auto former = turn(number).former.lock();
    if (former == nullptr) continue;
    if (device == former->device()) {
      former->order_before();
    } else {  // another graph's: it merely has the same turn
      check_driver(former->wait(), "waiting for another graph's work");
    }
  }
}

void Turns::Held::leave(const std::shared_ptr<const DeviceWork>& work) const {
  for (const size_t number : turns_.numbers_) turn(number).former = work;
}

}  // namespace bringup::torch_ext::graphs
