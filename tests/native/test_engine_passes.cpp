// Passes in C over graphs of a C program: kinds, statuses, policies, stages.
#include <atomic>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <thread>

#include "engine_api.h"

using namespace engine_api;

namespace {

// A graph pass whose `run` is `Run`.
using Run = std::function<int32_t(bringup_ir_graph, bringup_pass_context)>;

int32_t call_run(void* instance, bringup_ir_graph graph, bringup_pass_context context) {
  return (*static_cast<Run*>(instance))(graph, context);
}

bringup_pass_definition graph_pass(const char* name, Run& run,
                                   int32_t stage = BRINGUP_AFTER_INFER_SHAPE) {
  bringup_pass_definition made{};
  made.name = name;
  made.kind = BRINGUP_PASS_GRAPH;
  made.stage = stage;
  made.user = &run;
  made.run = call_run;
  return made;
}

// tanh in the place of exp, by hand.
int32_t swap_exp(bringup_ir_graph graph) {
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  api().find_nodes(graph, "t::exp", &nodes, &count);
  for (uint32_t index = 0; index < count; ++index) {
    const bringup_ir_value* inputs = nullptr;
    uint32_t input_count = 0;
    api().node_inputs(graph, nodes[index], &inputs, &input_count);
    const bringup_ir_value made = add(graph, "t::tanh", {inputs[0]}, nodes[index]);
    api().replace_all_uses(graph, {nodes[index], 0}, made);
    api().erase_node(graph, nodes[index]);
  }
  return BRINGUP_ENGINE_OK;
}

const char* const kRelu[] = {"t::relu", nullptr};

int32_t replace_by_tanh(void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                        bringup_ir_graph* replacement) {
  *replacement = unary("t::tanh");
  return BRINGUP_ENGINE_OK;
}

bringup_pass_definition decompose_pass(const char* name) {
  bringup_pass_definition made{};
  made.name = name;
  made.kind = BRINGUP_PASS_DECOMPOSE;
  made.stage = BRINGUP_AFTER_INFER_SHAPE;
  made.op_types = kRelu;
  made.replace_node = replace_by_tanh;
  return made;
}

}  // namespace

TEST(graph_pass_edits_and_is_reported) {
  Chain chain;
  Run run = [](bringup_ir_graph graph, bringup_pass_context) { return swap_exp(graph); };
  const Registered registered(graph_pass("Swap", run));
  const Ran ran(chain.graph);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_OK);
  REQUIRE(ran.results.size() == 1);
  CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_CHANGED);
  CHECK_EQ(ran.results[0].matches, 1u);
  CHECK_EQ(ran.results[0].edits, 3u);
  CHECK_EQ(types(chain.graph), "t::relu t::tanh ");
  bringup_ir_node node = 0;
  CHECK_EQ(api().find_node(chain.graph, "tanh", &node), BRINGUP_ENGINE_OK);
  const char* rule = "";
  api().node_rule(chain.graph, node, &rule);
  CHECK_EQ(std::string(rule), "Swap");
}

// Failure fails the stage; statuses keep their number; all edits are undone.
TEST(status_of_failure_undoes_the_edits_and_is_kept) {
  Chain chain;
  Run run = [](bringup_ir_graph graph, bringup_pass_context) {
    swap_exp(graph);
    api().set_error("no room on the chip");
    return 42;
  };
  const Registered registered(graph_pass("Bad", run));
  const Ran ran(chain.graph);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_FAILED);
  CHECK(contains(ran.failure, "pass 'Bad' failed: run of 'Bad' returned status 42: no room on"));
  REQUIRE(ran.results.size() == 1);
  CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_FAILED);
  CHECK_EQ(ran.results[0].status, 42);
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

// An exception of a pass is a failure with its message.
TEST(exception_of_a_hook_is_a_failure_with_its_text) {
  Chain chain;
  Run run = [](bringup_ir_graph graph, bringup_pass_context) -> int32_t {
    swap_exp(graph);
    throw std::runtime_error("by hand");
  };
  Run odd = [](bringup_ir_graph, bringup_pass_context) -> int32_t { throw 3; };
  const Registered first(graph_pass("Throws", run)), second(graph_pass("ThrowsThree", odd));
  const Ran ran(chain.graph);
  CHECK(contains(ran.failure, "pass 'Throws' failed: run of 'Throws' threw: by hand"));
  CHECK(contains(ran.failure, "run of 'ThrowsThree' threw something that is no std::exception"));
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

TEST(skip_undoes_the_edits_and_succeeds) {
  Chain chain;
  Run run = [](bringup_ir_graph graph, bringup_pass_context) {
    swap_exp(graph);
    api().set_error("not today");
    return static_cast<int32_t>(BRINGUP_ENGINE_SKIP);
  };
  const Registered registered(graph_pass("Skips", run));
  const Ran ran(chain.graph);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_OK);
  REQUIRE(ran.results.size() == 1);
  CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_SKIPPED);
  CHECK_EQ(std::string(ran.results[0].message), "not today");
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

