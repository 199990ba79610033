#include "runtime/context.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "bringup/driver.h"
#include "runtime/error_slot.h"

namespace bringup::runtime {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kFirstChunk = 64 << 10;

std::atomic<ParallelFor> g_parallel_for{nullptr};
std::atomic<NativeHandle> g_native_handle{nullptr};
std::mutex g_message_mutex;  // threads of one kernel may fail at the same time

struct FreeChunk {
  void operator()(std::byte* chunk) const { std::free(chunk); }
};

// Rounds up to whole regions; 0 when that cannot be counted.
constexpr size_t rounded(size_t bytes) {
  if (bytes == 0) return kAlignment;
  if (bytes > SIZE_MAX - kAlignment) return 0;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::byte* allocate(size_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
}

// One thread's scratch memory: chunks that grow, handed out as a stack.
class Arena {
 public:
  size_t chunk() const { return current_; }
  size_t used() const { return used_; }
  void rewind(size_t chunk, size_t used) {
    current_ = chunk;
    used_ = used;
  }

  void* take(size_t bytes) {
    while (current_ < chunks_.size() && chunks_[current_].size - used_ < bytes) {
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
    std::unique_ptr<std::byte, FreeChunk> memory(allocate(size));
    if (memory == nullptr) return false;
    chunks_.push_back({std::move(memory), size});
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

int32_t ctx_native_handle(const bringup_ctx* ctx, int32_t kind, void** handle) {
  const NativeHandle implementation = g_native_handle.load(std::memory_order_acquire);
  if (implementation == nullptr || ctx->device.device_type == kDlCpu) return BRINGUP_UNSUPPORTED;
  return implementation(ctx->device, ctx->stream, kind, handle);
}

}  // namespace

struct alignas(kAlignment) HostContext::Region {
  Region* next;
};

void set_parallel_for(ParallelFor implementation) noexcept {
  g_parallel_for.store(implementation, std::memory_order_release);
}

void set_native_handle(NativeHandle implementation) noexcept {
  g_native_handle.store(implementation, std::memory_order_release);
}

HostContext::HostContext(DLDevice device, void* stream, int64_t block_index, int64_t block_count,
                         WorkspaceSource* workspace) noexcept
    : ctx_{sizeof(bringup_ctx),
           BRINGUP_KERNEL_ABI,
           stream,
           device,
           block_index,
           block_count,
           &HostContext::set_error,
           &HostContext::workspace,
           &ctx_parallel_for,
           this,
           &ctx_native_handle},
      error_slot_(&error_slot()),
      source_(workspace) {}

HostContext::~HostContext() { give_back(); }

void HostContext::give_back() noexcept {
  if (has_workspace_) arena().rewind(first_chunk_, first_used_);
  has_workspace_ = false;
  Region* region = foreign_.exchange(nullptr, std::memory_order_acquire);
  while (region != nullptr) {
    Region* next = region->next;
    std::free(region);
    region = next;
  }
}

void HostContext::set_error(const bringup_ctx* ctx, const char* message) {
  const auto* self = static_cast<const HostContext*>(ctx->opaque);
  std::lock_guard lock(g_message_mutex);
  try {
    self->error_slot_->assign(message != nullptr ? message : "");
  } catch (const std::bad_alloc&) {
    self->error_slot_->clear();  // the status still says that the kernel failed
  }
}

void* HostContext::workspace(const bringup_ctx* ctx, size_t bytes) {
  auto* self = static_cast<HostContext*>(ctx->opaque);
  const size_t whole = rounded(bytes);
  if (whole == 0) return nullptr;
  if (self->source_ != nullptr) return self->source_->take(whole);
  return self->error_slot_ == &error_slot() ? self->own_workspace(whole)
                                            : self->foreign_workspace(whole);
}

void* HostContext::own_workspace(size_t bytes) noexcept {
  if (!has_workspace_) {
    first_chunk_ = arena().chunk();
    first_used_ = arena().used();
    has_workspace_ = true;
  }
  try {
    return arena().take(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// A thread of the kernel's: its arena must not be used, for nothing there would rewind it.
void* HostContext::foreign_workspace(size_t bytes) noexcept {
  if (bytes > SIZE_MAX - sizeof(Region)) return nullptr;
  std::byte* memory = allocate(sizeof(Region) + bytes);
  if (memory == nullptr) return nullptr;
  auto* region = new (memory) Region{foreign_.load(std::memory_order_relaxed)};
  while (!foreign_.compare_exchange_weak(region->next, region, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
  return memory + sizeof(Region);
}

}  // namespace bringup::runtime
