// Pattern passes in C: what hooks learn about a match, and what becomes of it.
#include "engine_api.h"

using namespace engine_api;

namespace {

struct Hooks {
  bringup_ir_value a{}, mul{};  // in the pattern
  int32_t meet_status = BRINGUP_ENGINE_OK;
  bool met = true;
  std::string seen;
  const char* replacement = "t::fused";
  int32_t replacement_status = BRINGUP_ENGINE_OK;
};

// add(mul(a, b), c)
int32_t patterns(void* instance, bringup_pass_context context) {
  auto& hooks = *static_cast<Hooks*>(instance);
  bringup_ir_graph graph = 0;
  api().graph_create("mul_add", &graph);
  hooks.a = input(graph, "a");
  const bringup_ir_value b = input(graph, "b"), c = input(graph, "c");
  hooks.mul = add(graph, "t::mul", {hooks.a, b});
  returns(graph, {add(graph, "t::add", {hooks.mul, c})});
  bringup_ir_pattern pattern = 0;
  CHECK_EQ(api().pattern_create(graph, nullptr, &pattern), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().graph_release(graph), BRINGUP_ENGINE_EXPIRED);  // it was handed over
  CHECK_EQ(api().pattern_capture(pattern, hooks.mul, "product"), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().pattern_capture(pattern, {77, 0}, nullptr), BRINGUP_ENGINE_INVALID);
  return api().add_pattern(context, pattern);
}

std::string name_of(bringup_ir_graph graph, bringup_ir_value value) {
  const char* name = "";
  CHECK_EQ(api().node_name(graph, value.node, &name), BRINGUP_ENGINE_OK);
  return name;
}

int32_t meet(void* instance, bringup_match match, bringup_pass_context, int32_t* met) {
  auto& hooks = *static_cast<Hooks*>(instance);
  const char* pattern = "";
  bringup_ir_graph graph = 0;
  api().match_pattern(match, &pattern);
  CHECK_EQ(api().match_graph(match, &graph), BRINGUP_ENGINE_OK);
  hooks.seen += std::string(pattern) + ":";
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  api().match_nodes(match, &nodes, &count);
  for (uint32_t index = 0; index < count; ++index) {
    hooks.seen += " " + name_of(graph, {nodes[index], 0});
  }
  bringup_ir_value value{};
  CHECK_EQ(api().match_value(match, hooks.a, &value), BRINGUP_ENGINE_OK);
  hooks.seen += " a=" + name_of(graph, value);
  CHECK_EQ(api().match_captured(match, 0, &value), BRINGUP_ENGINE_OK);
  hooks.seen += " 0=" + name_of(graph, value) + ";";
  CHECK_EQ(api().match_captured(match, 1, &value), BRINGUP_ENGINE_NOT_FOUND);
  CHECK(contains(api().last_error(), "pattern 'mul_add' captures no tensor number 1"));
  bringup_argument argument{};
  CHECK_EQ(api().match_named(match, "product", &argument), BRINGUP_ENGINE_OK);
  CHECK_EQ(argument.kind, static_cast<uint32_t>(BRINGUP_ARGUMENT_VALUE));
  CHECK_EQ(api().match_named(match, "nothing", &argument), BRINGUP_ENGINE_NOT_FOUND);
  CHECK_EQ(api().match_value(match, {99, 0}, &value), BRINGUP_ENGINE_NOT_FOUND);
  *met = hooks.met ? 1 : 0;
  return hooks.meet_status;
}

int32_t replace(void* instance, bringup_match, bringup_pass_context,
                bringup_ir_graph* replacement) {
  auto& hooks = *static_cast<Hooks*>(instance);
  if (hooks.replacement == nullptr) return BRINGUP_ENGINE_OK;
  api().graph_create("fused", replacement);
  const bringup_ir_value a = input(*replacement, "a"), b = input(*replacement, "b"),
                         c = input(*replacement, "c");
  returns(*replacement, {add(*replacement, hooks.replacement, {a, b, c})});
  return hooks.replacement_status;
}

bringup_pass_definition pattern_pass(Hooks& hooks) {
  bringup_pass_definition made{};
  made.name = "Fuse";
  made.kind = BRINGUP_PASS_PATTERN;
  made.stage = BRINGUP_AFTER_INFER_SHAPE;
  made.user = &hooks;
  made.patterns = patterns;
  made.meet_requirements = meet;
  made.replacement = replace;
  return made;
}

// x * y + x, twice, the second on the result of the first
struct Target {
  bringup_ir_graph graph = 0;
  Target() {
    api().graph_create("target", &graph);
    const bringup_ir_value x = input(graph, "x"), y = input(graph, "y");
    bringup_ir_value top = x;
    for (int round = 0; round < 2; ++round) {
      top = add(graph, "t::add", {add(graph, "t::mul", {top, y}), x});
    }
    returns(graph, {top});
  }
  ~Target() { api().graph_release(graph); }
};

}  // namespace

