// Device code with plain values: blocks and threads, values of each kind, limits, graphs.

#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 1000;
const Bytes kZero(kCount * sizeof(int32_t), 0);
const Bytes kValues = integers(kCount, -100, 3);

constexpr int32_t kAdded = 3;

// What one launch adds.
Bytes added(const Bytes& out, const Bytes& x, int32_t factor, int32_t launches = 1) {
  return accumulated(accumulated(out, x, factor), integers(kCount, kAdded, 0), launches);
}

void launch(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_values");
  const Arrays on(context, kZero, kValues);
  Bytes expected = kZero;
  const std::pair<bringup_dim3, bringup_dim3> sizes[] = {
      {{1, 1, 1}, {1, 1, 1}}, {{5, 1, 1}, {16, 1, 1}}, {{2, 3, 2}, {4, 2, 2}}};
  for (int32_t factor = -3; const auto& [grid, block] : sizes) {
    const ValuesWork work(context, fn, on.out.data(), on.x.data(), kCount, factor, kAdded, grid,
                          block);
    context.must<&D::launch_values>(0, on.stream, work.launch());
    expected = added(expected, kValues, factor);
    expect_bytes(
        on.result(), expected,
        concat("launch_values over a grid of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks"));
    factor += 4;
  }
}

void shared(Context& context) {
  constexpr int kBlocks = 4;
  constexpr int kThreads = 16;
  Module module(context);
  const Memory out(context, 0, kBlocks * sizeof(int32_t));
  const Stream stream(context);
  const bringup_value value{BRINGUP_VALUE_ADDRESS, 8, {.address = out.data()}};
  bringup_launch_values_args launch{};
  launch.struct_size = sizeof launch;
  launch.nvalues = 1;
  launch.values = &value;
  launch.fn = module.function("check_shared");
  launch.grid = {kBlocks, 1, 1};
  launch.block = {kThreads, 1, 1};
  launch.shared_bytes = kThreads * sizeof(int32_t);
  launch.name = "check::shared";
  context.must<&D::launch_values>(0, stream, &launch);
  out.expect(integers(kBlocks, kThreads * (kThreads - 1) / 2, kThreads),
             "what the threads of each block have left in its shared memory", stream);
}

void work_items(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_values");
  const Arrays on(context, kZero, kValues);
  Bytes expected = kZero;
  const std::pair<bringup_dim3, bringup_dim3> sizes[] = {{{37, 1, 1}, {1, 1, 1}},
                                                         {{3, 5, 2}, {2, 1, 1}}};
  for (int32_t factor = 2; const auto& [grid, block] : sizes) {
    ValuesWork work(context, fn, on.out.data(), on.x.data(), kCount, factor, kAdded, grid, block);
    work.set_work_items();
    context.must<&D::launch_values>(0, on.stream, work.launch());
    expected = added(expected, kValues, factor);
    expect_bytes(on.result(), expected,
                 concat("launch_values with ", grid.x * block.x, " x ", grid.y, " x ", grid.z,
                        " work items"));
    factor += 4;
  }
}

// The launch has not begun while the host function holds the stream.
void read_at_once(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_values");
  const Arrays on(context, kZero, kValues);
  ValuesWork work(context, fn, on.out.data(), on.x.data(), kCount, 2, kAdded);
  {
    Gate gate(context, 0, on.stream);
    context.must<&D::launch_values>(0, on.stream, work.launch());
    work.set_factor(100);
  }
  expect_bytes(on.result(), added(kZero, kValues, 2),
               "launch_values whose values were changed after it had returned");
}

void limits(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_values");
  const Arrays on(context, kZero, kValues);
  const bringup_device_props props = context.props(0);
  const auto refuse = [&](const ValuesWork& work) {
    context.must_give<&D::launch_values>(BRINGUP_INVALID, 0, on.stream, work.launch());
  };
  const auto plain = [&] {
    return ValuesWork(context, fn, on.out.data(), on.x.data(), kCount, 1, kAdded);
  };
  ValuesWork none = plain();
  none.set_grid({0, 1, 1});
  refuse(none);
  if (const uint32_t most = props.max_grid[1]; most != 0 && most < UINT32_MAX) {
    ValuesWork work = plain();
    work.set_grid({1, most + 1, 1});
    refuse(work);
  }
  if (const uint32_t most = props.max_block[2]; most != 0 && most < UINT32_MAX) {
    ValuesWork work = plain();
    work.set_block({1, 1, most + 1});
    refuse(work);
  }
  if (const uint32_t most = props.max_block_threads; most != 0 && most < UINT32_MAX / 2) {
    ValuesWork work = plain();
    work.set_block({most / 2 + 1, 2, 1});
    refuse(work);
  }
  if (const uint32_t most = props.max_shared_bytes; most != 0 && most < UINT32_MAX) {
    ValuesWork work = plain();
    work.set_shared_bytes(most + 1);
    refuse(work);
  }
  expect_bytes(on.result(), kZero, "what a launch wrote that was refused");
}

void graphs(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_values");
  const Arrays on(context, kZero, kValues);
  ValuesWork work(context, fn, on.out.data(), on.x.data(), kCount, 1, kAdded);
  bringup_graph graph = nullptr;
  context.must<&D::graph_create>(0, &graph);
  context.must<&D::graph_add_values>(graph, work.launch());
  work.set_factor(1000);  // the driver has copied it
  {
    Gate gate(context, 0, on.stream);
    context.must<&D::graph_launch>(graph, on.stream);
    work.set_factor(10);
    work.set_grid({2, 2, 1});
    context.must<&D::graph_update_values>(graph, 0, work.launch());
    context.must<&D::graph_launch>(graph, on.stream);
    work.set_factor(100);
  }
  const Bytes result = on.result();
  const int32_t status = context.call<&D::graph_update_values>(graph, 1, work.launch());
  context.must<&D::graph_destroy>(graph);
  expect_bytes(result, added(kZero, kValues, 11, 2),
               "graph_update_values between two launches that have not begun");
  expect(status != BRINGUP_OK,
         "graph_update_values returned BRINGUP_OK for a kernel that the graph does not have",
         "a failure", "BRINGUP_OK");
}

}  // namespace

std::vector<Check> values_checks() {
  constexpr const char* kNeeds = "module_load module_unload get_function launch_values";
  return {
      {"values.launch", "launch_values",
       "A kernel runs once for each thread of each block, and gets values of every kind.", launch,
       kNeeds},
      {"values.shared", "launch_values", "Each block has shared_bytes of memory of its own.",
       shared, kNeeds},
      {"values.work_items", "launch_values",
       "Of a launch with work_items as many threads run, in whatever blocks.", work_items, kNeeds},
      {"values.read_at_once", "launch_values",
       "All that the launch points at is read before the call returns.", read_at_once,
       "module_load module_unload get_function launch_values host_func"},
      {"values.limits", "launch_values",
       "What is beyond the properties' limits is BRINGUP_INVALID, and nothing runs.", limits,
       kNeeds},
      {"values.graphs", "graph_update_values",
       "Later launches run with the new values; those made before, also those that have not begun, "
       "with the former ones.",
       graphs,
       "module_load module_unload get_function graph_create graph_destroy graph_launch "
       "graph_add_values graph_update_values host_func"},
  };
}

}  // namespace bringup::driver_check
