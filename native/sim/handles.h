// What the functions of the simulator's table share: handles, and refusals.
#pragma once

#include <memory>

#include "bringup/driver.h"
#include "sim/communicator.h"
#include "sim/event.h"
#include "sim/graph.h"
#include "sim/status.h"
#include "sim/stream.h"

namespace bringup::sim {

inline std::shared_ptr<Event>& event_of(bringup_event handle) {
  return *reinterpret_cast<std::shared_ptr<Event>*>(handle);
}
inline std::shared_ptr<Graph>& graph_of(bringup_graph handle) {
  return *reinterpret_cast<std::shared_ptr<Graph>*>(handle);
}
inline std::shared_ptr<Communicator>& comm_of(bringup_comm handle) {
  return *reinterpret_cast<std::shared_ptr<Communicator>*>(handle);
}

inline void require(bool condition, const char* text) {
  if (!condition) throw SimError(BRINGUP_INVALID, text);
}

inline void may_wait() {
  require(!on_worker_thread(), "a host function waited for a stream, which would wait for itself");
}

}  // namespace bringup::sim
