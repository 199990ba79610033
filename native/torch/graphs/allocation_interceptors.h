// The interceptors that lead allocations to the addresses of a captured graph: while it is
// captured, and when it is replayed.
#pragma once

#include <memory>
#include <vector>

#include "torch/common/allocation.h"
#include "torch/graphs/memory_pool.h"

namespace bringup::torch_ext::graphs {

// One allocation of an operator, as it must be answered on replay.
struct Allocation {
  void* address;
  size_t bytes;
  c10::Device device;
};

// Sends the capturing thread's allocations to the pool, and lists those of the operator that runs.
class RecordingInterceptor final : public AllocationInterceptor {
 public:
  explicit RecordingInterceptor(std::shared_ptr<Pool> pool);

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;

  void begin_operator(std::vector<Allocation>* list, Origin origin) {
    list_ = list;
    origin_ = origin;
    in_operator_ = true;
  }
  void end_operator() {
    list_ = nullptr;
    in_operator_ = false;
  }
  void set_paused(bool paused) { paused_ = paused; }

 private:
  std::shared_ptr<Pool> pool_;
  std::vector<Allocation>* list_ = nullptr;
  Origin origin_ = Origin::kUnseen;
  bool in_operator_ = false;
  bool paused_ = false;
};

// Answers an operator's allocations with the recorded addresses in the recorded order; what does
// not fit goes to the allocator below and counts as a miss.
class ReplayInterceptor final : public AllocationInterceptor {
 public:
  // `pool`: what it gives of a device keeps that, for code that may keep what it allocates.
  explicit ReplayInterceptor(std::shared_ptr<Pool> pool = nullptr) : pool_(std::move(pool)) {}

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;

  void begin_operator(const std::vector<Allocation>& list) {
    next_ = list.data();
    end_ = next_ + list.size();
    missed_ = false;
  }
  void end_operator() { next_ = end_ = nullptr; }
  // Whether the operator allocated exactly what it did when it was recorded. Ask before
  // end_operator().
  bool exact() const { return !missed_ && next_ == end_; }

 private:
  std::shared_ptr<Pool> pool_;
  const Allocation* next_ = nullptr;
  const Allocation* end_ = nullptr;
  bool missed_ = false;
};

}  // namespace bringup::torch_ext::graphs
