// Pieces of patterns in C: arguments, constants, lists, alternatives, parts that may be absent, and
// what tensors must look like.
#include "engine_pieces.h"

using namespace engine_pieces;

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
