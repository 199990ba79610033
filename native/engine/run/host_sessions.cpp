#include "engine/run/host_sessions.h"

#include <pthread.h>

#include <mutex>
#include <utility>

#include "engine/util/error.h"
#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

struct HostState {
  std::mutex mutex;
  std::shared_ptr<HostSessions> sessions;
  size_t uses = 0;
  bool is_paused = false;
  bool is_lost = false;  // forked while a thread used the host: its locks stay taken in the child
};

HostState& host_state() { return forever<HostState>(); }

// A child of fork() has only the thread that called it.
[[maybe_unused]] const int watches_forks =
    pthread_atfork([] { host_state().mutex.lock(); }, [] { host_state().mutex.unlock(); },
                   [] {
                     HostState& state = host_state();
                     state.is_lost |= state.uses > 0 || state.is_paused;
                     state.mutex.unlock();
                   });

void check_not_lost(const HostState& state) {
  if (!state.is_lost) return;
  throw_error(ErrorCode::kFailed,
              "this process was forked while a thread used Python, whose locks it therefore "
              "keeps: fork when no passes run, or call exec in the child");
}

}  // namespace

void set_host_sessions(std::shared_ptr<HostSessions> sessions) {
  HostState& state = host_state();
  const std::lock_guard lock(state.mutex);
  state.sessions.swap(sessions);
}

HostUse::HostUse(When when) {
  HostState& state = host_state();
  const std::lock_guard lock(state.mutex);
  if (when == When::kServed && state.sessions == nullptr) return;
  check_not_lost(state);
  if (state.is_paused) throw_error(ErrorCode::kFailed, "another thread is shutting Python down");
  if (when == When::kServed) sessions_ = state.sessions;
  ++state.uses;
  is_counted_ = true;
}

void HostUse::end() {
  if (!std::exchange(is_counted_, false)) return;
  sessions_.reset();  // may call the host, so while the run still counts
  HostState& state = host_state();
  const std::lock_guard lock(state.mutex);
  --state.uses;
}

HostPause::HostPause() {
  HostState& state = host_state();
  const std::lock_guard lock(state.mutex);
  check_not_lost(state);
  if (state.uses > 0 || state.is_paused) {
    throw_error(ErrorCode::kFailed,
                state.uses > 0
                    ? concat(state.uses, " threads use Python just now: let them end first")
                    : "another thread is shutting Python down");
  }
  state.is_paused = true;
}

HostPause::~HostPause() {
  HostState& state = host_state();
  const std::lock_guard lock(state.mutex);
  state.is_paused = false;
}

}  // namespace bringup::engine