TEST(pattern_pass_replaces_every_match) {
  Hooks hooks;
  const Registered registered(pattern_pass(hooks));
  Target target;
  const Ran ran(target.graph);
  CHECK_EQ(ran.failure, "");
  REQUIRE(ran.results.size() == 1);
  CHECK_EQ(ran.results[0].matches, 2u);
  CHECK_EQ(types(target.graph), "t::fused t::fused ");
  CHECK_EQ(hooks.seen, "mul_add: mul add a=x 0=mul;mul_add: mul_1 add_1 a=fused 0=mul_1;");
}

// Not met, a failing hook, a bad replacement, none at all.
TEST(match_that_is_not_met_or_skipped_stays) {
  Hooks hooks;
  const Registered registered(pattern_pass(hooks));
  Target target;
  hooks.met = false;
  {
    const Ran ran(target.graph);
    CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_UNCHANGED);
    CHECK_EQ(ran.results[0].refused, 2u);
    CHECK(contains(ran.results[0].near_miss, "meet_requirements returned False"));
  }
  hooks.meet_status = BRINGUP_ENGINE_SKIP;
  CHECK_EQ(Ran(target.graph).status, BRINGUP_ENGINE_OK);
  hooks.meet_status = 31;
  const Ran ran(target.graph);
  CHECK_EQ(ran.results[0].status, 31);
  CHECK(contains(ran.failure, "meet_requirements of 'Fuse' returned status 31"));
  CHECK_EQ(types(target.graph), "t::mul t::add t::mul t::add ");
}

// relu(x) -> x
int32_t relu_pattern(void*, bringup_pass_context context) {
  bringup_ir_pattern pattern = 0;
  CHECK_EQ(api().pattern_create(unary("t::relu"), nullptr, &pattern), BRINGUP_ENGINE_OK);
  return api().add_pattern(context, pattern);
}

int32_t replace_by_input(void*, bringup_match, bringup_pass_context,
                         bringup_ir_graph* replacement) {
  api().graph_create("identity", replacement);
  returns(*replacement, {input(*replacement, "in")});
  return BRINGUP_ENGINE_OK;
}

bringup_pass_definition identity_pass() {
  bringup_pass_definition made{};
  made.name = "DropRelu";
  made.kind = BRINGUP_PASS_PATTERN;
  made.stage = BRINGUP_AFTER_INFER_SHAPE;
  made.patterns = relu_pattern;
  made.replacement = replace_by_input;
  return made;
}

// A graph of x, whose results `make` adds.
struct Results {
  bringup_ir_graph graph = 0;
  template <class Make>
  explicit Results(Make&& make) {
    api().graph_create("results", &graph);
    const bringup_ir_value x = input(graph, "x");
    returns(graph, make(graph, x));
  }
  ~Results() { api().graph_release(graph); }
};

// Nobody can copy in a graph of the engine's own.
TEST(identity_whose_result_would_be_an_input_is_left_alone_and_the_pass_goes_on) {
  const Registered registered(identity_pass());
  const Results target([](bringup_ir_graph graph, bringup_ir_value x) {
    const bringup_ir_value inner = add(graph, "t::relu", {add(graph, "t::exp", {x})});
    return std::vector{add(graph, "t::relu", {x}), add(graph, "t::neg", {inner})};
  });
  const Ran ran(target.graph);
  CHECK_EQ(ran.failure, "");
  REQUIRE(ran.results.size() == 1);
  CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_CHANGED);
  CHECK_EQ(ran.results[0].matches, 1u);
  CHECK_EQ(ran.results[0].refused, 1u);
  CHECK(contains(ran.results[0].near_miss,
                 "result 0 of the graph would share memory with 'x', which it did not before: "
                 "copy it"));
  CHECK_EQ(types(target.graph), "t::exp t::relu t::neg ");
}

TEST(identity_that_would_make_two_results_one_is_left_alone) {
  const Registered registered(identity_pass());
  const Results target([](bringup_ir_graph graph, bringup_ir_value x) {
    const bringup_ir_value inner = add(graph, "t::exp", {x});
    return std::vector{inner, add(graph, "t::relu", {inner})};
  });
  const Ran ran(target.graph);
  CHECK_EQ(ran.failure, "");
  CHECK_EQ(ran.results[0].refused, 1u);
  CHECK(contains(ran.results[0].near_miss, "results 0 and 1 of the graph would share memory"));
  CHECK_EQ(types(target.graph), "t::exp t::relu ");
}

