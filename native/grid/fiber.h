// Fibers: calls with stacks of their own, which one thread switches between.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <deque>

namespace bringup::grid {

// The caller of resume() goes on when it suspends itself or its function returns. The function
// must not throw.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber& operator=(Fiber&&) = delete;

  // Gives it a function to run from the next resume() on, whatever it did before. Throws
  // std::bad_alloc where there is no memory for its stack.
  void begin(void (*function)(void* user), void* user);
  void resume();
  // On the fiber.
  void suspend();
  bool running() const noexcept { return running_; }

 private:
  static void enter(unsigned high, unsigned low);
  void leave();

  void (*function_)(void* user) = nullptr;
  void* user_ = nullptr;
  std::byte* stack_ = nullptr;  // its first page is a guard
  ucontext_t own_{};
  ucontext_t resumer_{};
  bool running_ = false;
  // What sanitizers know it and its resumer by.
  void* sanitizer_fiber_ = nullptr;
  void* sanitizer_resumer_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

// Fibers by number, made when they are first asked for; they stay where they are.
class FiberPool {
 public:
  Fiber& at(size_t number) {
    while (fibers_.size() <= number) fibers_.emplace_back();
    return fibers_[number];
  }

 private:
  std::deque<Fiber> fibers_;
};

}  // namespace bringup::grid
