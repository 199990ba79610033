/* Device graphs are CUDA's, a row of nodes. They are instantiated by the first launch; new values
 * go to both, since a graph that gets more nodes is instantiated again. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

typedef struct kernel_node {
  CUgraphNode node;
  bringup_kernel_fn fn;
  bringup_dim3 cluster; /* this and `flags` stay as they were added */
  uint64_t flags;
} kernel_node;

struct bringup_graph_s {
  int32_t device;
  pthread_mutex_t lock; /* of what follows */
  CUgraph graph;
  CUgraphNode last;       /* NULL: no node */
  CUgraphExec executable; /* NULL: not launched since the last node */
  kernel_node* kernels;
  size_t count, room;
};

int32_t graph_create(int32_t device, bringup_graph* graph) {
  TRY(enter(device));
  bringup_graph made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a graph");
  const CUresult code = nv.api.cuGraphCreate(&made->graph, 0);
  if (code != CUDA_SUCCESS) {
    free(made);
    return told("cuGraphCreate", code);
  }
  made->device = device;
  pthread_mutex_init(&made->lock, NULL);
  *graph = made;
  return BRINGUP_OK;
}

int32_t graph_destroy(bringup_graph graph) {
  TRY(enter(graph->device));
  CUresult code = CUDA_SUCCESS;
  if (graph->executable != NULL) code = nv.api.cuGraphExecDestroy(graph->executable);
  const CUresult of_graph = nv.api.cuGraphDestroy(graph->graph);
  pthread_mutex_destroy(&graph->lock);
  free(graph->kernels);
  free(graph);
  if (code == CUDA_SUCCESS) code = of_graph;
  return told("cuGraphDestroy", code);
}

/* --- nodes, each behind the last. Between begin_node and end_node the graph is locked. */

/* A launch of the new executable would not wait for one of the former. */
static int32_t drop_executable(bringup_graph graph) {
  if (graph->executable == NULL) return BRINGUP_OK;
  TRY(CUDA(cuCtxSynchronize, ));
  TRY(CUDA(cuGraphExecDestroy, graph->executable));
  graph->executable = NULL;
  return BRINGUP_OK;
}

static int32_t make_room(bringup_graph graph) {
  if (graph->count < graph->room) return BRINGUP_OK;
  const size_t room = graph->room * 2 + 16;
  kernel_node* larger = realloc(graph->kernels, room * sizeof *larger);
  if (larger == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a node of a graph");
  graph->kernels = larger;
  graph->room = room;
  return BRINGUP_OK;
}

static int32_t begin_node(bringup_graph graph) {
  TRY(enter(graph->device));
  pthread_mutex_lock(&graph->lock);
  int32_t status = make_room(graph);
  if (status == BRINGUP_OK) status = drop_executable(graph);
  if (status != BRINGUP_OK) pthread_mutex_unlock(&graph->lock);
  return status;
}

/* `kernel`: the launch of one. */
static int32_t end_node(bringup_graph graph, const char* function, CUresult code, CUgraphNode made,
                        const bringup_launch_values_args* kernel) {
  if (code == CUDA_SUCCESS) {
    graph->last = made;
    if (kernel != NULL) {
      const bringup_launch_values_args of = whole(kernel);
      graph->kernels[graph->count++] = (kernel_node){made, of.fn, of.cluster, of.flags};
    }
  }
  pthread_mutex_unlock(&graph->lock);
  return told(function, code);
}

#define ADD_NODE(graph, function, ...)                                                         \
  do {                                                                                         \
    CUgraphNode made_ = NULL;                                                                  \
    TRY(begin_node(graph));                                                                    \
    const CUresult added_ = nv.api.function(&made_, (graph)->graph, &(graph)->last,            \
                                            (graph)->last != NULL __VA_OPT__(, ) __VA_ARGS__); \
    return end_node(graph, #function, added_, made_, NULL);                                    \
  } while (0)

int32_t graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                       size_t bytes) {
  TRY(check_copy(kind, dst, src, bytes));
  if (bytes == 0) ADD_NODE(graph, cuGraphAddEmptyNode);
  const CUDA_MEMCPY3D copy = {
      .srcMemoryType = kind == BRINGUP_HOST_TO_DEVICE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
      .srcHost = src,
      .srcDevice = number_of(src),
      .dstMemoryType = kind == BRINGUP_DEVICE_TO_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
      .dstHost = dst,
      .dstDevice = number_of(dst),
      .WidthInBytes = bytes,
      .Height = 1,
      .Depth = 1,
  };
  ADD_NODE(graph, cuGraphAddMemcpyNode, &copy, nv.devices[graph->device].context);
}

int32_t graph_add_host_func(bringup_graph graph, void (*fn)(void* user), void* user) {
  NEED(fn != NULL, "graph_add_host_func without a function");
  const CUDA_HOST_NODE_PARAMS call = {fn, user};
  ADD_NODE(graph, cuGraphAddHostNode, &call);
}

static CUresult add_kernel(bringup_graph graph, const prepared_launch* prepared,
                           CUgraphNode* node) {
  CUresult code = nv.api.cuGraphAddKernelNode(node, graph->graph, &graph->last, graph->last != NULL,
                                              &prepared->params);
  if (code != CUDA_SUCCESS) return code;
  for (unsigned i = 0; code == CUDA_SUCCESS && i < prepared->attribute_count; ++i) {
    const CUlaunchAttribute* of = &prepared->attributes[i];
    code = nv.api.cuGraphKernelNodeSetAttribute(*node, of->id, &of->value);
  }
  if (code != CUDA_SUCCESS) nv.api.cuGraphDestroyNode(*node);
  return code;
}

int32_t graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch) {
  prepared_launch prepared;
  CUgraphNode made = NULL;
  TRY(prepare(graph->device, launch, &prepared));
  TRY(begin_node(graph));
  const CUresult code = add_kernel(graph, &prepared, &made);
  return end_node(graph, "cuGraphAddKernelNode", code, made, launch);
}

