#include "torch/graphs/run_locks.h"

#include <algorithm>
#include <array>

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

RunLocks::Stripe& RunLocks::stripe_of(uintptr_t address) {
  static auto& all = *new std::array<Stripe, 256>;  // never destroyed: threads may outlive main
  return all[address / 64 % all.size()];            // allocators align to 64 bytes
}

RunLocks::RunLocks(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
    if (address != 0) stripes_.push_back(&stripe_of(address));
  }
  std::ranges::sort(stripes_);
  const auto repeated = std::ranges::unique(stripes_);
  stripes_.erase(repeated.begin(), repeated.end());
}

RunLocks::Held::Held(const RunLocks& run_locks) : run_locks_(run_locks) {
  locks_.reserve(run_locks.stripes_.size());
  for (Stripe* stripe : run_locks.stripes_) locks_.push_back(lock(stripe->mutex));
}

void RunLocks::Held::order_after_former(const DeviceWork& own) const {
  own.order_before();
  const DeviceWork* last = &own;  // most stripes have one former holder, mostly this graph
  for (const Stripe* stripe : run_locks_.stripes_) {
    const auto former = stripe->former.lock();
    if (former == nullptr || former.get() == &own || former.get() == last) continue;
    last = former.get();
    if (own.device() == former->device()) {
      former->order_before();
    } else {  // another graph's: it merely has the same stripe
      check_driver(former->wait(), "waiting for another graph's work");
    }
  }
}

void PoolTurn::check(const MemoryPool& pool) {
  if (pool.runner.load() != std::this_thread::get_id()) return;
  throw CaptureFailure(
      "CapturedGraph.run: another graph that has the same memory pool is in the middle of a run, "
      "and this one cannot run inside of it");
}

PoolTurn::PoolTurn(std::shared_ptr<MemoryPool> pool) : pool_(std::move(pool)) {
  check(*pool_);
  lock_ = RunLocks::lock(pool_->run_mutex);
  pool_->runner.store(std::this_thread::get_id());
}

PoolTurn::~PoolTurn() { pool_->runner.store(std::thread::id()); }

void RunLocks::Held::release(const std::shared_ptr<const DeviceWork>& work) const {
  for (Stripe* stripe : run_locks_.stripes_) stripe->former = work;
}

}  // namespace bringup::torch_ext::graphs
