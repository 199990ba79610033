// The C API: what a hook may ask a match.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/capi/match_handles.h"
#include "engine/util/forever.h"

namespace bringup::engine {

Handles<MatchEntry>& match_handles() { return forever<Handles<MatchEntry>>("match"); }

std::shared_ptr<MatchEntry> match_of(bringup_match handle) {
  std::shared_ptr<MatchEntry> entry = match_handles().get(handle);
  if (entry->lender == std::this_thread::get_id()) return entry;
  throw_error(ErrorCode::kExpired,
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

void match_pattern(MatchEntry& entry, const char** name) {
  given(name, "name") = kept(entry.match->pattern_name());
}

void match_graph(MatchEntry& entry, bringup_ir_graph* graph) {
  given(graph, "graph") = entry.graph;
}

void match_nodes(MatchEntry& entry, const bringup_ir_node** nodes, uint32_t* count) {
  hand_out(*graph_of(entry.graph), entry.match->nodes(), nodes, count);
}

bringup_ir_value found_value(const std::optional<ValueId>& found, const std::string& what) {
  if (found) return {found->node, found->index};
  throw_error(ErrorCode::kMissing, what);
}

void match_value(MatchEntry& entry, bringup_ir_value in_pattern, bringup_ir_value* value) {
  given(value, "value") = found_value(
      entry.match->value({in_pattern.node, in_pattern.index}),
      concat("output ", in_pattern.index, " of node number ", in_pattern.node,
             " stands for nothing in this match of ", in_quotes(entry.match->pattern_name())));
}

void match_captured(MatchEntry& entry, uint32_t index, bringup_ir_value* value) {
  given(value, "value") = found_value(entry.match->captured(index),
                                      concat("pattern ", in_quotes(entry.match->pattern_name()),
                                             " captures no tensor number ", index));
}

void match_named(MatchEntry& entry, const char* name, bringup_argument* argument) {
  const std::vector<Argument> found = entry.match->named(text_given(name, "name"));
  if (found.empty()) {
    throw_error(ErrorCode::kMissing, "pattern ", in_quotes(entry.match->pattern_name()),
                " captures nothing named ", in_quotes(name));
  }
  given(argument, "argument") = argument_of(*graph_of(entry.graph), found);
}

void match_chosen(MatchEntry& entry, const char* name, uint32_t* alternative) {
  const auto found = entry.match->chosen(text_given(name, "name"));
  if (!found) {
    throw_error(ErrorCode::kMissing, "this match of ", in_quotes(entry.match->pattern_name()),
                " took no choice named ", in_quotes(name));
  }
  given(alternative, "alternative") = *found;
}

std::vector<const Match*> items_of(const MatchEntry& entry, const char* name) {
  auto items = entry.match->items(text_given(name, "name"));
  if (items) return std::move(*items);
  throw_error(ErrorCode::kMissing, "pattern ", in_quotes(entry.match->pattern_name()),
              " matched no list of patterns named ", in_quotes(name));
}

void match_item_count(MatchEntry& entry, const char* name, uint32_t* count) {
  given(count, "count") = static_cast<uint32_t>(items_of(entry, name).size());
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

void match_item(MatchEntry& entry, const char* name, uint32_t index, bringup_match* item) {
  given(item, "item");
  const std::vector<const Match*> items = items_of(entry, name);
  if (index >= items.size()) {
    throw no_number("list " + in_quotes(name) + " has " + std::to_string(items.size()) + " items",
                    index);
  }
  *item = handle_of(entry, items[index]);
}

}  // namespace

void fill_matching_functions(bringup_engine_api& table) {
  table.match_pattern = api<match_pattern>;
  table.match_graph = api<match_graph>;
  table.match_nodes = api<match_nodes>;
  table.match_value = api<match_value>;
  table.match_captured = api<match_captured>;
  table.match_named = api<match_named>;
  table.match_chosen = api<match_chosen>;
  table.match_item_count = api<match_item_count>;
  table.match_item = api<match_item>;
}

}  // namespace bringup::engine
