#include "torch/graphs/run_locks.h"

#include <algorithm>
#include <array>
#include <functional>

#include "torch/devices/driver.h"
#include "torch/graphs/errors.h"

namespace bringup::torch_ext::graphs {

thread_local int RunLocks::depth_ = 0;

void RunLocks::refuse_to_wait() {
  throw CaptureFailure(
      "CapturedGraph.run inside an operator of another graph: a run in another thread has memory "
      "that this one needs, and waiting for it could last forever. Run graphs that run others from "
      "one thread at a time");
}

RunLocks::Stripe& RunLocks::stripe(size_t number) {
  static auto& all = *new std::array<Stripe, 256>;  // never destroyed: threads may outlive main
  return all[number % all.size()];
}

RunLocks::RunLocks(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
    if (address != 0) numbers_.push_back(address / 64 % 256);  // allocators align to 64 bytes
  }
  std::ranges::sort(numbers_);
  const auto repeated = std::ranges::unique(numbers_);
  numbers_.erase(repeated.begin(), repeated.end());
}

RunLocks::Held::Held(const RunLocks& run_locks) : run_locks_(run_locks) {
  locks_.reserve(run_locks.numbers_.size());
  for (const size_t number : run_locks.numbers_) locks_.push_back(lock(stripe(number).mutex));
}

void RunLocks::Held::order_before(c10::DeviceIndex device) const {
  for (const size_t number : run_locks_.numbers_) {
    const auto former = stripe(number).former.lock();
    if (former == nullptr) continue;
    if (device == former->device()) {
      former->order_before();
    } else {  // another graph's: it merely has the same stripe
      check_driver(former->wait(), "waiting for another graph's work");
    }
  }
}

void RunLocks::Held::release(const std::shared_ptr<const DeviceWork>& work) const {
  for (const size_t number : run_locks_.numbers_) stripe(number).former = work;
}

}  // namespace bringup::torch_ext::graphs
