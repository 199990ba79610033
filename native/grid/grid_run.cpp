#include "grid/grid_run.h"

#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "grid/fiber.h"

namespace bringup::grid {
namespace {

constexpr size_t kSharedAlignment = 64;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using SharedMemory = std::unique_ptr<void, Free>;

SharedMemory shared_memory(uint32_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t size = (size_t{bytes} + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  SharedMemory memory(std::aligned_alloc(kSharedAlignment, size));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// The threads of one block. A fiber runs threads one after the other; one that comes to a barrier
// stays there, and another fiber goes on with the threads that have not begun. So a block without
// barriers needs one fiber, whatever its size.
class Block {
 public:
  Block(GridRun& run, FiberPool& fibers, void* shared)
      : run_(run), fibers_(fibers), shared_(shared) {}

  void run_threads(bringup_index block_idx) {
    block_idx_ = block_idx;
    if (count_ == 1) {  // needs no fiber: it never waits for another
      Runner alone{this, nullptr, {}};
      return run_thread(alone, 0);
    }
    next_ = 0;
    while (next_ < count_) resume(start());
    // A barrier is passed once all that have not returned are there.
    while (!waiting_.empty()) {
      for (Runner* runner : std::exchange(waiting_, {})) resume(*runner);
    }
    used_ = 0;
  }

 private:
  struct Runner {
    Block* block;
    Fiber* fiber;
    bringup_position position;
  };

  Runner& start() {
    if (used_ == runners_.size()) {
      runners_.push_back(std::make_unique<Runner>(Runner{this, nullptr, {}}));
    }
    Runner& runner = *runners_[used_];
    runner.fiber = &fibers_.at(used_++);
    runner.fiber->begin(&run_fiber, &runner);
    return runner;
  }

  void resume(Runner& runner) {
    runner.fiber->resume();
    if (failure_ == nullptr) return;
    // The other fibers are left where they wait: nothing can make them return.
    waiting_.clear();
    used_ = 0;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  static void run_fiber(void* given) {
    Runner& runner = *static_cast<Runner*>(given);
    Block& block = *runner.block;
    try {
      while (block.next_ < block.count_) block.run_thread(runner, block.next_++);
    } catch (...) {
      block.failure_ = std::current_exception();
    }
  }

  void run_thread(Runner& runner, uint64_t number) {
    const bringup_index& dim = run_.block;
    const auto x = static_cast<uint32_t>(number % dim.x);
    const auto y = static_cast<uint32_t>(number / dim.x % dim.y);
    const auto z = static_cast<uint32_t>(number / dim.x / dim.y);
    runner.position = {sizeof(bringup_position), block_idx_, run_.grid, {x, y, z}, dim,
                       run_.shared_bytes,        shared_,    &barrier,  &runner};
    run_.arguments.set_first(&runner.position);
    run_.arguments.call(run_.function);
  }

  static void barrier(const bringup_position* at) {
    auto* runner = at != nullptr ? static_cast<Runner*>(at->opaque) : nullptr;
    if (runner == nullptr || at != &runner->position) {
      throw std::runtime_error("barrier() was called with another position than the thread's own");
    }
    if (runner->block->run_.independent) {
      throw std::runtime_error(
          "barrier() was called by one of work_items=, which wait for nothing; a kernel whose "
          "threads wait for each other has grid= and block=");
    }
    if (runner->fiber == nullptr) return;
    if (!runner->fiber->running()) {
      throw std::runtime_error("barrier() was called with the position of another thread");
    }
    runner->block->waiting_.push_back(runner);
    runner->fiber->suspend();
  }

  GridRun& run_;
  FiberPool& fibers_;
  void* const shared_;
  const uint64_t count_ = uint64_t{run_.block.x} * run_.block.y * run_.block.z;
  bringup_index block_idx_{};
  uint64_t next_ = 0;  // the thread that begins next
  size_t used_ = 0;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<Runner*> waiting_;
  std::exception_ptr failure_;
};

}  // namespace

void run_grid(GridRun run) {
  const SharedMemory shared = shared_memory(run.shared_bytes);
  // Not the host thread's for good: a kernel may start a grid of its own.
  FiberPool fibers;
  Block block(run, fibers, shared.get());
  for (uint32_t z = 0; z < run.grid.z; ++z) {
    for (uint32_t y = 0; y < run.grid.y; ++y) {
      for (uint32_t x = 0; x < run.grid.x; ++x) block.run_threads({x, y, z});
    }
  }
}

}  // namespace bringup::grid