TEST(missing_replacement_fails_the_pass) {
  Hooks hooks;
  hooks.replacement = nullptr;
  const Registered registered(pattern_pass(hooks));
  Target target;
  CHECK(contains(Ran(target.graph).failure, "replacement of 'Fuse' returned no graph"));
  CHECK_EQ(types(target.graph), "t::mul t::add t::mul t::add ");
}

TEST(near_miss_says_what_differs) {
  Hooks hooks;
  const Registered registered(pattern_pass(hooks));
  bringup_ir_graph graph = 0;
  api().graph_create("other", &graph);
  const bringup_ir_value x = input(graph, "x");
  returns(graph, {add(graph, "t::add", {add(graph, "t::sub", {x, x}), x})});
  const Ran ran(graph);
  CHECK_EQ(ran.results[0].matches, 0u);
  CHECK(contains(ran.results[0].near_miss, "t::mul"));
  CHECK(contains(ran.results[0].near_miss, "t::sub"));
  api().graph_release(graph);
}

TEST(open_argument_matches_anything_and_is_captured_by_its_name) {
  static std::string seen;
  bringup_pass_definition definition{};
  definition.name = "View";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.patterns = [](void*, bringup_pass_context context) {
    bringup_ir_graph graph = 0;
    api().graph_create("view", &graph);
    bringup_argument arguments[2] = {value_argument(input(graph, "x")), {}};
    arguments[1].kind = BRINGUP_ARGUMENT_ANY;
    arguments[1].of.text = "size";
    bringup_ir_node node = 0;
    CHECK_EQ(api().add_node(graph, "t::view", arguments, 2, 1, BRINGUP_NO_NODE, &node), 0);
    returns(graph, {{node, 0}});
    bringup_ir_pattern pattern = 0;
    api().pattern_create(graph, "view", &pattern);
    return api().add_pattern(context, pattern);
  };
  definition.replacement = [](void*, bringup_match match, bringup_pass_context,
                              bringup_ir_graph* replacement) {
    bringup_argument size{};
    CHECK_EQ(api().match_named(match, "size", &size), BRINGUP_ENGINE_OK);
    if (size.kind == BRINGUP_ARGUMENT_LIST) seen += std::to_string(size.of.items[0].of.integer);
    return *replacement = unary("t::reshape"), 0;
  };
  const Registered registered(definition);
  bringup_ir_graph graph = 0;
  api().graph_create("g", &graph);
  const bringup_argument four = int_argument(4);
  bringup_argument arguments[2] = {value_argument(input(graph, "x")), {}};
  arguments[1] = {BRINGUP_ARGUMENT_LIST, 1, {}};
  arguments[1].of.items = &four;
  bringup_ir_node node = 0;
  api().add_node(graph, "t::view", arguments, 2, 1, BRINGUP_NO_NODE, &node);
  returns(graph, {{node, 0}});
  const Ran ran(graph);
  CHECK_EQ(ran.failure, "");
  CHECK_EQ(seen, "4");
  CHECK_EQ(types(graph), "t::reshape ");
  api().graph_release(graph);
}

// A pattern that cannot be meant fails its pass with a reason.
TEST(pattern_without_an_output_fails_its_pass) {
  bringup_pass_definition definition{};
  definition.name = "Empty";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.patterns = [](void*, bringup_pass_context context) {
    bringup_ir_graph graph = 0;
    api().graph_create("nothing", &graph);
    bringup_ir_pattern pattern = 0;
    api().pattern_create(graph, nullptr, &pattern);
    return api().add_pattern(context, pattern);
  };
  definition.replacement = [](void*, bringup_match, bringup_pass_context, bringup_ir_graph*) {
    return 0;
  };
  const Registered registered(definition);
  Target target;
  CHECK(contains(Ran(target.graph).failure, "pass 'Empty' failed: "));
  definition.patterns = [](void*, bringup_pass_context) { return 0; };
  api().unregister_pass("Empty", nullptr);
  const Registered none(definition);
  CHECK(contains(Ran(target.graph).failure, "patterns of 'Empty' gave none"));
}

TEST(handle_of_a_match_ends_with_its_hook) {
  static bringup_match kept;
  Hooks hooks;
  bringup_pass_definition definition = pattern_pass(hooks);
  definition.meet_requirements = [](void*, bringup_match match, bringup_pass_context,
                                    int32_t* met) { return kept = match, *met = 0, 0; };
  const Registered registered(definition);
  Target target;
  const Ran ran(target.graph);
  const char* name = "";
  CHECK_EQ(api().match_pattern(kept, &name), BRINGUP_ENGINE_EXPIRED);
  CHECK(contains(api().last_error(), "match handle has expired"));
}
