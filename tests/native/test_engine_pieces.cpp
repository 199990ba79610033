// Pieces of patterns in C: arguments, constants, lists, alternatives, parts that may be absent, and
// what tensors must look like (research rows of patterns 4 to 7).
#include <cmath>
#include <functional>

#include "engine_api.h"

using namespace engine_api;

namespace {

using Build = std::function<bringup_ir_value(bringup_ir_graph)>;
using See = std::function<void(bringup_match, bringup_ir_graph)>;

// A pass that looks for one pattern and calls `see` for each match; it replaces nothing.
struct Finder {
  Build build;
  See see = [](bringup_match, bringup_ir_graph) {};
  std::function<void(bringup_ir_pattern)> adjust = [](bringup_ir_pattern) {};
};

int32_t look_for(void* instance, bringup_pass_context context) {
  auto& finder = *static_cast<Finder*>(instance);
  bringup_ir_graph graph = 0;
  bringup_ir_pattern pattern = 0;
  api().graph_create("wanted", &graph);
  returns(graph, {finder.build(graph)});
  const int32_t status = api().pattern_create(graph, "wanted", &pattern);
  if (status != BRINGUP_ENGINE_OK) return status;
  finder.adjust(pattern);
  return api().add_pattern(context, pattern);
}

int32_t show(void* instance, bringup_match match, bringup_pass_context, int32_t* met) {
  bringup_ir_graph graph = 0;
  CHECK_EQ(api().match_graph(match, &graph), BRINGUP_ENGINE_OK);
  static_cast<Finder*>(instance)->see(match, graph);
  return *met = 0, BRINGUP_ENGINE_OK;
}

int32_t never(void*, bringup_match, bringup_pass_context, bringup_ir_graph*) { return 1; }

struct Found {
  uint64_t count = 0;
  std::string near_miss, failure;
};

Found find(Finder finder, bringup_ir_graph graph) {
  bringup_pass_definition definition{};
  definition.name = "Finds";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.user = &finder;
  definition.patterns = look_for;
  definition.meet_requirements = show;
  definition.replacement = never;
  const Registered registered(definition);
  const Ran ran(graph);
  Found found;
  found.failure = ran.failure;
  if (!ran.results.empty()) {
    found.count = ran.results[0].refused;
    found.near_miss = ran.results[0].near_miss;
  }
  return found;
}

bringup_argument float_argument(double number) {
  bringup_argument argument{BRINGUP_ARGUMENT_FLOAT, 0, {}};
  argument.of.number = number;
  return argument;
}

bringup_argument list_argument(const std::vector<bringup_argument>& items) {
  bringup_argument argument{BRINGUP_ARGUMENT_LIST, static_cast<uint32_t>(items.size()), {}};
  argument.of.items = items.data();
  return argument;
}

bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      const std::vector<bringup_argument>& arguments) {
  bringup_ir_node node = BRINGUP_NO_NODE;
  CHECK_EQ(api().add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 1,
                          BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_OK);
  return {node, 0};
}

