// The simulated NPU with isolated memory: the host cannot touch it, kernels and copies can.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

const bool isolated = setenv("BRINGUP_SIM_ISOLATED", "1", 1) == 0;
const bool small = setenv("BRINGUP_SIM_MEMORY", "1M", 1) == 0;

TEST(settings_are_read) {
  REQUIRE(isolated && small);
  bringup_device_props props{};
  props.struct_size = sizeof(props);
  CHECK_EQ(driver().device_props(0, &props), BRINGUP_OK);
  CHECK_EQ(props.host_visible_memory, 0u);
  CHECK_EQ(props.total_memory, uint64_t{1} << 20);
}

TEST(there_is_no_host_view) {
  const Memory memory(64);
  void* host = nullptr;
  CHECK_EQ(driver().host_view(0, memory.get(), &host), BRINGUP_UNSUPPORTED);
  CHECK(last_error().find("BRINGUP_SIM_ISOLATED=1") != std::string::npos);
}

TEST(a_host_that_touches_device_memory_faults) {
  const Memory memory(64);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, [](int) { _exit(42); });
    *static_cast<volatile char*>(memory.get()) = 1;
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST(copies_fills_and_kernels_reach_it) {
  const Memory memory(4 * sizeof(int64_t));
  const std::vector<int64_t> values = {1, 2, 3, 4};
  driver().copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, values.data(),
                      4 * sizeof(int64_t), nullptr);
  Launch adding(add_number, memory.get(), 4, 10);
  driver().launch(0, nullptr, &adding.launch);
  CHECK_EQ(read(memory, 4), (std::vector<int64_t>{11, 12, 13, 14}));
  CHECK(adding.tensor.data == memory.get());  // the launch itself is left alone
}

TEST(tensor_lists_are_translated) {
  const Memory first(sizeof(int64_t));
  const Memory second(sizeof(int64_t));
  const auto kernel = [](void** args, int32_t, const bringup_ctx*) -> int32_t {
    const auto* list = static_cast<const bringup_list*>(args[0]);
    const auto* tensors = static_cast<DLTensor* const*>(list->data);
    for (int64_t i = 0; i < list->size; ++i) *static_cast<int64_t*>(tensors[i]->data) = 7 + i;
    return 0;
  };
  Launch launch(kernel, first.get(), 1, 0);
  DLTensor other = launch.tensor;
  other.data = second.get();
  DLTensor* items[] = {&launch.tensor, &other};
  bringup_list list{items, 2};
  launch.args[0] = &list;
  launch.kinds[0] = BRINGUP_ARG_TENSOR_LIST;
  driver().launch(0, nullptr, &launch.launch);
  CHECK_EQ(read(first, 1), std::vector<int64_t>{7});
  CHECK_EQ(read(second, 1), std::vector<int64_t>{8});
}

TEST(graphs_run_on_it) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  Launch adding(add_number, memory.get(), 1, 2);
  int64_t out = 0;
  bringup_graph graph = nullptr;
  driver().graph_create(0, &graph);
  driver().graph_add_kernel(graph, &adding.launch);
  driver().graph_add_copy(graph, BRINGUP_DEVICE_TO_HOST, &out, memory.get(), sizeof(int64_t));
  driver().graph_launch(graph, nullptr);
  driver().graph_launch(graph, nullptr);
  driver().stream_synchronize(0, nullptr);
  CHECK_EQ(out, 4);
  driver().graph_destroy(graph);
}

}  // namespace
