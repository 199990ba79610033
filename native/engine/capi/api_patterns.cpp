// The C API: patterns, and the pieces that they are made of besides operators.
#include <bit>
#include <cmath>

#include "engine/analysis/order.h"
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/pattern/pattern_elements.h"
#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

constexpr int32_t kHighestRank = 64;
constexpr uint32_t kMostItems = 1u << 24;

Handles<Pattern>& pattern_handles() { return forever<Handles<Pattern>>("pattern"); }

// A graph that may become a pattern.
std::shared_ptr<GraphEntry> pattern_graph(bringup_ir_graph handle) {
  auto entry = graph_of(handle);
  if (entry->lent)
    refuse_argument("the graph that is being rewritten cannot have pieces of patterns");
  return entry;
}

StringId name_given(const char* name) {
  return name == nullptr ? kEmptyString : Strings::intern(name);
}

bringup_argument piece_argument(uint64_t handle) {
  bringup_argument argument{BRINGUP_ARGUMENT_PIECE, 0, {}};
  argument.of.handle = handle;
  return argument;
}

// Adds a piece and writes the argument that stands for it.
template <class What>
void add_piece(GraphEntry& entry, What what, std::string text, bringup_argument* argument) {
  given(argument, "argument") =
      piece_argument(entry.pieces.add({std::move(what), std::move(text)}));
}

// --- any argument

uint32_t kinds_of(uint32_t given_kinds) {
  uint32_t rest = given_kinds;
  for (const auto& [name, kind] : kKindNames) rest &= ~bit_of(kind);
  if (rest == 0) return given_kinds;
  refuse_argument("kinds has bit ", std::countr_zero(rest),
                  ", which is none of NONE, BOOL, INT, FLOAT, STRING, VALUE and LIST");
}

std::vector<ArgumentList> among_of(const bringup_any_piece& piece) {
  std::vector<ArgumentList> among;
  const Pieces none;
  for (uint32_t index = 0; index < piece.among_count; ++index) {
    put(among.emplace_back(), none, piece.among[index]);
    for (const Argument& argument : among.back().items()) {
      if (argument.tag == Tag::kValue || is_piece(argument)) {
        refuse_argument("item ", index, " of among is a value or a piece of a pattern");
      }
    }
  }
  return among;
}

AnyArgument any_of(const bringup_any_piece& piece) {
  AnyArgument made;
  made.name = name_given(piece.name);
  made.kinds = kinds_of(piece.kinds);
  if (piece.among_count > kMostItems) refuse_argument("among has too many items");
  if (piece.among_count > 0) given(piece.among, "among");
  if (piece.among != nullptr) {
    if (piece.among_count == 0) refuse_argument("among is empty");
    made.among = among_of(piece);
  }
  if (piece.at_least != nullptr) made.at_least = *piece.at_least;
  if (piece.at_most != nullptr) made.at_most = *piece.at_most;
  if (!(made.at_least <= made.at_most)) refuse_argument("at_least is greater than at_most, or NaN");
  return made;
}

void pattern_any(bringup_ir_graph graph, const bringup_any_piece* piece,
                 bringup_argument* argument) {
  const auto entry = pattern_graph(graph);
  AnyArgument made = any_of(whole(piece, "piece"));
  std::string text = text_of(*entry->graph, made);
  add_piece(*entry, std::move(made), std::move(text), argument);
}

// --- constants

ConstantArgument::Number number_of(const bringup_argument& argument) {
  if (argument.kind == BRINGUP_ARGUMENT_FLOAT) return {false, 0, argument.of.number};
  if (argument.kind == BRINGUP_ARGUMENT_INT) return {true, argument.of.integer, 0};
  if (argument.kind == BRINGUP_ARGUMENT_BOOL) return {true, argument.of.integer != 0, 0};
  refuse_argument("the values of a constant are BOOL, INT or FLOAT");
}

