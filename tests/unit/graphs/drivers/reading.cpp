// The simulated NPU with graphs that have copied nothing: a kernel's arguments are read when it
// runs, and graph_update_kernel is missing. With REFUSES defined its own graphs, of which every
// second graph_update_kernel fails. SIM_DRIVER: the simulator's library.
#include <dlfcn.h>

#include <memory>
#include <variant>
#include <vector>

#include "bringup/driver.h"

namespace {

struct HostFunc {
  void (*fn)(void*);
  void* user;
};
struct Graph {
  int32_t device;
  std::vector<std::variant<bringup_launch, HostFunc>> nodes;
};

const bringup_driver* sim = nullptr;

int32_t create(int32_t device, bringup_graph* graph) {
  *graph = reinterpret_cast<bringup_graph>(new Graph{device, {}});
  return BRINGUP_OK;
}

int32_t destroy(bringup_graph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return BRINGUP_OK;
}

int32_t add_kernel(bringup_graph graph, const bringup_launch* launch) {
  reinterpret_cast<Graph*>(graph)->nodes.emplace_back(*launch);
  return BRINGUP_OK;
}

int32_t add_host_func(bringup_graph graph, void (*fn)(void*), void* user) {
  reinterpret_cast<Graph*>(graph)->nodes.emplace_back(HostFunc{fn, user});
  return BRINGUP_OK;
}

int32_t launch(bringup_graph graph, bringup_stream stream) {
  const auto& [device, nodes] = *reinterpret_cast<Graph*>(graph);
  for (const auto& node : nodes) {
    const auto* host = std::get_if<HostFunc>(&node);
    const int32_t status = host != nullptr
                               ? sim->host_func(device, stream, host->fn, host->user)
                               : sim->launch(device, stream, &std::get<bringup_launch>(node));
    if (status != BRINGUP_OK) return status;
  }
  return BRINGUP_OK;
}

[[maybe_unused]] int32_t update_kernel(bringup_graph graph, int32_t kernel,
                                       const bringup_launch* launch) {
  static int calls = 0;
  if (++calls % 2 == 1) return BRINGUP_ERROR;
  return sim->graph_update_kernel(graph, kernel, launch);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(
    uint32_t abi_version) {
  void* library = dlopen(SIM_DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  sim = reinterpret_cast<bringup_driver_get_fn>(dlsym(library, "bringup_driver_get"))(abi_version);
  static bringup_driver table = *sim;
  table.device_name = "reading";
#ifdef REFUSES
  table.graph_update_kernel = update_kernel;
#else
  table.graph_create = create;
  table.graph_destroy = destroy;
  table.graph_add_kernel = add_kernel;
  table.graph_add_copy = nullptr;
  table.graph_add_host_func = add_host_func;
  table.graph_launch = launch;
  table.graph_update_kernel = nullptr;
#endif
  return &table;
}
