#include "runtime/context.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/error_slot.h"

namespace bringup::runtime {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kFirstChunk = 64 << 10;

std::atomic<ParallelFor> g_parallel_for{nullptr};

struct FreeChunk {
  void operator()(std::byte* chunk) const { std::free(chunk); }
};

// One thread's scratch memory: chunks that grow, handed out as a stack.
class Arena {
 public:
  struct Mark {
    size_t chunk;
    size_t used;
  };

  Mark mark() const { return {current_, used_}; }
  void rewind(Mark mark) {
    current_ = mark.chunk;
    used_ = mark.used;
  }

  void* take(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    while (current_ < chunks_.size() && used_ + bytes > chunks_[current_].size) {
      ++current_;
      used_ = 0;
    }
    if (current_ == chunks_.size() && !grow(bytes)) return nullptr;
    void* region = chunks_[current_].memory.get() + used_;
    used_ += bytes;
    return region;
  }

 private:
  struct Chunk {
    std::unique_ptr<std::byte, FreeChunk> memory;
    size_t size;
  };

  bool grow(size_t bytes) {
    size_t size = chunks_.empty() ? kFirstChunk : chunks_.back().size * 2;
    if (size < bytes) size = bytes;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    if (memory == nullptr) return false;
    chunks_.push_back({std::unique_ptr<std::byte, FreeChunk>(memory), size});
    used_ = 0;
    return true;
  }

  std::vector<Chunk> chunks_;
  size_t current_ = 0;
  size_t used_ = 0;
};

Arena& arena() {
  thread_local Arena arena;
  return arena;
}

// The live context of this thread: remembers where its workspace began, only once some was taken.
struct Scratch {
  Arena::Mark mark{};
  bool taken = false;
};
thread_local Scratch t_scratch;

void ctx_set_error(const bringup_ctx*, const char* message) {
  set_last_error(message != nullptr ? message : "");
}

void* ctx_workspace(const bringup_ctx*, size_t bytes) {
  if (!t_scratch.taken) {
    t_scratch.mark = arena().mark();
    t_scratch.taken = true;
  }
  return arena().take(bytes);
}

void ctx_parallel_for(const bringup_ctx*, int64_t n, int64_t grain,
                      void (*fn)(int64_t, int64_t, void*), void* user) {
  if (n <= 0) return;
  const ParallelFor implementation = g_parallel_for.load(std::memory_order_acquire);
  if (implementation == nullptr || n <= grain) {
    fn(0, n, user);
  } else {
    implementation(n, grain < 1 ? 1 : grain, fn, user);
  }
}

}  // namespace

void set_parallel_for(ParallelFor implementation) noexcept {
  g_parallel_for.store(implementation, std::memory_order_release);
}

HostContext::HostContext(DLDevice device, void* stream, int64_t block_index,
                         int64_t block_count) noexcept
    : ctx_{sizeof(bringup_ctx), BRINGUP_KERNEL_ABI, stream,        device,           block_index,
           block_count,         &ctx_set_error,     &ctx_workspace, &ctx_parallel_for, nullptr} {}

HostContext::~HostContext() {
  if (!t_scratch.taken) return;
  arena().rewind(t_scratch.mark);
  t_scratch.taken = false;
}

}  // namespace bringup::runtime