int32_t graph_add_captured(bringup_graph graph, CUgraph captured) {
  size_t count = 0;
  TRY(CUDA(cuGraphGetNodes, captured, NULL, &count));
  NEED(count > 0, "the captured stream was given nothing");
  ADD_NODE(graph, cuGraphAddChildGraphNode, captured);
}

/* --- new values, launches */

static int32_t update(bringup_graph graph, int32_t kernel,
                      const bringup_launch_values_args* launch) {
  NEED(kernel >= 0 && (size_t)kernel < graph->count, "the graph has no kernel %d", kernel);
  const kernel_node* found = &graph->kernels[kernel];
  prepared_launch prepared;
  bringup_launch_values_args given = whole(launch);
  given.fn = found->fn;
  NEED(memcmp(&given.cluster, &found->cluster, sizeof given.cluster) == 0 &&
           given.flags == found->flags,
       "%s: kernel %d of the graph keeps its cluster and flags", name_of(launch), kernel);
  TRY(prepare(graph->device, &given, &prepared));
  if (graph->executable != NULL) {
    TRY(CUDA(cuGraphExecKernelNodeSetParams, graph->executable, found->node, &prepared.params));
  }
  return CUDA(cuGraphKernelNodeSetParams, found->node, &prepared.params);
}

int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                            const bringup_launch_values_args* launch) {
  TRY(enter(graph->device));
  pthread_mutex_lock(&graph->lock);
  const int32_t status = update(graph, kernel, launch);
  pthread_mutex_unlock(&graph->lock);
  return status;
}

static int32_t launch(bringup_graph graph, bringup_stream stream) {
  if (graph->executable == NULL) {
    TRY(CUDA(cuGraphInstantiateWithFlags, &graph->executable, graph->graph, 0));
  }
  return CUDA(cuGraphLaunch, graph->executable, stream->queue);
}

int32_t graph_launch(bringup_graph graph, bringup_stream stream) {
  TRY(stream_of(graph->device, &stream));
  pthread_mutex_lock(&graph->lock);
  const int32_t status = launch(graph, stream);
  pthread_mutex_unlock(&graph->lock);
  return status == BRINGUP_OK ? status : about(status, graph->device, stream, "");
}
