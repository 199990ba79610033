// Handles of the C API: what ended, never was, or belongs to another thread is refused.
#include <cstdint>
#include <limits>
#include <random>
#include <thread>

#include "engine_api.h"

using namespace engine_api;

namespace {

bringup_ir_graph kept_graph;
bringup_pass_context kept_context;

int32_t keep_handles(void*, bringup_ir_graph graph, bringup_pass_context context) {
  kept_graph = graph;
  kept_context = context;
  int32_t status = BRINGUP_ENGINE_OK;
  std::thread([&] {
    uint32_t count = 0;
    status = api().node_count(graph, &count);
  }).join();
  CHECK_EQ(status, BRINGUP_ENGINE_EXPIRED);
  CHECK_EQ(api().graph_release(graph), BRINGUP_ENGINE_INVALID);
  bringup_ir_value value{};
  CHECK_EQ(api().add_input(graph, "more", nullptr, &value), BRINGUP_ENGINE_FAILED);
  bringup_run_report report = 0;
  CHECK_EQ(api().run_passes(graph, nullptr, &report), BRINGUP_ENGINE_INVALID);
  return BRINGUP_ENGINE_OK;
}

}  // namespace

TEST(handles_end_with_the_hook_they_were_given_to) {
  Chain chain;
  bringup_pass_definition definition{};
  definition.name = "Keeps";
  definition.run = keep_handles;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  const Registered registered(definition);
  CHECK_EQ(Ran(chain.graph).status, BRINGUP_ENGINE_OK);
  uint32_t count = 0;
  CHECK_EQ(api().node_count(kept_graph, &count), BRINGUP_ENGINE_EXPIRED);
  CHECK(contains(api().last_error(), "graph handle has expired"));
  const char* name = "";
  CHECK_EQ(api().context_pass_name(kept_context, &name), BRINGUP_ENGINE_EXPIRED);
  CHECK(contains(api().last_error(), "context handle has expired"));
}

