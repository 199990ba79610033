// Which generated functions a graph's launches run: made by one thread beside launches that another
// one runs. No torch, so that ThreadSanitizer has it (tests/native).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace bringup::torch_ext::graphs {

template <class Functions>
class Handover {
 public:
  // For launches that begin later; null: why there are none, for people. From any thread.
  void give(std::shared_ptr<Functions> functions, std::string why_not) {
    const std::lock_guard lock(mutex_);
    given_.swap(functions);  // which go without the lock
    why_not_ = std::move(why_not);
    is_new_ = true;
  }
  // From any thread.
  std::pair<std::shared_ptr<Functions>, std::string> given() const {
    const std::lock_guard lock(mutex_);
    return {given_, why_not_};
  }

  // The next two are for the thread on which launches run, one after the other.
  // What nodes are given is other than before.
  void values_changed() { has_new_values_ = true; }
  // A launch begins: what it runs until its end, or null.
  Functions* begin() {
    if (is_new_.load(std::memory_order_relaxed)) {
      std::shared_ptr<Functions> former;
      const std::lock_guard lock(mutex_);
      former = std::exchange(launched_, given_);
      is_new_ = false;
      has_new_values_ = true;
    }
    if (launched_ == nullptr || !launched_->begin()) return nullptr;
    if (std::exchange(has_new_values_, false)) launched_->take_values();
    return launched_.get();
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Functions> given_;
  std::string why_not_;
  std::atomic<bool> is_new_ = false;
  std::shared_ptr<Functions> launched_;
  bool has_new_values_ = false;
};

}  // namespace bringup::torch_ext::graphs
