#include "torch/ops/small_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <bit>

#include "engine/util/forever.h"
#include "torch/common/allocation.h"

namespace bringup::torch_ext {
namespace {

// Blocks of 64, 128, 256 and 512 bytes.
constexpr size_t kSmallest = 64;
constexpr int kClasses = 4;
constexpr size_t kLargest = kSmallest << (kClasses - 1);
constexpr int kKept = 32;  // of each size, in each thread

#if defined(__SANITIZE_ADDRESS__)
std::atomic<bool> g_enabled{false};  // the sanitizer sees what is used after it was freed
#else
std::atomic<bool> g_enabled{true};
#endif

struct Blocks {
  std::array<void*, kKept> kept;
  int count;
};

// Without constructor and destructor, so that it can be read when a thread's objects are gone
// already, and reading it is one load.
struct ThreadPool {
  std::array<Blocks, kClasses> classes;
  bool open;  // between the first use and the end of the thread
};
thread_local ThreadPool t_pool{};

// Gives a thread's blocks back at its end.
struct PoolOwner {
  PoolOwner() { t_pool.open = true; }
  ~PoolOwner() {
    t_pool.open = false;
    for (Blocks& blocks : t_pool.classes) {
      while (blocks.count > 0) c10::free_cpu(blocks.kept[static_cast<size_t>(--blocks.count)]);
    }
  }
};

// Whether the thread has a pool; makes it unless the thread has ended it.
bool open_pool() {
  static thread_local PoolOwner owner;
  return t_pool.open;
}

constexpr int class_of(size_t bytes) {
  return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest);
}

template <int Class>
void release(void* block) {
  Blocks& blocks = t_pool.classes[Class];
  if (t_pool.open && blocks.count < kKept && g_enabled.load(std::memory_order_relaxed)) {
    blocks.kept[static_cast<size_t>(blocks.count++)] = block;
  } else {
    c10::free_cpu(block);
  }
}
constexpr std::array<c10::DeleterFnPtr, kClasses> kRelease = {&release<0>, &release<1>, &release<2>,
                                                              &release<3>};

class OutputAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || bytes > kLargest || !g_enabled.load(std::memory_order_relaxed) ||
        current_interceptor() != nullptr || c10::memoryProfilingEnabled() ||
        !(t_pool.open || open_pool())) {
      return c10::GetCPUAllocator()->allocate(bytes);
    }
    const int number = class_of(bytes);
    Blocks& blocks = t_pool.classes[static_cast<size_t>(number)];
    void* block = blocks.count > 0 ? blocks.kept[static_cast<size_t>(--blocks.count)]
                                   : c10::alloc_cpu(kSmallest << number);
    return {block, block, kRelease[static_cast<size_t>(number)], c10::Device(c10::kCPU)};
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

}  // namespace

c10::Allocator* output_allocator() { return &forever<OutputAllocator>(); }

int pooled_blocks() noexcept {
  int count = 0;
  for (const Blocks& blocks : t_pool.classes) count += blocks.count;
  return count;
}

void set_output_pool(bool enabled) noexcept {
#if !defined(__SANITIZE_ADDRESS__)
  g_enabled = enabled;
#else
  static_cast<void>(enabled);
#endif
}

}  // namespace bringup::torch_ext