// The sizes, whose product is the number of elements.
std::vector<int64_t> sizes_of(const bringup_constant_piece& piece) {
  if (piece.rank < 0 || piece.rank > kHighestRank) {
    refuse_argument("a constant has rank ", piece.rank);
  }
  std::vector<int64_t> sizes(piece.shape, piece.shape + piece.rank);
  uint64_t count = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || size > kMostItems)
      refuse_argument("a size of a constant is negative or too great");
    count = std::min<uint64_t>(count * static_cast<uint64_t>(size), uint64_t{kMostItems} + 1);
  }
  if (count != piece.value_count) {
    refuse_argument("a constant has ", piece.value_count, " values, its shape another number");
  }
  return sizes;
}

ConstantArgument constant_piece_of(const bringup_constant_piece& piece) {
  ConstantArgument made;
  made.name = name_given(piece.name);
  made.atol = piece.atol;
  made.rtol = piece.rtol;
  for (const double tolerance : {piece.atol, piece.rtol}) {
    if (!(tolerance >= 0) || std::isinf(tolerance)) {
      refuse_argument("atol and rtol of a constant are finite numbers from 0 up");
    }
  }
  if (piece.value_count > kMostItems) refuse_argument("a constant has too many values");
  if (piece.value_count > 0) given(piece.values, "the values of a constant");
  if (piece.shape != nullptr) made.sizes = sizes_of(piece);
  if (piece.shape == nullptr && piece.value_count > 1) {
    refuse_argument("a constant of several values needs a shape");
  }
  for (uint32_t index = 0; index < piece.value_count; ++index) {
    made.values.push_back(number_of(piece.values[index]));
  }
  return made;
}

void pattern_constant(bringup_ir_graph graph, const bringup_constant_piece* piece,
                      bringup_argument* argument) {
  const auto entry = pattern_graph(graph);
  ConstantArgument made = constant_piece_of(whole(piece, "piece"));
  std::string text = text_of(made);
  add_piece(*entry, std::move(made), std::move(text), argument);
}

// --- lists

// Two lists of one name cannot have items of two kinds.
void check_is_new(const GraphEntry& entry, StringId name) {
  for (const auto& [number, piece] : entry.pieces.open) {
    const auto* list = std::get_if<VariadicArgument>(&piece.what);
    if (list == nullptr || list->name != name) continue;
    refuse_argument("the graph has a list named ", in_quotes(Strings::text(name)), " already");
  }
}

void pattern_list(bringup_ir_graph graph, const bringup_list_piece* piece,
                  bringup_argument* argument) {
  const auto entry = pattern_graph(graph);
  const bringup_list_piece what = whole(piece, "piece");
  given(argument, "argument");
  VariadicArgument made;
  made.name = Strings::intern(text_given(what.name, "the name of a list"));
  if (made.name == kEmptyString) refuse_argument("the name of a list is empty");
  check_is_new(*entry, made.name);
  made.at_least = what.at_least;
  if (what.at_most != nullptr) made.at_most = *what.at_most;
  if (made.at_most && *made.at_most < made.at_least) {
    refuse_argument("list ", in_quotes(what.name), ": at_most is less than at_least");
  }
  if (what.each != 0) {
    made.each = pattern_handles().get(what.each);
    const size_t outputs = made.each->graph->outputs().size();
    if (outputs != 1) {
      refuse_argument(
          concat("list ", in_quotes(what.name), ": each must have one output, it has ", outputs));
    }
  }
  std::string text = text_of(made);
  add_piece(*entry, std::move(made), std::move(text), argument);
  if (what.each != 0) pattern_handles().take(what.each);
}

// --- alternatives

ArgumentList alternatives_of(const GraphEntry& entry, const bringup_argument* alternatives,
                             uint32_t count) {
  ArgumentList list = list_of(entry.pieces, alternatives, count);
  bool has_value = false;
  for (uint32_t index = 0; index < count; ++index) {
    has_value = has_value || alternatives[index].kind == BRINGUP_ARGUMENT_VALUE;
  }
  for_each_value(list.items(), [&](ValueId value) { living(entry, {value.node, value.index}); });
  check_objects(entry, list.items());
  if (count < 2 || !has_value) {
    refuse_argument("there must be two alternatives or more, one of them a value");
  }
  return list;
}

