#include "driver_check/suite.h"

namespace bringup::driver_check {

const std::vector<Check>& suite() {
  static const std::vector<Check> all = [] {
    std::vector<Check> found;
#define BRINGUP_ADD(group) \
  for (const Check& check : group##_checks()) found.push_back(check);
    BRINGUP_CHECK_GROUPS(BRINGUP_ADD)
#undef BRINGUP_ADD
    return found;
  }();
  return all;
}

// Little of everything, in 0.3 s: these find what would be a wrong number or a crash later.
std::vector<std::string> probe() {
  std::vector<std::string> found;
  const char* names =
      "table.functions device.count device.properties memory.addresses memory.info "
      "copies.both_ways copies.on_the_device fills.bytes streams.handles "
      "streams.synchronize events.never_recorded events.follow_a_copy "
      "events.follow_a_function events.hold_a_copy events.hold_a_stream events.elapsed "
      "host.pinned_memory host.view graphs.handles";
  while (*names != '\0') found.push_back(next_name(names));
  return found;
}

}  // namespace bringup::driver_check