bringup_argument any(bringup_ir_graph graph, bringup_any_piece piece) {
  piece.struct_size = sizeof(piece);
  bringup_argument argument{};
  CHECK_EQ(api().pattern_any(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

bringup_argument constant(bringup_ir_graph graph, bringup_constant_piece piece) {
  piece.struct_size = sizeof(piece);
  bringup_argument argument{};
  CHECK_EQ(api().pattern_constant(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

bringup_argument list(bringup_ir_graph graph, const char* name, bringup_ir_pattern each = 0,
                      uint32_t at_least = 0) {
  bringup_list_piece piece{};
  piece.struct_size = sizeof(piece);
  piece.name = name;
  piece.each = each;
  piece.at_least = at_least;
  bringup_argument argument{};
  CHECK_EQ(api().pattern_list(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

void where(bringup_ir_graph graph, bringup_ir_value value, bringup_tensor_form form) {
  form.struct_size = sizeof(form);
  CHECK_EQ(api().pattern_where(graph, value, &form), BRINGUP_ENGINE_OK);
}

bringup_ir_value float_input(bringup_ir_graph graph, const char* name,
                             const std::vector<int64_t>& shape) {
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = static_cast<int32_t>(shape.size());
  desc.shape = shape.data();
  desc.dtype = "float32";
  desc.device = "npu:1";
  bringup_ir_value value{};
  CHECK_EQ(api().add_input(graph, name, &desc, &value), BRINGUP_ENGINE_OK);
  return value;
}

bringup_ir_value float_constant(bringup_ir_graph graph, const std::vector<float>& elements) {
  const int64_t shape[] = {static_cast<int64_t>(elements.size())};
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.rank = 1;
  constant.shape = shape;
  constant.dtype = "float32";
  constant.data = elements.data();
  constant.bytes = elements.size() * sizeof(float);
  bringup_ir_value value{};
  CHECK_EQ(api().add_constant(graph, "c", &constant, &value), BRINGUP_ENGINE_OK);
  return value;
}

std::string name_of(bringup_ir_graph graph, bringup_ir_value value) {
  const char* name = "";
  CHECK_EQ(api().node_name(graph, value.node, &name), BRINGUP_ENGINE_OK);
  return name;
}

bringup_argument named(bringup_match match, const char* name) {
  bringup_argument argument{};
  CHECK_EQ(api().match_named(match, name, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

// A graph with input x; released at the end.
struct Graph {
  bringup_ir_graph handle = 0;
  bringup_ir_value x{};
  Graph() {
    api().graph_create("g", &handle);
    x = input(handle, "x");
  }
  ~Graph() { api().graph_release(handle); }
  bringup_argument value() const { return value_argument(x); }
};

}  // namespace

TEST(any_argument_may_be_restricted_by_kind_choices_and_bounds) {
  Graph graph;
  std::vector<bringup_ir_value> calls;
  for (const bringup_argument& argument :
       {int_argument(3), float_argument(3), text_argument("three"), int_argument(9)}) {
    calls.push_back(call(graph.handle, "t::f", {graph.value(), argument}));
  }
  returns(graph.handle, calls);
  const auto count = [&](bringup_any_piece piece) {
    Finder finder;
    finder.build = [piece](bringup_ir_graph wanted) {
      return call(wanted, "t::f", {value_argument(input(wanted, "x")), any(wanted, piece)});
    };
    return find(finder, graph.handle).count;
  };
  bringup_any_piece piece{};
  CHECK_EQ(count(piece), 4u);
  piece.kinds = 1u << BRINGUP_ARGUMENT_INT | 1u << BRINGUP_ARGUMENT_STRING;
  CHECK_EQ(count(piece), 3u);
  piece = {};
  const bringup_argument among[] = {int_argument(3), text_argument("three")};
  piece.among = among;
  piece.among_count = 2;
  CHECK_EQ(count(piece), 2u);
  piece = {};
  const double three = 3, five = 5;
  piece.at_least = &three;
  piece.at_most = &five;
  CHECK_EQ(count(piece), 2u);
}

TEST(one_name_means_one_argument_and_is_captured) {
  Graph graph;
  const auto f = [&](int64_t one, int64_t other) {
    const bringup_ir_value inner = call(graph.handle, "t::f", {graph.value(), int_argument(one)});
    return call(graph.handle, "t::f", {value_argument(inner), int_argument(other)});
  };
  returns(graph.handle, {f(1, 2), f(4, 4)});
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    bringup_any_piece piece{};
    piece.name = "n";
    const bringup_argument n = any(wanted, piece);
    const bringup_ir_value inner = call(wanted, "t::f", {value_argument(input(wanted, "x")), n});
    return call(wanted, "t::f", {value_argument(inner), n});
  };
  int64_t seen = 0;
  finder.see = [&](bringup_match match, bringup_ir_graph) { seen = named(match, "n").of.integer; };
  CHECK_EQ(find(finder, graph.handle).count, 1u);
  CHECK_EQ(seen, 4);
}

TEST(constants_match_numbers_and_data_with_a_tolerance) {
  Graph graph;
  returns(graph.handle,
          {call(graph.handle, "t::f", {graph.value(), float_argument(1.0005)}),
           call(graph.handle, "t::f", {graph.value(), int_argument(1)}),
           call(graph.handle, "t::f",
                {graph.value(), value_argument(float_constant(graph.handle, {1, 1.0005f}))}),
           call(graph.handle, "t::f",
                {graph.value(), value_argument(float_constant(graph.handle, {2, 1}))})});
  const auto count = [&](bringup_constant_piece piece) {
    Finder finder;
    finder.build = [piece](bringup_ir_graph wanted) {
      return call(wanted, "t::f", {value_argument(input(wanted, "x")), constant(wanted, piece)});
    };
    return find(finder, graph.handle).count;
  };
  const bringup_argument one = int_argument(1);
  bringup_constant_piece piece{};
  CHECK_EQ(count(piece), 4u);
  piece.values = &one;
  piece.value_count = 1;
  CHECK_EQ(count(piece), 1u);
  piece.rtol = 1e-3;
  CHECK_EQ(count(piece), 3u);
  const bringup_argument pair[] = {int_argument(2), float_argument(1)};
  const int64_t shape[] = {2};
  piece = {};
  piece.values = pair;
  piece.value_count = 2;
  piece.shape = shape;
  piece.rank = 1;
  CHECK_EQ(count(piece), 1u);
}

TEST(near_miss_shows_the_piece) {
  Graph graph;
  returns(graph.handle, {call(graph.handle, "t::f", {graph.value(), int_argument(7)})});
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    const bringup_argument one = int_argument(1);
    bringup_constant_piece piece{};
    piece.values = &one;
    piece.value_count = 1;
    piece.atol = 0.5;
    return call(wanted, "t::f", {value_argument(input(wanted, "x")), constant(wanted, piece)});
  };
  const Found found = find(finder, graph.handle);
  CHECK_EQ(found.count, 0u);
  CHECK(contains(found.near_miss, "constant(1, atol=0.5)"));
  CHECK(contains(found.near_miss, "7"));
}

TEST(list_of_open_length_is_captured_and_its_items_matched) {
  Graph graph;
  const bringup_ir_value relu = add(graph.handle, "t::relu", {graph.x});
  const bringup_ir_value exp = add(graph.handle, "t::exp", {graph.x});
  const bringup_ir_value other = add(graph.handle, "t::relu", {exp});
  const auto cat = [&](const std::vector<bringup_ir_value>& values) {
    std::vector<bringup_argument> items;
    for (const bringup_ir_value value : values) items.push_back(value_argument(value));
    return call(graph.handle, "t::cat", {list_argument(items)});
  };
  returns(graph.handle, {cat({graph.x, relu, other, relu}), cat({graph.x, exp})});
  bringup_ir_value in_item{};
  Finder finder;
  finder.build = [&](bringup_ir_graph wanted) {
    bringup_ir_graph item = 0;
    bringup_ir_pattern each = 0;
    api().graph_create("item", &item);
    in_item = input(item, "in");
    returns(item, {add(item, "t::relu", {in_item})});
    CHECK_EQ(api().pattern_create(item, nullptr, &each), BRINGUP_ENGINE_OK);
    CHECK_EQ(api().pattern_capture(each, in_item, "read"), BRINGUP_ENGINE_OK);
    const bringup_argument rest = list(wanted, "rest", each, 1);
    CHECK_EQ(api().pattern_release(each), BRINGUP_ENGINE_EXPIRED);  // it was handed over
    return call(wanted, "t::cat", {list_argument({value_argument(input(wanted, "x")), rest})});
  };
  std::string seen;
  static bringup_match kept;
  finder.see = [&](bringup_match match, bringup_ir_graph target) {
    const bringup_argument rest = named(match, "rest");
    REQUIRE(rest.kind == BRINGUP_ARGUMENT_LIST && rest.count == 3);
    CHECK_EQ(rest.of.items[1].of.value.node, other.node);
    uint32_t count = 0;
    CHECK_EQ(api().match_item_count(match, "rest", &count), BRINGUP_ENGINE_OK);
    CHECK_EQ(count, 3u);
    for (uint32_t index = 0; index < count; ++index) {
      bringup_match item = 0, again = 0;
      bringup_ir_value read{}, same{};
      CHECK_EQ(api().match_item(match, "rest", index, &item), BRINGUP_ENGINE_OK);
      CHECK_EQ(api().match_item(match, "rest", index, &again), BRINGUP_ENGINE_OK);
      CHECK_EQ(item, again);
      CHECK_EQ(api().match_value(item, in_item, &read), BRINGUP_ENGINE_OK);
      CHECK_EQ(api().match_captured(item, 0, &same), BRINGUP_ENGINE_OK);
      CHECK_EQ(named(item, "read").of.value.node, same.node);
      const bringup_ir_node* nodes = nullptr;
      uint32_t node_count = 0;
      CHECK_EQ(api().match_nodes(item, &nodes, &node_count), BRINGUP_ENGINE_OK);
      CHECK_EQ(node_count, 1u);
      seen += name_of(target, read) + " ";
      kept = item;
    }
    bringup_match none = 0;
    CHECK_EQ(api().match_item(match, "rest", 3, &none), BRINGUP_ENGINE_NOT_FOUND);
    CHECK_EQ(api().match_item(match, "nothing", 0, &none), BRINGUP_ENGINE_NOT_FOUND);
  };
  CHECK_EQ(find(finder, graph.handle).count, 1u);
  CHECK_EQ(seen, "x exp x ");
  const char* name = "";
  CHECK_EQ(api().match_pattern(kept, &name), BRINGUP_ENGINE_EXPIRED);
}

TEST(alternatives_are_tried_in_order_and_the_chosen_one_is_known) {
  Graph graph;
  const bringup_ir_value relu = add(graph.handle, "t::relu", {graph.x});
  const bringup_ir_value gelu = add(graph.handle, "t::gelu", {graph.x});
  returns(graph.handle, {add(graph.handle, "t::neg", {relu}), add(graph.handle, "t::neg", {gelu}),
                         add(graph.handle, "t::neg", {graph.x})});
  Finder finder;
  bringup_ir_value either{};
  finder.build = [&](bringup_ir_graph wanted) {
    const bringup_ir_value x = input(wanted, "x");
    const bringup_argument alternatives[] = {value_argument(add(wanted, "t::relu", {x})),
                                             value_argument(add(wanted, "t::gelu", {x}))};
    CHECK_EQ(api().pattern_one_of(wanted, alternatives, 2, "which", &either), BRINGUP_ENGINE_OK);
    return add(wanted, "t::neg", {either});
  };
  std::string seen;
  finder.see = [&](bringup_match match, bringup_ir_graph target) {
    uint32_t which = 77;
    bringup_ir_value value{};
    CHECK_EQ(api().match_chosen(match, "which", &which), BRINGUP_ENGINE_OK);
    CHECK_EQ(api().match_value(match, either, &value), BRINGUP_ENGINE_OK);
    seen += std::to_string(which) + name_of(target, value) + " ";
    CHECK_EQ(api().match_chosen(match, "other", &which), BRINGUP_ENGINE_NOT_FOUND);
  };
  CHECK_EQ(find(finder, graph.handle).count, 2u);
  CHECK_EQ(seen, "0relu 1gelu ");
}

// A part that may be absent: its input is NONE where the replacement reads it.
TEST(absent_part_leaves_its_input_none_in_the_replacement) {
  Graph graph;
  const bringup_ir_value y = input(graph.handle, "y");
  const bringup_ir_value mul = add(graph.handle, "t::mul", {graph.x, y});
  returns(graph.handle, {add(graph.handle, "t::neg", {add(graph.handle, "t::add", {mul, graph.x})}),
                         add(graph.handle, "t::neg", {add(graph.handle, "t::mul", {y, y})})});
  bringup_pass_definition definition{};
  definition.name = "Fuse";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  static bringup_ir_value bias;
  definition.patterns = [](void*, bringup_pass_context context) {
    bringup_ir_graph wanted = 0;
    api().graph_create("wanted", &wanted);
    const bringup_ir_value a = input(wanted, "a"), b = input(wanted, "b");
    bias = input(wanted, "c");
    const bringup_ir_value sum = add(wanted, "t::add", {add(wanted, "t::mul", {a, b}), bias});
    bringup_ir_value maybe{};
    CHECK_EQ(api().pattern_optional(wanted, sum, nullptr, "bias", &maybe), BRINGUP_ENGINE_OK);
    returns(wanted, {add(wanted, "t::neg", {maybe})});
    bringup_ir_pattern pattern = 0;
    CHECK_EQ(api().pattern_create(wanted, nullptr, &pattern), BRINGUP_ENGINE_OK);
    return api().add_pattern(context, pattern);
  };
  definition.replacement = [](void*, bringup_match match, bringup_pass_context,
                              bringup_ir_graph* replacement) {
    uint32_t absent = 77;
    bringup_ir_value value{};
    CHECK_EQ(api().match_chosen(match, "bias", &absent), BRINGUP_ENGINE_OK);
    api().graph_create("fused", replacement);
    const bringup_ir_value a = input(*replacement, "a"), b = input(*replacement, "b"),
                           c = input(*replacement, "c");
    CHECK_EQ(api().match_value(match, bias, &value) == BRINGUP_ENGINE_OK, absent == 0);
    returns(*replacement, {add(*replacement, "t::fused", {a, b, c})});
    return 0;
  };
  const Registered registered(definition);
  const Ran ran(graph.handle);
  CHECK_EQ(ran.failure, "");
  CHECK_EQ(ran.results[0].matches, 2u);
  const bringup_ir_node* fused = nullptr;
  uint32_t count = 0;
  api().find_nodes(graph.handle, "t::fused", &fused, &count);
  REQUIRE(count == 2);
  bringup_argument third{};
  api().node_argument(graph.handle, fused[0], 2, &third);
  CHECK_EQ(third.kind, static_cast<uint32_t>(BRINGUP_ARGUMENT_VALUE));
  api().node_argument(graph.handle, fused[1], 2, &third);
  CHECK_EQ(third.kind, static_cast<uint32_t>(BRINGUP_ARGUMENT_NONE));
}

TEST(optional_input_may_be_none) {
  Graph graph;
  returns(graph.handle,
          {call(graph.handle, "t::f", {graph.value(), {BRINGUP_ARGUMENT_NONE, 0, {}}}),
           add(graph.handle, "t::f", {graph.x, graph.x}),
           call(graph.handle, "t::f", {graph.value(), int_argument(1)})});
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    bringup_ir_value maybe{};
    CHECK_EQ(api().pattern_optional(wanted, input(wanted, "y"), nullptr, nullptr, &maybe),
             BRINGUP_ENGINE_OK);
    return add(wanted, "t::f", {input(wanted, "x"), maybe});
  };
  CHECK_EQ(find(finder, graph.handle).count, 2u);
}

// Rows of dtype, rank, device and shape, with sizes that must agree.
TEST(tensor_forms_restrict_values_and_capture_sizes) {
  Graph graph;
  const bringup_ir_value a = float_input(graph.handle, "a", {5, 8});
  const bringup_ir_value w = float_input(graph.handle, "w", {8, 64});
  const bringup_ir_value v = float_input(graph.handle, "v", {7, 64});
  const bringup_ir_value product = add(graph.handle, "t::mm", {a, w});
  returns(graph.handle, {product, add(graph.handle, "t::mm", {a, v})});
  static const char* const dtypes[] = {"float16", "float32", nullptr};
  static const char* const devices[] = {"npu", nullptr};
  static const int32_t ranks[] = {2};
  Finder finder;
  bringup_size first[] = {{BRINGUP_SIZE_NAMED, 0, "T"}, {BRINGUP_SIZE_NAMED, 0, "C"}};
  bringup_size second[] = {{BRINGUP_SIZE_NAMED, 0, "C"}, {BRINGUP_SIZE_NUMBER, 64, nullptr}};
  finder.build = [&](bringup_ir_graph wanted) {
    const bringup_ir_value x = input(wanted, "x"), y = input(wanted, "y");
    bringup_tensor_form form{};
    form.dtypes = dtypes;
    form.sizes = first;
    form.size_count = 2;
    where(wanted, x, form);
    form = {};
    form.devices = devices;
    form.ranks = ranks;
    form.rank_count = 1;
    form.sizes = second;
    form.size_count = 2;
    where(wanted, y, form);
    return add(wanted, "t::mm", {x, y});
  };
  int64_t rows = 0;
  finder.see = [&](bringup_match match, bringup_ir_graph) { rows = named(match, "T").of.integer; };
  CHECK_EQ(find(finder, graph.handle).count, 1u);
  CHECK_EQ(rows, 5);
  returns(graph.handle, {add(graph.handle, "t::mm", {a, v})});
  REQUIRE(api().erase_node(graph.handle, product.node) == BRINGUP_ENGINE_OK);
  CHECK(contains(find(finder, graph.handle).near_miss, "size 'C' in 'y' differs"));
  first[0] = {BRINGUP_SIZE_REST, 0, nullptr};
  first[1] = {BRINGUP_SIZE_ANY, 0, nullptr};
  second[1].number = 63;
  finder.see = [](bringup_match, bringup_ir_graph) {};
  CHECK(contains(find(finder, graph.handle).near_miss, "the shape of 'y' differs"));
}

TEST(patterns_may_leave_data_and_arguments_uncompared) {
  Graph graph;
  const bringup_argument pair[] = {value_argument(float_constant(graph.handle, {1, 2})),
                                   int_argument(3)};
  returns(graph.handle, {call(graph.handle, "t::f", {graph.value(), pair[0], pair[1]})});
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    return call(wanted, "t::f",
                {value_argument(input(wanted, "x")), value_argument(float_constant(wanted, {1, 3})),
                 int_argument(4)});
  };
  CHECK_EQ(find(finder, graph.handle).count, 0u);
  finder.adjust = [](bringup_ir_pattern pattern) {
    CHECK_EQ(api().pattern_compare(pattern, 0, 1), BRINGUP_ENGINE_OK);
  };
  CHECK_EQ(find(finder, graph.handle).count, 0u);
  finder.adjust = [](bringup_ir_pattern pattern) {
    CHECK_EQ(api().pattern_compare(pattern, 0, 0), BRINGUP_ENGINE_OK);
  };
  CHECK_EQ(find(finder, graph.handle).count, 1u);
}

namespace {

template <class Struct>
int32_t make_any(bringup_ir_graph graph, Struct piece) {
  piece.struct_size = sizeof(piece);
  bringup_argument argument{};
  if constexpr (std::is_same_v<Struct, bringup_any_piece>) {
    return api().pattern_any(graph, &piece, &argument);
  } else if constexpr (std::is_same_v<Struct, bringup_constant_piece>) {
    return api().pattern_constant(graph, &piece, &argument);
  } else {
    return api().pattern_list(graph, &piece, &argument);
  }
}

// The call was refused as a wrong argument, and said this.
bool refused(int32_t status, const char* words) {
  CHECK_EQ(status, BRINGUP_ENGINE_INVALID);
  return contains(api().last_error(), words);
}

}  // namespace

TEST(pieces_that_cannot_be_meant_are_refused) {
  Graph graph;
  bringup_any_piece any_piece{};
  any_piece.kinds = 1u << BRINGUP_ARGUMENT_SYMBOL;
  CHECK(refused(make_any(graph.handle, any_piece), "kinds has bit 5"));
  any_piece = {};
  any_piece.among_count = 1;
  CHECK(refused(make_any(graph.handle, any_piece), "among is NULL"));
  const bringup_argument value = graph.value();
  any_piece.among = &value;
  CHECK(refused(make_any(graph.handle, any_piece), "item 0 of among is a value"));
  const double low = 1, high = 2, nan = std::nan("");
  any_piece = {};
  any_piece.at_least = &high;
  any_piece.at_most = &low;
  CHECK(refused(make_any(graph.handle, any_piece), "at_least is greater"));
  any_piece.at_least = &nan;
  CHECK(refused(make_any(graph.handle, any_piece), "or NaN"));

  bringup_constant_piece constant_piece{};
  constant_piece.atol = -1;
  CHECK(refused(make_any(graph.handle, constant_piece), "atol and rtol"));
  const bringup_argument words[] = {text_argument("one"), text_argument("two")};
  const int64_t shape[] = {3, 1};
  constant_piece = {};
  constant_piece.values = words;
  constant_piece.value_count = 1;
  CHECK(refused(make_any(graph.handle, constant_piece), "BOOL, INT or FLOAT"));
  constant_piece.value_count = 2;
  CHECK(refused(make_any(graph.handle, constant_piece), "needs a shape"));
  constant_piece.shape = shape;
  constant_piece.rank = 2;
  CHECK(refused(make_any(graph.handle, constant_piece), "2 values, its shape another number"));
  constant_piece.rank = -1;
  CHECK(refused(make_any(graph.handle, constant_piece), "rank -1"));

  bringup_list_piece list_piece{};
  CHECK(refused(make_any(graph.handle, list_piece), "the name of a list is NULL"));
  const uint32_t one = 1;
  list_piece.name = "xs";
  list_piece.at_least = 2;
  list_piece.at_most = &one;
  CHECK(refused(make_any(graph.handle, list_piece), "at_most is less"));
  list_piece = {};
  list_piece.name = "xs";
  list_piece.each = 12345678;
  CHECK_EQ(make_any(graph.handle, list_piece), BRINGUP_ENGINE_EXPIRED);
  list_piece.each = 0;
  CHECK_EQ(make_any(graph.handle, list_piece), BRINGUP_ENGINE_OK);
  CHECK(refused(make_any(graph.handle, list_piece), "a list named 'xs' already"));
}

TEST(alternatives_and_forms_that_cannot_be_meant_are_refused) {
  Graph graph;
  bringup_ir_value value{};
  const bringup_argument pair[] = {int_argument(1), int_argument(2)};
  CHECK(
      refused(api().pattern_one_of(graph.handle, pair, 2, nullptr, &value), "one of them a value"));
  const bringup_argument mine = graph.value();
  CHECK(refused(api().pattern_one_of(graph.handle, &mine, 1, nullptr, &value), "two alternatives"));
  CHECK(refused(api().pattern_one_of(graph.handle, nullptr, 2, nullptr, &value), "is NULL"));
  const bringup_argument dead[] = {mine, value_argument({99, 0})};
  CHECK_EQ(api().pattern_one_of(graph.handle, dead, 2, nullptr, &value), BRINGUP_ENGINE_EXPIRED);
  const bringup_ir_value alone = add(graph.handle, "t::rand", {});
  CHECK(refused(api().pattern_optional(graph.handle, alone, nullptr, nullptr, &value),
                "reads no value that could stand in its place"));

  bringup_tensor_form form{};
  CHECK(refused(api().pattern_where(graph.handle, graph.x, &form), "no struct_size"));
  form.struct_size = sizeof(form);
  const bringup_size rests[] = {{BRINGUP_SIZE_REST, 0, nullptr}, {BRINGUP_SIZE_REST, 0, nullptr}};
  form.sizes = rests;
  form.size_count = 2;
  CHECK(refused(api().pattern_where(graph.handle, graph.x, &form), "two sizes of kind REST"));
  const bringup_size negative = {BRINGUP_SIZE_NUMBER, -1, nullptr};
  form.sizes = &negative;
  form.size_count = 1;
  CHECK(refused(api().pattern_where(graph.handle, graph.x, &form), "a size of a form is negative"));
  const bringup_size odd = {77, 0, nullptr};
  form.sizes = &odd;
  CHECK(refused(api().pattern_where(graph.handle, graph.x, &form), "no kind of size 77"));
  form.size_count = 0;
  CHECK_EQ(api().pattern_where(graph.handle, graph.x, &form), BRINGUP_ENGINE_OK);
  CHECK(refused(api().pattern_where(graph.handle, graph.x, &form), "is stated already"));
}

TEST(piece_belongs_to_the_graph_it_was_made_for) {
  Graph one, other;
  bringup_argument piece = any(one.handle, {});
  bringup_ir_node node = 0;
  CHECK(refused(api().add_node(other.handle, "t::f", &piece, 1, 1, BRINGUP_NO_NODE, &node),
                "was not made for this graph"));
  CHECK_EQ(api().add_node(one.handle, "t::f", &piece, 1, 1, BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_OK);
  bringup_argument back{};
  CHECK_EQ(api().node_argument(one.handle, node, 0, &back), BRINGUP_ENGINE_OK);
  CHECK_EQ(back.kind, static_cast<uint32_t>(BRINGUP_ARGUMENT_PIECE));
  CHECK_EQ(back.of.handle, piece.of.handle);
  piece.kind = BRINGUP_ARGUMENT_OPAQUE;
  piece.of.handle = 0x80000000u;
  CHECK(refused(api().set_argument(one.handle, node, 0, &piece), "there is no such object"));
}

TEST(name_that_stands_for_two_things_is_refused) {
  Graph graph;
  bringup_any_piece piece{};
  piece.name = "n";
  const bringup_argument n = any(graph.handle, piece);
  const bringup_size named_size = {BRINGUP_SIZE_NAMED, 0, "n"};
  bringup_tensor_form form{};
  form.sizes = &named_size;
  form.size_count = 1;
  where(graph.handle, graph.x, form);
  const bringup_ir_value f = call(graph.handle, "t::f", {graph.value(), n});
  returns(graph.handle, {f});
  bringup_ir_pattern pattern = 0;
  CHECK_EQ(api().pattern_create(graph.handle, "p", &pattern), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "the name 'n' stands for an argument and for a size"));
  uint32_t count = 0;
  CHECK_EQ(api().node_count(graph.handle, &count), BRINGUP_ENGINE_OK);  // it was not handed over
}

TEST(capture_under_a_taken_name_is_refused) {
  bringup_ir_graph graph = 0;
  api().graph_create("p", &graph);
  bringup_any_piece piece{};
  piece.name = "n";
  const bringup_ir_value f =
      call(graph, "t::f", {value_argument(input(graph, "x")), any(graph, piece)});
  returns(graph, {f});
  bringup_ir_pattern pattern = 0;
  REQUIRE(api().pattern_create(graph, nullptr, &pattern) == BRINGUP_ENGINE_OK);
  CHECK(refused(api().pattern_capture(pattern, f, "n"), "the name 'n' stands for an argument"));
  CHECK_EQ(api().pattern_capture(pattern, f, "f"), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().pattern_release(pattern), BRINGUP_ENGINE_OK);
}

// What only patterns may have is refused elsewhere.
TEST(pieces_are_refused_outside_of_patterns) {
  Graph graph;
  returns(graph.handle, {call(graph.handle, "t::f", {graph.value(), any(graph.handle, {})})});
  const Ran ran(graph.handle);
  CHECK(contains(ran.failure, "graph 'g' has a piece of a pattern at 'f': only patterns may"));
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    return add(wanted, "t::relu", {input(wanted, "x")});
  };
  Chain chain;
  std::string said;
  bringup_pass_definition definition{};
  definition.name = "Swap";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.user = &finder;
  definition.patterns = look_for;
  definition.replacement = [](void*, bringup_match match, bringup_pass_context,
                              bringup_ir_graph* replacement) {
    bringup_ir_graph target = 0;
    bringup_argument argument{BRINGUP_ARGUMENT_ANY, 0, {}};
    bringup_any_piece piece{};
    piece.struct_size = sizeof(piece);
    CHECK_EQ(api().match_graph(match, &target), BRINGUP_ENGINE_OK);
    CHECK(refused(api().pattern_any(target, &piece, &argument), "is being rewritten"));
    argument = {BRINGUP_ARGUMENT_ANY, 0, {}};
    api().graph_create("open", replacement);
    const bringup_ir_value x = input(*replacement, "x");
    returns(*replacement, {call(*replacement, "t::f", {value_argument(x), argument})});
    return 0;
  };
  const Registered registered(definition);
  CHECK(contains(Ran(chain.graph).failure, "the replacement 'open' has a piece of a pattern"));
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

// The status of a call that a hook passes on says why.
TEST(status_of_the_engine_that_a_hook_passes_on_keeps_its_words) {
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) { return input(wanted, "x"); };
  Graph graph;
  returns(graph.handle, {add(graph.handle, "t::f", {graph.x})});
  CHECK(contains(find(finder, graph.handle).failure, "returns its own input 'x'"));
}