void add_choice(GraphEntry& entry, const ArgumentList& list, const char* name,
                bringup_ir_value* value) {
  Graph& graph = *entry.graph;
  static const StringId base = Strings::intern("one_of");
  given(value, "value");
  const StringId choice = name_given(name);
  const NodeId node =
      graph.insert(one_of_operator(), base, {list.items(), list.count()}, 1, graph.last());
  if (choice != kEmptyString) entry.pieces.choices[node] = choice;
  *value = {node, 0};
}

void pattern_one_of(bringup_ir_graph graph, const bringup_argument* alternatives, uint32_t count,
                    const char* name, bringup_ir_value* value) {
  const auto entry = pattern_graph(graph);
  add_choice(*entry, alternatives_of(*entry, alternatives, count), name, value);
}

// What stands in the place of an absent value by default.
bringup_argument usual_otherwise(const GraphEntry& entry, ValueId present) {
  bringup_argument argument{BRINGUP_ARGUMENT_NONE, 0, {}};
  if (&entry.graph->op(present.node) == Operators::input()) return argument;
  std::vector<ValueId> reads;
  for_each_value(entry.graph->all_arguments(present.node),
                 [&](ValueId value) { reads.push_back(value); });
  if (reads.empty()) {
    refuse_argument(concat(in_quotes(entry.graph->name_text(present.node)),
                           " reads no value that could stand in its place; say otherwise"));
  }
  argument.kind = BRINGUP_ARGUMENT_VALUE;
  argument.of.value = {reads.front().node, reads.front().index};
  return argument;
}

void pattern_optional(bringup_ir_graph graph, bringup_ir_value present,
                      const bringup_argument* otherwise, const char* name,
                      bringup_ir_value* value) {
  const auto entry = pattern_graph(graph);
  const ValueId found = living(*entry, present);
  bringup_argument pair[2] = {{BRINGUP_ARGUMENT_VALUE, 0, {}}, {}};
  pair[0].of.value = present;
  pair[1] = otherwise != nullptr ? *otherwise : usual_otherwise(*entry, found);
  add_choice(*entry, alternatives_of(*entry, pair, 2), name, value);
}

// --- tensors

std::vector<StringId> choices_of(const char* const* texts, const char* what) {
  constexpr size_t kMost = 4096;
  std::vector<StringId> choices;
  for (; texts != nullptr && *texts != nullptr; ++texts) {
    if (choices.size() == kMost) refuse_argument(what, " does not end with NULL");
    choices.push_back(Strings::intern(*texts));
  }
  if (texts != nullptr && choices.empty()) refuse_argument(what, " is empty");
  return choices;
}

DimPattern size_of(const bringup_size& size) {
  using Kind = DimPattern::Kind;
  switch (size.kind) {
    case BRINGUP_SIZE_NUMBER:
      if (size.number < 0) refuse_argument("a size of a form is negative");
      return {Kind::kNumber, size.number};
    case BRINGUP_SIZE_NAMED: {
      const StringId name = Strings::intern(text_given(size.name, "the name of a size"));
      if (name == kEmptyString) refuse_argument("the name of a size is empty");
      return {Kind::kName, 0, name};
    }
    case BRINGUP_SIZE_ANY:
      return {Kind::kAny};
    case BRINGUP_SIZE_REST:
      return {Kind::kRest};
    default:
      refuse_argument("there is no kind of size ", size.kind);
  }
}

std::vector<DimPattern> shape_of(const bringup_tensor_form& form) {
  if (form.size_count > kHighestRank + 1) refuse_argument("a form has too many sizes");
  std::vector<DimPattern> shape;
  bool has_rest = false;
  for (uint32_t index = 0; index < form.size_count; ++index) {
    shape.push_back(size_of(form.sizes[index]));
    const bool is_rest = shape.back().kind == DimPattern::Kind::kRest;
    if (is_rest && has_rest) refuse_argument("a form has two sizes of kind REST");
    has_rest = has_rest || is_rest;
  }
  return shape;
}

