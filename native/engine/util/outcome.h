// How a hook says that it does not go on, besides errors.
#pragma once

#include <exception>
#include <string>

namespace bringup::engine {

class HookOutcome : public std::exception {
 public:
  explicit HookOutcome(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

// Thrown by a hook: skip this match; thrown by `run`: succeed with all edits undone.
class SkipPass : public HookOutcome {
  using HookOutcome::HookOutcome;
};

// Thrown by a hook: fail, and stop the stage at once.
class FatalFailure : public HookOutcome {
  using HookOutcome::HookOutcome;
};

}  // namespace bringup::engine
