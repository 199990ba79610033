// Pieces of patterns in C that cannot be meant, or stand where none may: each is refused with a
// reason.
#include <cmath>

#include "engine_pieces.h"

using namespace engine_pieces;

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
  finder.build = [](bringup_ir_graph wanted) {
    const bringup_ir_value x = input(wanted, "x");
    input(wanted, "y");
    return x;
  };
  Graph graph;
  returns(graph.handle, {add(graph.handle, "t::f", {graph.x})});
  CHECK(contains(find(finder, graph.handle).failure, "input 1 of pattern 'wanted' is used"));
}
