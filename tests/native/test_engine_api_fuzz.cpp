// Random calls of the C API with handles that live, ended or never were, on their own and inside of
// hooks: every call is served or refused with a reason, and graphs stay ones that can be read.
#include <array>
#include <memory>
#include <random>

#include "engine_api.h"

using namespace engine_api;

namespace {

class Fuzzer {
 public:
  explicit Fuzzer(uint32_t seed) : random_(seed) {
    for (int index = 0; index < 3; ++index) make_graph();
  }
  ~Fuzzer() {
    for (const uint64_t handle : handles_) api().graph_release(handle);
    for (const uint64_t handle : handles_) api().pattern_release(handle);
  }

  // A handle that hooks were given: it is used as every other one, of whatever kind.
  void learn(uint64_t handle) { handles_.push_back(handle); }

  void step() {
    const int32_t status = call();
    if (status == BRINGUP_ENGINE_OK) {
      ++served;
    } else {
      ++refused;
      CHECK(*api().last_error() != '\0');
      CHECK(status != BRINGUP_ENGINE_INTERNAL);
    }
  }

  // Every graph that lives can be walked to its end.
  void check_graphs() {
    for (const uint64_t handle : handles_) {
      uint32_t count = 0, walked = 0;
      if (api().node_count(handle, &count) != BRINGUP_ENGINE_OK) continue;
      bringup_ir_node node = BRINGUP_NO_NODE;
      api().first_node(handle, &node);
      for (; node != BRINGUP_NO_NODE && walked <= count; ++walked) {
        REQUIRE(api().next_node(handle, node, &node) == BRINGUP_ENGINE_OK);
      }
      CHECK_EQ(walked, count);
    }
  }

  uint64_t served = 0, refused = 0;

 private:
  uint32_t below(uint32_t limit) { return random_() % limit; }
  uint64_t handle() {
    if (below(12) == 0) return random_();
    return handles_[below(static_cast<uint32_t>(handles_.size()))];
  }
  // The newest graphs are used more than the others.
  bringup_ir_graph graph() { return below(3) == 0 ? handle() : handles_[handles_.size() - 1]; }
  bringup_ir_node node() { return below(16) == 0 ? random_() : below(12); }
  bringup_ir_value value() { return {node(), below(8) == 0 ? 3u : 0u}; }
  const char* name() {
    static const char* const kNames[] = {"a", "b", "xs", "", nullptr};
    return kNames[below(5)];
  }
  const char* type() {
    static const char* const kTypes[] = {"t::relu", "t::add", "t::exp", "ir::input", "", nullptr};
    return kTypes[below(below(3) == 0 ? 6 : 3)];
  }

  bringup_argument argument(int depth = 0) {
    bringup_argument made{below(14), 0, {}};
    if (below(2) == 0) made.kind = BRINGUP_ARGUMENT_VALUE;
    switch (made.kind) {
      case BRINGUP_ARGUMENT_VALUE:
        made.of.value = value();
        break;
      case BRINGUP_ARGUMENT_STRING:
      case BRINGUP_ARGUMENT_SYMBOL:
      case BRINGUP_ARGUMENT_ANY:
        made.of.text = name();
        break;
      case BRINGUP_ARGUMENT_PIECE:
        made.of.handle = pieces_.empty() ? random_() : pieces_[below(uint32_t(pieces_.size()))];
        break;
      case BRINGUP_ARGUMENT_LIST:
      case BRINGUP_ARGUMENT_DICT:
      case BRINGUP_ARGUMENT_SLICE:
        made.count = depth > 2 ? 0 : below(4);
        nested_.emplace_back(std::make_unique<std::array<bringup_argument, 4>>());
        made.of.items = nested_.back()->data();
        for (auto& items = *nested_.back(); auto& item : items) item = argument(depth + 1);
        break;
      default:
        made.of.integer = below(4);
    }
    return made;
  }

  void make_graph() {
    bringup_ir_graph made = 0;
    CHECK_EQ(api().graph_create("g", &made), BRINGUP_ENGINE_OK);
    handles_.push_back(made);
    bringup_ir_value last = input(made, "x");
    for (int index = 0; index < 4; ++index) {
      last = add(made, index % 2 == 0 ? "t::relu" : "t::exp", {last});
    }
    returns(made, {last});
  }

