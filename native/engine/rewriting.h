// What a session does for passes that are driven by their hooks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/graph.h"
#include "engine/pass.h"
#include "engine/session.h"
#include "engine/storages.h"

namespace bringup::engine {

// Both edit inside the open transaction of `graph` and count in `result`; what a hook or a
// replacement throws passes through, unless the policy of the pass is to skip the match that
// failed.
void decompose(Graph& graph, Pass& instance, PassContext& context, PassResult& result);
void rewrite_patterns(Graph& graph, Pass& instance, PassContext& context, PassResult& result);

// One attempt to rewrite, as the policy of the pass says: counts a rewrite or a refusal. `attempt`
// returns why it refused, or nothing when it rewrote. Undone attempts leave no edit.
class Attempts {
 public:
  // `storages` are made anew when edits are undone.
  Attempts(Graph& graph, std::optional<Storages>& storages, const PassContext& context,
           PassResult& result);

  // Why nothing was rewritten; nullopt: it was.
  template <class Attempt>
  std::optional<std::string> make(Attempt&& attempt);
  // Calls `sweep` once; where the pass repeats until it is stable, until a sweep rewrites nothing.
  // EngineError when that does not end.
  void sweep_until_stable(const std::function<void()>& sweep);
  // Whether as many matches were rewritten as the pass may.
  bool is_spent() const;

 private:
  std::optional<std::string> refuse(std::string reason);
  void undo(const Graph::Mark& mark);

  Graph& graph_;
  std::optional<Storages>& storages_;
  const PassContext& context_;
  PassResult& result_;
};

template <class Attempt>
std::optional<std::string> Attempts::make(Attempt&& attempt) {
  const Graph::Mark mark = graph_.mark();
  try {
    std::optional<std::string> reason = attempt();
    if (reason) return refuse(std::move(*reason));
    ++result_.matches;
    return std::nullopt;
  } catch (const SkipPass& skip) {
    undo(mark);
    return refuse(std::string("skipped: ") + skip.what());
  } catch (const FatalFailure&) {
    throw;
  } catch (const std::exception& error) {
    if (context_.descriptor.policy != Policy::kSkip) throw;
    undo(mark);
    return refuse(std::string("failed: ") + error.what());
  }
}

}  // namespace bringup::engine
