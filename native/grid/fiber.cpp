#include "grid/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

// Sanitizers follow a thread's stack, and need a call when it is another one.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace bringup::grid {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;  // touched pages only take memory

size_t guard_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  if (sanitizer_fiber_ != nullptr) __tsan_destroy_fiber(sanitizer_fiber_);
#endif
  if (stack_ != nullptr) munmap(stack_, guard_bytes() + kStackBytes);
}

void Fiber::begin(void (*function)(void* user), void* user) {
  if (stack_ == nullptr) {
    void* memory = mmap(nullptr, guard_bytes() + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack_ = static_cast<std::byte*>(memory);
    mprotect(stack_, guard_bytes(), PROT_NONE);
  }
#if defined(__SANITIZE_THREAD__)
  if (sanitizer_fiber_ == nullptr) sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
  function_ = function;
  user_ = user;
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_ + guard_bytes();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* fiber = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->resumer_stack_, &fiber->resumer_stack_bytes_);
#endif
  fiber->function_(fiber->user_);
  fiber->leave();  // and is never resumed: begin() makes it another context
}

void Fiber::resume() {
  running_ = true;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, own_.uc_stack.ss_sp, own_.uc_stack.ss_size);
#endif
#if defined(__SANITIZE_THREAD__)
  sanitizer_resumer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_fiber_, 0);
#endif
  swapcontext(&resumer_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() { leave(); }

void Fiber::leave() {
  running_ = false;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, resumer_stack_, resumer_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(sanitizer_resumer_, 0);
#endif
  swapcontext(&own_, &resumer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

}  // namespace bringup::grid
