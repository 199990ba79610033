// The C API: patterns, and what a hook may ask a match.
#include "engine/access.h"
#include "engine/api.h"
#include "engine/marshal.h"
#include "engine/match_handles.h"
#include "engine/pattern.h"

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

LentMatch::~LentMatch() { match_handles().take(handle_); }

namespace {

Handles<Pattern>& pattern_handles() {
  static auto* const handles = new Handles<Pattern>("pattern");
  return *handles;
}

// What the open arguments of a pattern's graph mean.
void collect_open(Pattern& pattern) {
  const Graph& graph = *pattern.graph;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    for (const Argument& argument : graph.all_arguments(node)) {
      if (!is_open(argument)) continue;
      OpenArgument open;
      const std::string name(Strings::text(open_name(argument)));
      open.text = name.empty() ? "any_value()" : "any_value(" + quoted(name) + ")";
      open.what = AnyArgument{open_name(argument), 0, std::nullopt};
      pattern.open.emplace(argument.id, std::move(open));
    }
  }
}

int32_t pattern_create(bringup_ir_graph graph, const char* name, bringup_ir_pattern* pattern) {
  return guarded([&] {
    given(pattern, "pattern");
    auto made = std::make_shared<Pattern>();
    made->graph = take_graph(graph)->graph;
    made->name = name != nullptr ? name : std::string(made->graph->name());
    collect_open(*made);
    *pattern = pattern_handles().add(std::move(made));
  });
}

int32_t pattern_release(bringup_ir_pattern pattern) {
  return guarded([&] { pattern_handles().take(pattern); });
}

int32_t pattern_capture(bringup_ir_pattern pattern, bringup_ir_value value, const char* name) {
  return guarded([&] {
    const auto entry = pattern_handles().get(pattern);
    const ValueId captured{value.node, value.index};
    if (!entry->graph->has(captured)) {
      throw EngineError(ErrorCode::kInvalid,
                        "pattern " + quoted(entry->name) + " can capture only its own values");
    }
    entry->captured.push_back(captured);
    if (name != nullptr) entry->captured_names[Strings::intern(name)] = captured;
  });
}

int32_t add_pattern(bringup_pass_context context, bringup_ir_pattern pattern) {
  return guarded([&] {
    const auto entry = context_of(context);
    if (entry->patterns == nullptr) {
      throw EngineError(ErrorCode::kInvalid, "patterns are added in the hook patterns");
    }
    entry->patterns->push_back(pattern_handles().take(pattern));
  });
}

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

}  // namespace

void fill_matching_functions(bringup_engine_api& table) {
  table.pattern_create = pattern_create;
  table.pattern_release = pattern_release;
  table.pattern_capture = pattern_capture;
  table.add_pattern = add_pattern;
  table.match_pattern = match_pattern;
  table.match_graph = match_graph;
  table.match_nodes = match_nodes;
  table.match_value = match_value;
  table.match_captured = match_captured;
  table.match_named = match_named;
}

}  // namespace bringup::engine
