// The C API: what a hook may ask a match.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/capi/match_handles.h"

namespace bringup::engine {

Handles<MatchEntry>& match_handles() {
  static auto* const handles = new Handles<MatchEntry>("match");
  return *handles;
}

std::shared_ptr<MatchEntry> match_of(bringup_match handle) {
  std::shared_ptr<MatchEntry> entry = match_handles().get(handle);
  if (entry->lender == std::this_thread::get_id()) return entry;
  throw EngineError(ErrorCode::kExpired,
                    "match handle has expired: it was lent to a hook on another thread");
}

LentMatch::LentMatch(const Match& match, const Providers& providers, bool shapes_withheld)
    : graph_(match.graph(), providers, shapes_withheld) {
  handle_ = match_handles().add(std::make_shared<MatchEntry>(
      MatchEntry{&match, std::this_thread::get_id(), graph_.handle()}));
}

LentMatch::~LentMatch() {
  const auto entry = match_handles().take(handle_);
  for (const auto& [match, handle] : entry->items) match_handles().take(handle);
}

namespace {

int32_t match_pattern(bringup_match match, const char** name) {
  return guarded([&] { given(name, "name") = kept(match_of(match)->match->pattern_name()); });
}

int32_t match_graph(bringup_match match, bringup_ir_graph* graph) {
  return guarded([&] { given(graph, "graph") = match_of(match)->graph; });
}

int32_t match_nodes(bringup_match match, const bringup_ir_node** nodes, uint32_t* count) {
  return guarded([&] {
    const auto entry = match_of(match);
    hand_out(*graph_of(entry->graph), entry->match->nodes(), nodes, count);
  });
}

bringup_ir_value found_value(const std::optional<ValueId>& found, const std::string& what) {
  if (found) return {found->node, found->index};
  throw EngineError(ErrorCode::kMissing, what);
}

int32_t match_value(bringup_match match, bringup_ir_value in_pattern, bringup_ir_value* value) {
  return guarded([&] {
    const auto entry = match_of(match);
    given(value, "value") =
        found_value(entry->match->value({in_pattern.node, in_pattern.index}),
                    "output " + std::to_string(in_pattern.index) + " of node number " +
                        std::to_string(in_pattern.node) + " stands for nothing in this match of " +
                        quoted(entry->match->pattern_name()));
  });
}

int32_t match_captured(bringup_match match, uint32_t index, bringup_ir_value* value) {
  return guarded([&] {
    const auto entry = match_of(match);
    given(value, "value") = found_value(entry->match->captured(index),
                                        "pattern " + quoted(entry->match->pattern_name()) +
                                            " captures no tensor number " + std::to_string(index));
  });
}

int32_t match_named(bringup_match match, const char* name, bringup_argument* argument) {
  return guarded([&] {
    const auto entry = match_of(match);
    const std::vector<Argument> found = entry->match->named(text_given(name, "name"));
    if (found.empty()) {
      throw EngineError(ErrorCode::kMissing, "pattern " + quoted(entry->match->pattern_name()) +
                                                 " captures nothing named " + quoted(name));
    }
    given(argument, "argument") = argument_of(*graph_of(entry->graph), found);
  });
}

int32_t match_chosen(bringup_match match, const char* name, uint32_t* alternative) {
  return guarded([&] {
    const auto entry = match_of(match);
    const auto found = entry->match->chosen(text_given(name, "name"));
    if (!found) {
      throw EngineError(ErrorCode::kMissing, "this match of " +
                                                 quoted(entry->match->pattern_name()) +
                                                 " took no choice named " + quoted(name));
    }
    given(alternative, "alternative") = *found;
  });
}

std::vector<const Match*> items_of(const MatchEntry& entry, const char* name) {
  auto items = entry.match->items(text_given(name, "name"));
  if (items) return std::move(*items);
  throw EngineError(ErrorCode::kMissing, "pattern " + quoted(entry.match->pattern_name()) +
                                             " matched no list of patterns named " + quoted(name));
}

int32_t match_item_count(bringup_match match, const char* name, uint32_t* count) {
  return guarded([&] {
    const auto entry = match_of(match);
    given(count, "count") = static_cast<uint32_t>(items_of(*entry, name).size());
  });
}

// The handle of an item's match: the same one for as long as the hook runs.
bringup_match handle_of(MatchEntry& entry, const Match* item) {
  MatchEntry& whole = entry.whole != nullptr ? *entry.whole : entry;
  const auto place = whole.items.find(item);
  if (place != whole.items.end()) return place->second;
  const bringup_match handle = match_handles().add(
      std::make_shared<MatchEntry>(MatchEntry{item, entry.lender, entry.graph, &whole}));
  whole.items.emplace(item, handle);
  return handle;
}

int32_t match_item(bringup_match match, const char* name, uint32_t index, bringup_match* item) {
  return guarded([&] {
    const auto entry = match_of(match);
    given(item, "item");
    const std::vector<const Match*> items = items_of(*entry, name);
    if (index >= items.size()) {
      throw EngineError(ErrorCode::kMissing,
                        "list " + quoted(name) + " has " + std::to_string(items.size()) +
                            " items, there is no number " + std::to_string(index));
    }
    *item = handle_of(*entry, items[index]);
  });
}

}  // namespace

void fill_matching_functions(bringup_engine_api& table) {
  table.match_pattern = match_pattern;
  table.match_graph = match_graph;
  table.match_nodes = match_nodes;
  table.match_value = match_value;
  table.match_captured = match_captured;
  table.match_named = match_named;
  table.match_chosen = match_chosen;
  table.match_item_count = match_item_count;
  table.match_item = match_item;
}

}  // namespace bringup::engine