TEST(failure_lets_its_stage_end_and_no_later_one_begin_and_a_fatal_one_stops_at_once) {
  Chain chain;
  std::string order;
  int32_t first_status = 7;
  Run a = [&](bringup_ir_graph, bringup_pass_context) { return order += "a", first_status; };
  Run b = [&](bringup_ir_graph, bringup_pass_context) { return order += "b", 0; };
  Run c = [&](bringup_ir_graph, bringup_pass_context) { return order += "c", 0; };
  const Registered first(graph_pass("a", a)), second(graph_pass("b", b)),
      third(graph_pass("c", c, BRINGUP_AFTER_BUILTIN_FUSION_PASS));
  CHECK_EQ(Ran(chain.graph).status, BRINGUP_ENGINE_FAILED);
  CHECK_EQ(order, "ab");
  order.clear();
  first_status = BRINGUP_ENGINE_FATAL;
  const Ran ran(chain.graph);
  CHECK_EQ(order, "a");
  CHECK_EQ(ran.results[0].status, BRINGUP_ENGINE_FATAL);
}

TEST(policies_other_than_fail_let_the_run_go_on) {
  for (const int32_t policy : {BRINGUP_POLICY_SKIP, BRINGUP_POLICY_ROLLBACK}) {
    Chain chain;
    Run a = [&](bringup_ir_graph graph, bringup_pass_context) { return swap_exp(graph), 7; };
    bringup_pass_definition definition = graph_pass("a", a);
    definition.policy = policy;
    const Registered first(definition);
    const Ran ran(chain.graph);
    CHECK_EQ(ran.status, BRINGUP_ENGINE_OK);
    CHECK_EQ(ran.results[0].outcome, BRINGUP_OUTCOME_FAILED);
    CHECK_EQ(types(chain.graph), "t::relu t::exp ");
  }
}

// Replaced, not met, invalid replacement, no match.
TEST(decompose_pass_replaces_every_node_of_its_types) {
  Chain chain;
  const Registered registered(decompose_pass("Tanh"));
  const Ran ran(chain.graph);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_OK);
  CHECK_EQ(ran.results[0].matches, 1u);
  CHECK_EQ(types(chain.graph), "t::tanh t::exp ");
  bringup_ir_node node = 0;
  api().find_node(chain.graph, "tanh", &node);
  const char* const* origin = nullptr;
  uint32_t count = 0;
  api().node_origin(chain.graph, node, &origin, &count);
  REQUIRE(count == 1);
  CHECK_EQ(std::string(origin[0]), "relu");
  const Ran again(chain.graph);
  CHECK_EQ(again.results[0].outcome, BRINGUP_OUTCOME_UNCHANGED);
  CHECK_EQ(std::string(again.results[0].near_miss), "t::relu: the graph has no t::relu");
}

TEST(decompose_pass_leaves_what_does_not_meet_its_requirements) {
  Chain chain;
  bringup_pass_definition definition = decompose_pass("Picky");
  definition.meet_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                            int32_t* met) { return *met = 0, 0; };
  const Registered registered(definition);
  const Ran ran(chain.graph);
  CHECK_EQ(ran.results[0].refused, 1u);
  CHECK_EQ(std::string(ran.results[0].near_miss),
           "t::relu: at 'relu': meet_requirements returned False");
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

TEST(replacement_that_is_no_graph_or_does_not_fit_fails_the_pass) {
  Chain chain;
  bringup_pass_definition nothing = decompose_pass("Nothing"), expired = decompose_pass("Expired"),
                          itself = decompose_pass("Itself");
  nothing.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                            bringup_ir_graph*) { return 0; };
  expired.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                            bringup_ir_graph* replacement) {
    *replacement = unary("t::tanh");
    api().graph_release(*replacement);
    return 0;
  };
  itself.replace_node = [](void*, bringup_ir_graph graph, bringup_ir_node, bringup_pass_context,
                           bringup_ir_graph* replacement) { return *replacement = graph, 0; };
  const Registered first(nothing), second(expired), third(itself);
  const Ran ran(chain.graph);
  CHECK(contains(ran.failure, "replace_node of 'Nothing' returned no graph"));
  CHECK(contains(ran.failure, "graph handle has expired"));
  CHECK(contains(ran.failure, "the graph that is being rewritten cannot be handed over"));
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

