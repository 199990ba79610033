// Striped locks around the runs of graphs that share memory: one buffer may be the input of several
// graphs, or the result of one and the input of the next.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "torch/graphs/device_graph.h"
#include "torch/graphs/memory_pool.h"

namespace bringup::torch_ext::graphs {

// The locks that one graph's runs take. Each storage has the stripe that its address hashes to, so
// graphs that have nothing in common may wait for each other too.
class RunLocks {
 public:
  // The inputs and results of the graph.
  explicit RunLocks(const std::vector<at::Tensor>& tensors);

  // While this thread runs nodes of a graph: one of them may run another graph.
  [[nodiscard]] static auto inside() {
    ++depth_;
    return c10::make_scope_exit([] { --depth_; });
  }

  static bool is_inside() { return depth_ > 0; }

  // Waits for the lock. A thread that is inside a run does not: the holder may wait for
  // what that run has. CaptureFailure then.
  template <class Mutex>
  static std::unique_lock<Mutex> lock(Mutex& mutex) {
    if (depth_ == 0) return std::unique_lock(mutex);
    std::unique_lock now(mutex, std::try_to_lock);
    if (!now.owns_lock()) refuse_to_wait();
    return now;
  }

  // All these locks, on the host; a run within a run gets those that it has.
  class Held {
   public:
    explicit Held(const RunLocks& run_locks);
    // What is enqueued from here on in the current stream comes after the graph's own work and that
    // of all former holders.
    void order_after_former(const DeviceWork& own) const;
    // The next holder comes after this work too, which came after that of all former ones.
    void release(const std::shared_ptr<const DeviceWork>& work) const;

   private:
    const RunLocks& run_locks_;
    std::vector<std::unique_lock<std::recursive_mutex>> locks_;
  };

 private:
  struct Stripe {
    std::recursive_mutex mutex;
    std::weak_ptr<const DeviceWork> former;  // gone with its graph, which waits for it
  };

  static Stripe& stripe_of(uintptr_t address);
  [[noreturn]] static void refuse_to_wait();

  static thread_local int depth_;

  std::vector<Stripe*> stripes_;  // ascending: all take them in this order
};

// While it lives its thread alone runs a graph of the pool, or captures one. Waits for others as
// RunLocks::lock does. CaptureFailure where this thread has the turn already.
class PoolTurn {
 public:
  explicit PoolTurn(std::shared_ptr<MemoryPool> pool);
  ~PoolTurn();
  PoolTurn(const PoolTurn&) = delete;
  PoolTurn& operator=(const PoolTurn&) = delete;

  static void check(const MemoryPool& pool);

 private:
  std::shared_ptr<MemoryPool> pool_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace bringup::torch_ext::graphs