  int32_t call() {
    nested_.clear();
    return below(2) == 0 ? call_on_graphs() : call_on_patterns();
  }

  int32_t call_on_graphs() {
    const std::array<bringup_argument, 3> arguments = {argument(), argument(), argument()};
    const std::array<bringup_ir_value, 2> values = {value(), value()};
    bringup_ir_node made = 0;
    const bringup_ir_node* nodes = nullptr;
    uint32_t count = 0;
    bringup_argument read{};
    bringup_ir_value result{};
    switch (below(12)) {
      case 0:
        make_graph();
        return BRINGUP_ENGINE_OK;
      case 1:
        return below(4) == 0 ? api().graph_release(handle()) : BRINGUP_ENGINE_OK;
      case 2:
      case 3:
        return api().add_node(graph(), type(), arguments.data(), below(4), below(3), node(), &made);
      case 4:
        return api().set_outputs(graph(), values.data(), below(3));
      case 5:
        return api().set_argument(graph(), node(), below(3), &arguments[0]);
      case 6:
        return api().replace_all_uses(graph(), values[0], values[1]);
      case 7:
        return api().erase_node(graph(), node());
      case 8:
        return api().node_argument(graph(), node(), below(3), &read);
      case 9:
        return below(8) == 0 ? api().graph_release_arrays(graph())
                             : api().value_users(graph(), values[0], &nodes, &count);
      case 10:
        return api().add_outer(graph(), handle(), values[0], &result);
      default:
        return boundary(values);
    }
  }

  int32_t boundary(const std::array<bringup_ir_value, 2>& values) {
    bringup_boundary part{};
    part.struct_size = below(8) == 0 ? below(4) : sizeof(part);
    part.inputs = values.data();
    part.input_count = below(3);
    part.outputs = values.data() + 1;
    part.output_count = below(2);
    const bringup_ir_node* nodes = nullptr;
    uint32_t count = 0;
    if (below(2) == 0) return api().boundary_nodes(graph(), &part, &nodes, &count);
    return api().boundary_replace(graph(), &part, handle(), &nodes, &count);
  }

  int32_t keep(int32_t status, const bringup_argument& piece) {
    if (status == BRINGUP_ENGINE_OK) pieces_.push_back(piece.of.handle);
    return status;
  }

  int32_t call_on_patterns() {
    bringup_argument piece{};
    bringup_ir_value result{};
    const bringup_argument pair[] = {argument(), argument()};
    const bringup_argument number = int_argument(below(3));
    const double bound = below(4);
    const uint32_t most = below(3);
    bringup_any_piece any{sizeof(any), below(300), name(), pair, below(3), &bound, nullptr};
    if (below(2) == 0) any.among = nullptr, any.among_count = 0;
    bringup_constant_piece constant{sizeof(constant), below(3), name(), pair, nullptr, 0, 0.5, 0};
    if (below(2) == 0) constant.values = &number, constant.value_count = 1;
    bringup_list_piece list{sizeof(list), below(3), &most, name(), below(2) == 0 ? 0 : handle()};
    const bringup_size sizes[] = {{int32_t(below(5)), int64_t(below(4)) - 1, name()},
                                  {int32_t(below(4)), 2, "n"}};
    const int32_t ranks[] = {int32_t(below(4)) - 1};
    bringup_tensor_form form{sizeof(form), below(3), sizes, nullptr, nullptr, ranks, below(2)};
    bringup_match item = 0;
    uint32_t count = 0;
    switch (below(12)) {
      case 0:
        return keep(api().pattern_any(graph(), &any, &piece), piece);
      case 1:
        return keep(api().pattern_constant(graph(), &constant, &piece), piece);
      case 2:
        return keep(api().pattern_list(graph(), &list, &piece), piece);
      case 3:
        return api().pattern_one_of(graph(), pair, below(3), name(), &result);
      case 4:
        return api().pattern_optional(graph(), value(), below(2) ? pair : nullptr, name(), &result);
      case 5:
        return api().pattern_where(graph(), value(), &form);
      case 6:
        return create_pattern();
      case 7:
        return api().pattern_capture(handle(), value(), name());
      case 8:
        return api().add_pattern(handle(), handle());
      case 9:
        return api().match_named(handle(), name(), &piece);
      case 10:
        return below(2) == 0 ? api().match_chosen(handle(), name(), &count)
                             : api().match_value(handle(), value(), &result);
      default:
        return api().match_item(handle(), name(), below(2), &item);
    }
  }