TEST(policy_skip_undoes_only_the_match_that_failed) {
  bringup_ir_graph graph = 0;
  api().graph_create("three", &graph);
  const bringup_ir_value x = input(graph, "x");
  const bringup_ir_value a = add(graph, "t::relu", {x}), b = add(graph, "t::relu", {a}),
                         c = add(graph, "t::relu", {b});
  returns(graph, {c});
  static int calls;
  calls = 0;
  bringup_pass_definition definition = decompose_pass("Second");
  definition.policy = BRINGUP_POLICY_SKIP;
  definition.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                               bringup_ir_graph* replacement) -> int32_t {
    *replacement = unary("t::tanh");
    if (++calls == 2) {
      returns(*replacement, {});  // no output: the rewrite itself fails
    }
    return 0;
  };
  const Registered registered(definition);
  const Ran ran(graph);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_OK);
  CHECK_EQ(ran.results[0].matches, 2u);
  CHECK_EQ(ran.results[0].refused, 1u);
  CHECK(contains(ran.results[0].near_miss, "failed: the replacement 'unary' has 0 outputs"));
  CHECK_EQ(types(graph), "t::tanh t::relu t::tanh ");
  api().graph_release(graph);
}

TEST(budget_stops_and_fixpoint_repeats_until_nothing_matches) {
  bringup_ir_graph graph = 0;
  api().graph_create("two", &graph);
  const bringup_ir_value x = input(graph, "x");
  returns(graph, {add(graph, "t::relu", {add(graph, "t::relu", {x})})});
  bringup_pass_definition definition = decompose_pass("One");
  definition.max_rewrites = 1;
  {
    const Registered registered(definition);
    CHECK_EQ(Ran(graph).results[0].matches, 1u);
    CHECK_EQ(types(graph), "t::tanh t::relu ");
  }
  definition.max_rewrites = 0;
  definition.repeat_until_stable = 1;
  definition.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                               bringup_ir_graph* replacement) {
    return *replacement = unary("t::relu"), 0;
  };
  const Registered registered(definition);
  const Ran ran(graph);
  CHECK(contains(ran.failure, "does not become stable: after 10"));
  CHECK_EQ(types(graph), "t::tanh t::relu ");
  api().graph_release(graph);
}

TEST(one_run_has_one_instance_and_destroys_it) {
  static int created, destroyed;
  static uint64_t ids[4];
  created = destroyed = 0;
  Chain chain;
  bringup_pass_definition definition = decompose_pass("Counted");
  definition.create = [](void*) -> void* { return ++created, new int(created); };
  definition.destroy = [](void* instance) {
    ++destroyed;
    delete static_cast<int*>(instance);
  };
  definition.meet_node = [](void* instance, bringup_ir_graph, bringup_ir_node,
                            bringup_pass_context context, int32_t* met) {
    api().context_instance_id(context, &ids[*static_cast<int*>(instance)]);
    return *met = 0, 0;
  };
  const Registered registered(definition);
  const Ran first(chain.graph), second(chain.graph);
  CHECK_EQ(created, 2);
  CHECK_EQ(destroyed, 2);
  CHECK_EQ(ids[1], first.results[0].instance_id);
  CHECK_EQ(ids[2], second.results[0].instance_id);
  CHECK(ids[1] != ids[2]);
  CHECK(ids[1] != 0);
}

TEST(instance_that_cannot_be_made_fails_the_pass) {
  Chain chain;
  bringup_pass_definition definition = decompose_pass("Unmade");
  definition.create = [](void*) -> void* {
    api().set_error("out of luck");
    return nullptr;
  };
  const Registered registered(definition);
  CHECK(contains(Ran(chain.graph).failure, "create of 'Unmade' made no instance: out of luck"));
}

