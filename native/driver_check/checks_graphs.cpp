// Device graphs: order, launches in flight, new arguments, what is released.
#include <atomic>
#include <deque>

#include "driver_check/graph.h"
#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 2000;
constexpr size_t kBytes = kCount * sizeof(int32_t);
const Bytes kValues = integers(kCount, 3, 2);
const Bytes kZero(kBytes, 0);

void handles(Context& context) {
  std::deque<Graph> graphs;  // the kit's table sees NULL, and a handle that is given out twice
  for (int i = 0; i < 4; ++i) graphs.emplace_back(context);
}

void copies_in_order(Context& context) {
  const Memory first(context, 0, kBytes);
  const Memory second(context, 0, kBytes);
  const Memory third(context, 0, kBytes);
  Bytes result(kBytes, 0);
  const Stream stream(context);
  Graph graph(context);
  graph.add_copy(BRINGUP_DEVICE_TO_DEVICE, second.data(), first.data(), kBytes);
  graph.add_copy(BRINGUP_DEVICE_TO_DEVICE, third.data(), second.data(), kBytes);
  graph.add_copy(BRINGUP_DEVICE_TO_HOST, result.data(), third.data(), kBytes);
  for (uint64_t round = 0; round < 3; ++round) {
    const Bytes content = pattern(kBytes, round);
    first.upload(content, stream);
    graph.launch(stream);
    context.synchronize(0, stream);
    expect_bytes(result, content,
                 concat("graph_launch of three copies, the ", round + 1, ". time"));
  }
}

void two_in_flight(Context& context) {
  const Memory from(context, 0, kBytes);
  const Memory to(context, 0, kBytes);
  const Bytes contents[] = {pattern(kBytes, 1), pattern(kBytes, 2)};
  Bytes results[] = {Bytes(kBytes, 0), Bytes(kBytes, 0)};
  const Stream stream(context);
  Graph graph(context);
  graph.add_copy(BRINGUP_DEVICE_TO_DEVICE, to.data(), from.data(), kBytes);
  for (size_t i = 0; i < 2; ++i) {
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, from.data(), contents[i].data(), kBytes, stream);
    graph.launch(stream);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, results[i].data(), to.data(), kBytes, stream);
  }
  context.synchronize(0, stream);
  for (size_t i = 0; i < 2; ++i) {
    expect_bytes(results[i], contents[i],
                 concat("graph_launch twice before the former has finished, launch ", i + 1));
  }
}

void host_functions(Context& context) {
  std::atomic<int> runs{0};
  const Stream stream(context);
  Graph graph(context);
  context.must<&D::graph_add_host_func>(
      graph, +[](void* user) { ++*static_cast<std::atomic<int>*>(user); },
      static_cast<void*>(&runs));
  for (int i = 0; i < 5; ++i) graph.launch(stream);
  context.synchronize(0, stream);
  expect(runs == 5,
         concat("graph_launch five times ran the graph's host function ", runs.load(), " times"),
         "5", runs.load());
}

void kernels(Context& context) {
  Module module(context);
  const Arrays on(context, kZero, kValues);
  const Work work(context, module, on.out.data(), on.x.data(), kCount, 4);
  Graph graph(context);
  work.add_to(graph);
  for (int i = 0; i < 3; ++i) graph.launch(on.stream);
  expect_bytes(on.result(), accumulated(kZero, kValues, 12),
               "graph_launch of a kernel three times");
  work.expect_released(0, "while the graph lives");
  graph.destroy();
  context.synchronize(0, on.stream);
  work.expect_released(1, "after graph_destroy");
}

// Launches that were made keep their arguments, also those that have not begun.
void update(Context& context) {
  Module module(context);
  const Arrays on(context, kZero, kValues);
  Work work(context, module, on.out.data(), on.x.data(), kCount, 1);
  Graph graph(context);
  work.add_to(graph);
  {
    Gate gate(context, 0, on.stream);
    graph.launch(on.stream);
    work.set_factor(10);
    expect(work.update(graph, 0) == BRINGUP_OK, "new arguments of the graph's kernel were refused",
           "BRINGUP_OK", context.words());
    graph.launch(on.stream);
    work.set_factor(100);  // the driver copied them: this changes nothing
  }
  expect_bytes(on.result(), accumulated(kZero, kValues, 11),
               "graph_update_kernel between two launches that have not begun");
  expect(work.update(graph, 7) != BRINGUP_OK,
         "new arguments were taken for a kernel that the graph does not have", "a failure",
         "BRINGUP_OK");
}