  int32_t create_pattern() {
    bringup_ir_pattern pattern = 0;
    const int32_t status = api().pattern_create(graph(), name(), &pattern);
    if (status == BRINGUP_ENGINE_OK) {
      handles_.push_back(pattern);
      make_graph();
    }
    return status;
  }

  std::mt19937 random_;
  std::vector<uint64_t> handles_;
  std::vector<uint64_t> pieces_;
  std::vector<std::unique_ptr<std::array<bringup_argument, 4>>> nested_;
};

}  // namespace

TEST(random_calls_are_served_or_refused_with_a_reason) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Fuzzer fuzzer(seed);
    for (int round = 0; round < 500; ++round) fuzzer.step();
    fuzzer.check_graphs();
    CHECK(fuzzer.served > 50);
    CHECK(fuzzer.refused > 50);
  }
}

namespace {

int32_t fuzz_patterns(void* instance, bringup_pass_context context) {
  auto& fuzzer = *static_cast<Fuzzer*>(instance);
  fuzzer.learn(context);
  for (int round = 0; round < 50; ++round) fuzzer.step();
  bringup_ir_pattern pattern = 0;
  const int32_t status = api().pattern_create(unary("t::relu"), nullptr, &pattern);
  return status != BRINGUP_ENGINE_OK ? status : api().add_pattern(context, pattern);
}

int32_t fuzz_match(void* instance, bringup_match match, bringup_pass_context context, int32_t*) {
  auto& fuzzer = *static_cast<Fuzzer*>(instance);
  bringup_ir_graph graph = 0;
  CHECK_EQ(api().match_graph(match, &graph), BRINGUP_ENGINE_OK);
  fuzzer.learn(context);
  fuzzer.learn(match);
  fuzzer.learn(graph);
  for (int round = 0; round < 20; ++round) fuzzer.step();
  return BRINGUP_ENGINE_OK;
}

int32_t fuzz_replacement(void* instance, bringup_match match, bringup_pass_context context,
                         bringup_ir_graph* replacement) {
  int32_t met = 0;
  const int32_t status = fuzz_match(instance, match, context, &met);
  *replacement = unary("t::tanh");
  return status;
}

}  // namespace

// Whatever hooks do to the graph that is being rewritten: the run ends, the graph can be read, and
// a failed pass leaves no trace.
TEST(random_calls_inside_of_hooks_end_in_a_report) {
  uint64_t changed = 0, failed = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Fuzzer fuzzer(1000 + seed);
    bringup_pass_definition definition{};
    definition.name = "Fuzzes";
    definition.kind = BRINGUP_PASS_PATTERN;
    definition.stage = BRINGUP_AFTER_INFER_SHAPE;
    definition.user = &fuzzer;
    definition.patterns = fuzz_patterns;
    definition.meet_requirements = fuzz_match;
    definition.replacement = fuzz_replacement;
    const Registered registered(definition);
    Chain chain;
    const std::string before = types(chain.graph);
    const Ran ran(chain.graph);
    REQUIRE(ran.results.size() == 1);
    const bool is_failed = ran.results[0].outcome == BRINGUP_OUTCOME_FAILED;
    if (is_failed) CHECK_EQ(types(chain.graph), before);
    (is_failed ? failed : changed) += 1;
    fuzzer.learn(chain.graph);
    fuzzer.check_graphs();
    REQUIRE(api().graph_create("again", &chain.graph) == BRINGUP_ENGINE_OK);
  }
  CHECK(changed > 0);
}