TEST(options_are_read_and_an_unknown_one_lists_them) {
  Chain chain;
  int64_t got = 0;
  std::string why;
  Run run = [&](bringup_ir_graph, bringup_pass_context context) {
    bringup_argument value{};
    CHECK_EQ(api().context_option(context, "level", &value), BRINGUP_ENGINE_OK);
    got = value.of.integer;
    CHECK_EQ(api().context_option(context, "nope", &value), BRINGUP_ENGINE_NOT_FOUND);
    why = api().last_error();
    const char* name = "";
    api().context_pass_name(context, &name);
    CHECK_EQ(std::string(name), "Reads");
    return 0;
  };
  const Registered registered(graph_pass("Reads", run));
  const bringup_option level{"level", int_argument(3)};
  bringup_run_options options{};
  options.options = &level;
  options.option_count = 1;
  CHECK_EQ(Ran(chain.graph, options).status, BRINGUP_ENGINE_OK);
  CHECK_EQ(got, 3);
  CHECK_EQ(why, "there is no option 'nope'; this run has 'level'");
}

TEST(newest_version_runs_unless_an_option_names_one) {
  Chain chain;
  std::string ran;
  Run old_run = [&](bringup_ir_graph, bringup_pass_context) { return ran = "old", 0; };
  Run new_run = [&](bringup_ir_graph, bringup_pass_context) { return ran = "new", 0; };
  bringup_pass_definition first = graph_pass("V", old_run), second = graph_pass("V", new_run);
  first.version = "1.9";
  second.version = "1.10";
  const Registered one(first), two(second);
  CHECK_EQ(Ran(chain.graph).results.size(), 1u);
  CHECK_EQ(ran, "new");
  const bringup_option version{"V", text_argument("1.9")};
  bringup_run_options options{};
  options.versions = &version;
  options.version_count = 1;
  CHECK_EQ(Ran(chain.graph, options).results.size(), 1u);
  CHECK_EQ(ran, "old");
  const Registered taken(second);
  CHECK_EQ(taken.status(), BRINGUP_ENGINE_DUPLICATE);
}

TEST(pass_without_the_hooks_of_its_kind_is_refused) {
  bringup_pass_definition no_run{}, no_types = decompose_pass("D"), both = decompose_pass("D");
  no_run.name = "G";
  no_types.op_types = nullptr;
  both.run = call_run;
  CHECK(contains(Registered(no_run).message(), "pass 'G' of kind fusion_base has no hook run"));
  CHECK(contains(Registered(no_types).message(), "op_types is empty"));
  CHECK(contains(Registered(both).message(), "has a hook run: it is driven by its other hooks"));
  bringup_pass_definition odd = decompose_pass("D");
  odd.stage = 9;
  CHECK(contains(Registered(odd).message(), "there is no stage number 9"));
  CHECK_EQ(api().register_pass(nullptr), BRINGUP_ENGINE_INVALID);
}

TEST(pass_that_orders_a_cycle_fails_and_leaves_the_graph) {
  Chain chain;
  Run run = [&](bringup_ir_graph graph, bringup_pass_context) {
    const bringup_argument later = value_argument(chain.exp);
    CHECK_EQ(api().set_argument(graph, chain.relu.node, 0, &later), BRINGUP_ENGINE_OK);
    return 0;
  };
  const Registered registered(graph_pass("Cycle", run));
  CHECK(contains(Ran(chain.graph).failure, "the graph cannot be ordered so that 'relu' has its"));
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

// Sessions on different graphs run in parallel, each with an instance of its own.
TEST(sessions_on_different_graphs_run_in_parallel) {
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  Run run = [&](bringup_ir_graph graph, bringup_pass_context) {
    ++inside;
    for (int spin = 0; spin < 20000 && !met; ++spin) {
      if (inside > 1) met = true;
      std::this_thread::yield();
    }
    --inside;
    return swap_exp(graph);
  };
  const Registered registered(graph_pass("Parallel", run));
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        Chain chain;
        CHECK_EQ(Ran(chain.graph).status, BRINGUP_ENGINE_OK);
        CHECK_EQ(types(chain.graph), "t::relu t::tanh ");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(met);
}

TEST(registered_passes_are_listed_in_running_order) {
  Run run = [](bringup_ir_graph, bringup_pass_context) { return 0; };
  const Registered late(graph_pass("a", run, BRINGUP_AFTER_ORIGIN_GRAPH_OPTIMIZE)),
      early(graph_pass("b", run, BRINGUP_BEFORE_INFER_SHAPE));
  REQUIRE(api().pass_count() == 2);
  bringup_pass_info info{};
  info.struct_size = sizeof(info);
  CHECK_EQ(api().pass_info(0, &info), BRINGUP_ENGINE_OK);
  CHECK_EQ(std::string(info.descriptor_key), "program:b:b");
  CHECK_EQ(std::string(info.version), "1");
  CHECK_EQ(api().pass_info(2, &info), BRINGUP_ENGINE_NOT_FOUND);
}
