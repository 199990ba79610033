// How far one collective is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace bringup::distributed {

class Progress {
 public:
  using AtEnd = std::function<void(const std::exception_ptr& error)>;

  // gloo has it.
  void post();
  // The first ends it, and calls what waits for that, without the lock.
  void end(std::exception_ptr error);
  // On the thread that ends it; at once where it has ended.
  void at_end(AtEnd call);

  bool is_posted() const;
  bool has_ended() const;
  std::exception_ptr error() const;
  // Until gloo has it, or it has ended. False: neither within the time.
  bool wait_posted(std::optional<std::chrono::milliseconds> limit) const;
  void wait_ended() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool posted_ = false;
  bool ended_ = false;
  std::exception_ptr error_;
  std::vector<AtEnd> calls_;
};

}  // namespace bringup::distributed
