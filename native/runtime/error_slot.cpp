#include "runtime/error_slot.h"

#include <utility>

namespace bringup::runtime {
namespace {
thread_local std::string t_message;
}  // namespace

void set_last_error(std::string_view message) { t_message.assign(message); }

std::string take_last_error() { return std::exchange(t_message, std::string()); }

}  // namespace bringup::runtime