// The device follows: a loop takes one of `flags` and one of `counts` away in each trip, as long as
// there is a flag. Returns what is the first of `counts` then, or 99 where a branch left it out.
uint8_t trips(Context& context, uint8_t outer, const Bytes& flags) {
  constexpr size_t kMost = 8;
  Bytes content(flags);
  content.resize(kMost);
  for (uint8_t i = 0; i < kMost; ++i) content.push_back(i);
  content.insert(content.end(), {outer, 99, 0});
  const Stream stream(context);
  const Memory memory(context, 0, content.size()), moved(context, 0, content.size());
  uint8_t* const flag = memory.data();
  uint8_t* const count = flag + kMost;
  uint8_t* const choice = count + kMost;
  uint8_t* const predicate = choice + 2;
  bringup_graph loop{}, other{}, before{}, body{};
  Graph graph(context);
  context.must<&D::graph_add_conditional>(graph, int32_t{BRINGUP_CONDITIONAL_IF}, choice, &loop,
                                          &other);
  context.must<&D::graph_add_conditional>(loop, int32_t{BRINGUP_CONDITIONAL_WHILE}, predicate,
                                          &before, &body);
  const auto copy = [&](bringup_graph to, uint8_t* dst, const uint8_t* src, size_t bytes) {
    context.must<&D::graph_add_copy>(to, BRINGUP_DEVICE_TO_DEVICE, static_cast<void*>(dst),
                                     static_cast<const void*>(src), bytes);
  };
  copy(before, predicate, flag, 1);
  for (uint8_t* const row : {flag, count}) {
    copy(body, moved.data(), row + 1, kMost - 1);
    copy(body, row, moved.data(), kMost - 1);
  }
  copy(other, count, choice + 1, 1);
  uint8_t result = 0;
  graph.add_copy(BRINGUP_DEVICE_TO_HOST, &result, count, 1);
  memory.upload(content, stream);
  graph.launch(stream);
  context.synchronize(0, stream);
  return result;
}

void conditional(Context& context) {
  const auto gives = [&](uint8_t outer, const Bytes& flags, int expected) {
    const int got = trips(context, outer, flags);
    expect(got == expected,
           concat("a loop with ", flags.size(), " flags in a branch with the predicate ",
                  static_cast<int>(outer), " did not run as often as they say"),
           std::to_string(expected), got);
  };
  gives(1, {1, 2, 255}, 3);
  gives(128, {}, 0);
  gives(0, {1}, 99);
}

}  // namespace

std::vector<Check> graph_checks() {
  constexpr const char* kCopies = "graph_create graph_destroy graph_launch graph_add_copy";
  constexpr const char* kKernels =
      "graph_create graph_destroy graph_launch graph_add_kernel|graph_add_values module_load "
      "get_function launch|launch_values";
  return {
      {"graphs.handles", "graph_create",
       "A handle is never NULL and differs from all live ones of its kind.", handles,
       "graph_create graph_destroy"},
      {"graphs.copies_in_order", "graph_launch",
       "Nodes run in the order they are added; graph_launch runs all of them in the stream.",
       copies_in_order, kCopies},
      {"graphs.two_in_flight", "graph_launch",
       "A graph may be launched again before the former launch has finished; launches of one graph "
       "never overlap.",
       two_in_flight, kCopies},
      {"graphs.host_functions", "graph_add_host_func", "Each launch runs each node once.",
       host_functions, "graph_create graph_destroy graph_launch graph_add_host_func"},
      {"graphs.kernels", "graph_add_kernel",
       "Each launch runs each node once; release is called once the graph is destroyed and its "
       "last launch is over.",
       kernels, kKernels},
      {"graphs.update", "graph_update_kernel",
       "Later launches run with the new arguments; those made before, also those that have not "
       "begun, with the former ones.",
       update,
       "graph_create graph_destroy graph_launch graph_add_kernel|graph_add_values "
       "graph_update_kernel|graph_update_values module_load get_function launch|launch_values "
       "host_func"},
      {"graphs.conditional", "graph_add_conditional",
       "The device reads the predicate when it comes to the node; WHILE: behind the first graph, "
       "each time.",
       conditional, "graph_create graph_destroy graph_launch graph_add_copy graph_add_conditional"},
  };
}

}  // namespace bringup::driver_check
