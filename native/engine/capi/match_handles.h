// Matches that hooks in C are given.
#pragma once

#include "engine/capi/handles.h"
#include "engine/match/match.h"

namespace bringup::engine {

struct MatchEntry {
  const Match* match = nullptr;
  std::thread::id lender;
  bringup_ir_graph graph = 0;
  // Handles of matches of items, by match; all are in the entry of the whole match.
  MatchEntry* whole = nullptr;  // of an item: the entry of the whole match, which outlives it
  std::unordered_map<const Match*, bringup_match> items = {};
};

Handles<MatchEntry>& match_handles();
// The entry of a handle; EngineError(kExpired) also when it was lent to another thread.
std::shared_ptr<MatchEntry> match_of(bringup_match handle);

template <>
struct Received<MatchEntry&> : ReceivedHandle<MatchEntry, match_of> {
  using ReceivedHandle::ReceivedHandle;
};

// Lends a match, and the graph it was found in, to the hook that runs on this thread.
class LentMatch {
 public:
  LentMatch(const Match& match, const Providers& providers, bool shapes_withheld);
  ~LentMatch();
  LentMatch& operator=(LentMatch&&) = delete;

  bringup_match handle() const { return handle_; }

 private:
  LentGraph graph_;
  bringup_match handle_;
};

}  // namespace bringup::engine