TEST(released_graph_and_erased_node_are_refused) {
  Chain chain;
  CHECK_EQ(api().erase_node(chain.graph, chain.relu.node), BRINGUP_ENGINE_INVALID);
  CHECK(contains(api().last_error(), "'relu' cannot be erased: 'exp' still reads it"));
  returns(chain.graph, {chain.relu});
  CHECK_EQ(api().erase_node(chain.graph, chain.exp.node), BRINGUP_ENGINE_OK);
  const char* type = "";
  CHECK_EQ(api().node_type(chain.graph, chain.exp.node, &type), BRINGUP_ENGINE_EXPIRED);
  const bringup_argument dead = value_argument(chain.exp);
  bringup_ir_node node = 0;
  CHECK_EQ(api().add_node(chain.graph, "t::neg", &dead, 1, 0, BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_EXPIRED);
  bringup_ir_graph graph = 0;
  api().graph_create("short", &graph);
  CHECK_EQ(api().graph_release(graph), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().graph_release(graph), BRINGUP_ENGINE_EXPIRED);
  CHECK_EQ(api().graph_name(graph, &type), BRINGUP_ENGINE_EXPIRED);
}

TEST(null_pointers_are_refused) {
  Chain chain;
  CHECK_EQ(api().graph_create("g", nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().node_count(chain.graph, nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().find_node(chain.graph, nullptr, nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().add_node(chain.graph, nullptr, nullptr, 0, 0, BRINGUP_NO_NODE, nullptr),
           BRINGUP_ENGINE_INVALID);
  bringup_ir_node node = 0;
  CHECK_EQ(api().add_node(chain.graph, "t::neg", nullptr, 3, 0, BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().set_argument(chain.graph, chain.exp.node, 0, nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().graph_set_providers(chain.graph, nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(api().load_library(nullptr, nullptr), BRINGUP_ENGINE_INVALID);
  CHECK_EQ(types(chain.graph), "t::relu t::exp ");
}

TEST(arguments_of_every_kind_come_back_as_they_were_given) {
  Chain chain;
  const bringup_argument pair[] = {int_argument(1), text_argument("two")};
  bringup_argument arguments[5] = {};
  arguments[0] = {BRINGUP_ARGUMENT_LIST, 2, {}};
  arguments[0].of.items = pair;
  arguments[1] = {BRINGUP_ARGUMENT_FLOAT, 0, {}};
  arguments[1].of.number = 0.5;
  arguments[2] = {BRINGUP_ARGUMENT_DICT, 2, {}};
  arguments[2].of.items = pair;
  arguments[3] = {BRINGUP_ARGUMENT_SYMBOL, 0, {}};
  arguments[3].of.text = "2*s0";
  arguments[4] = value_argument(chain.x);
  bringup_ir_node node = 0;
  REQUIRE(api().add_node(chain.graph, "t::many", arguments, 5, 2, chain.exp.node, &node) == 0);
  uint32_t count = 0;
  api().node_argument_count(chain.graph, node, &count);
  CHECK_EQ(count, 5u);
  api().node_output_count(chain.graph, node, &count);
  CHECK_EQ(count, 2u);
  bringup_argument got{};
  api().node_argument(chain.graph, node, 0, &got);
  REQUIRE(got.kind == BRINGUP_ARGUMENT_LIST && got.count == 2);
  CHECK_EQ(got.of.items[0].of.integer, 1);
  CHECK_EQ(std::string(got.of.items[1].of.text), "two");
  api().node_argument(chain.graph, node, 3, &got);
  CHECK_EQ(std::string(got.of.text), "2*s0");
  CHECK_EQ(api().node_argument(chain.graph, node, 5, &got), BRINGUP_ENGINE_NOT_FOUND);
  bringup_argument odd = arguments[0];
  odd.kind = 77;
  CHECK_EQ(api().set_argument(chain.graph, node, 0, &odd), BRINGUP_ENGINE_INVALID);
  bringup_argument deep[100] = {};
  for (int level = 0; level < 99; ++level) {
    deep[level] = {BRINGUP_ARGUMENT_LIST, 1, {}};
    deep[level].of.items = &deep[level + 1];
  }
  CHECK_EQ(api().set_argument(chain.graph, node, 0, &deep[0]), BRINGUP_ENGINE_INVALID);
  CHECK(contains(api().last_error(), "nested too deeply"));
}

TEST(shorter_structs_of_older_plugins_are_read_and_written_no_further) {
  bringup_pass_info info{};
  info.struct_size = offsetof(bringup_pass_info, version);
  info.version = "untouched";
  bringup_pass_definition definition{};
  definition.name = "Old";
  definition.run = keep_handles;
  const Registered registered(definition);
  CHECK_EQ(api().pass_info(0, &info), BRINGUP_ENGINE_OK);
  CHECK_EQ(std::string(info.name), "Old");
  CHECK_EQ(std::string(info.version), "untouched");
  info.struct_size = 0;
  CHECK_EQ(api().pass_info(0, &info), BRINGUP_ENGINE_INVALID);
}

// Whatever numbers are given, nothing crashes and the graph stays one that can be read.
TEST(random_handles_nodes_and_values_are_refused_or_served) {
  Chain chain;
  std::mt19937 random(7);
  const auto number = [&]() -> uint32_t {
    const uint32_t chosen = random() % 8;
    return chosen < 6 ? chosen : (chosen == 6 ? random() : UINT32_MAX);
  };
  for (int round = 0; round < 3000; ++round) {
    const bringup_ir_graph graph = random() % 4 == 0 ? random() % 64 : chain.graph;
    bringup_ir_node node = 0;
    uint32_t count = 0;
    const char* text = "";
    const bringup_ir_node* nodes = nullptr;
    const bringup_argument argument = value_argument({number(), number() % 3});
    switch (random() % 8) {
      case 0:
        api().next_node(graph, number(), &node);
        break;
      case 1:
        api().node_name(graph, number(), &text);
        break;
      case 2:
        api().value_users(graph, {number(), number()}, &nodes, &count);
        break;
      case 3:
        api().replace_all_uses(graph, {number(), 0}, {number(), number() % 2});
        break;
      case 4:
        api().erase_node(graph, number());
        break;
      case 5:
        api().move_before(graph, number(), number());
        break;
      case 6:
        api().set_argument(graph, number(), number() % 3, &argument);
        break;
      default:
        api().add_node(graph, "t::neg", &argument, 1, number() % 4, number(), &node);
    }
  }
  uint32_t count = 0;
  CHECK_EQ(api().node_count(chain.graph, &count), BRINGUP_ENGINE_OK);
  bringup_ir_node node = 0;
  uint32_t walked = 0;
  for (api().first_node(chain.graph, &node); node != BRINGUP_NO_NODE && walked <= count; ++walked) {
    api().next_node(chain.graph, node, &node);
  }
  CHECK_EQ(walked, count);
}