TensorConstraint constraint_of(const bringup_tensor_form& form) {
  TensorConstraint made;
  made.dtypes = choices_of(form.dtypes, "dtypes");
  made.devices = choices_of(form.devices, "devices");
  if (form.rank_count > kHighestRank) refuse_argument("a form has too many ranks");
  if (form.rank_count > 0) given(form.ranks, "ranks");
  for (uint32_t index = 0; index < form.rank_count; ++index) {
    if (form.ranks[index] < 0) refuse_argument("a rank of a form is negative");
    made.ranks.push_back(static_cast<uint32_t>(form.ranks[index]));
  }
  if (form.size_count > 0) given(form.sizes, "sizes");
  if (form.sizes != nullptr) made.shape = shape_of(form);
  return made;
}

void pattern_where(bringup_ir_graph graph, bringup_ir_value value,
                   const bringup_tensor_form* form) {
  const auto entry = pattern_graph(graph);
  const ValueId found = living(*entry, value);
  TensorConstraint made = constraint_of(whole(form, "form"));
  if (entry->pieces.constraints.contains(found)) {
    refuse_argument("the form of ", in_quotes(entry->graph->name_text(found.node)),
                    " is stated already");
  }
  entry->pieces.constraints.emplace(found, std::move(made));
}

// --- patterns

void pattern_create(bringup_ir_graph graph, const char* name, bringup_ir_pattern* pattern) {
  given(pattern, "pattern");
  const auto entry = pattern_graph(graph);
  check_has_no_cycle(*entry->graph, "pattern");
  auto made =
      make_pattern(entry->graph, entry->pieces, name != nullptr ? name : entry->graph->name());
  take_graph(graph);
  *pattern = pattern_handles().add(std::move(made));
}

void pattern_release(bringup_ir_pattern pattern) { pattern_handles().take(pattern); }

void pattern_capture(bringup_ir_pattern pattern, bringup_ir_value value, const char* name) {
  const auto entry = pattern_handles().get(pattern);
  const ValueId captured{value.node, value.index};
  if (!entry->graph->has(captured)) {
    throw_error(ErrorCode::kInvalid, "pattern ", in_quotes(entry->name),
                " can capture only its own values");
  }
  const StringId id = name_given(name);
  if (id != kEmptyString && !entry->captured_names.contains(id)) check_name_is_free(*entry, id);
  entry->captured.push_back(captured);
  if (id != kEmptyString) entry->captured_names[id] = captured;
}

void pattern_compare(bringup_ir_pattern pattern, int32_t constant_values, int32_t attributes) {
  const auto entry = pattern_handles().get(pattern);
  entry->constant_values = constant_values != 0;
  entry->attributes = attributes != 0;
}

void add_pattern(ContextEntry& entry, bringup_ir_pattern pattern) {
  if (entry.patterns == nullptr) {
    throw_error(ErrorCode::kInvalid, "patterns are added in the hook patterns");
  }
  entry.patterns->push_back(pattern_handles().take(pattern));
}

}  // namespace

void fill_pattern_functions(bringup_engine_api& table) {
  table.pattern_create = api<pattern_create>;
  table.pattern_release = api<pattern_release>;
  table.pattern_capture = api<pattern_capture>;
  table.add_pattern = api<add_pattern>;
  table.pattern_any = api<pattern_any>;
  table.pattern_constant = api<pattern_constant>;
  table.pattern_list = api<pattern_list>;
  table.pattern_one_of = api<pattern_one_of>;
  table.pattern_optional = api<pattern_optional>;
  table.pattern_where = api<pattern_where>;
  table.pattern_compare = api<pattern_compare>;
}

}  // namespace bringup::engine
