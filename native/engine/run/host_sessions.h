// Who runs passes of the host's language over graphs of the engine: Python, where it is there.
#pragma once

#include <memory>

#include "engine/run/creation.h"
#include "engine/run/native_run.h"
#include "engine/run/session_host.h"

namespace bringup::engine {

class HostSessions {
 public:
  virtual ~HostSessions() = default;
  // The host of such a pass on one graph. Called on any thread.
  virtual std::unique_ptr<SessionHost> open(Graph& graph, const RegistrationPtr& pass,
                                            const SharedRunState& shared_state) = 0;
};

// Null takes it away: passes of the host are then left out of runs over graphs of the engine.
void set_host_sessions(std::shared_ptr<HostSessions> sessions);

// Counts what may call the host; EngineError(kFailed) while it is shut down.
class HostUse {
 public:
  // kServed: for a run, where runs have a host, which this one then keeps.
  enum class When : uint8_t { kAlways, kServed };
  explicit HostUse(When when = When::kAlways);
  ~HostUse() { end(); }
  HostUse& operator=(HostUse&&) = delete;

  HostSessions* sessions() const { return sessions_.get(); }
  void end();

 private:
  std::shared_ptr<HostSessions> sessions_;
  bool is_counted_ = false;
};

// Keeps new runs away from the host in its life. EngineError(kFailed) while runs use it.
class HostPause {
 public:
  HostPause();
  ~HostPause();
  HostPause& operator=(HostPause&&) = delete;
};

// Identifies the build of the engine: what shares its C++ must have the same.
const char* build_key();

}  // namespace bringup::engine
