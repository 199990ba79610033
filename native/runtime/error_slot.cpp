#include "runtime/error_slot.h"

#include <utility>

namespace bringup::runtime {

std::string& error_slot() noexcept {
  thread_local std::string message;
  return message;
}

void set_last_error(std::string_view message) { error_slot().assign(message); }

std::string take_last_error() { return std::exchange(error_slot(), std::string()); }

}  // namespace bringup::runtime
