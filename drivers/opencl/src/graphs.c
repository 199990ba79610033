/* Device graphs: a list of nodes that each launch enqueues again, so that launches in flight keep
 * the values that they were made with. */
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

typedef struct node {
  enum { kCopy, kHostFunc, kKernel } kind;
  void* dst;
  const void* src;
  size_t bytes;
  void (*fn)(void* user);
  void* user;
  bringup_launch_values_args launch; /* values and name are the node's own */
} node;

struct bringup_graph_s {
  int32_t device;
  pthread_mutex_t lock; /* of what follows */
  node* nodes;
  size_t count, room;
  cl_event last; /* behind the former launch: launches do not overlap, whatever their streams */
};

static void drop_launch(const bringup_launch_values_args* launch) {
  free((void*)launch->values);
  free((void*)launch->name);
}

static int32_t keep_launch(const bringup_launch_values_args* given,
                           bringup_launch_values_args* kept) {
  const size_t bytes = (size_t)given->nvalues * sizeof *given->values;
  bringup_value* values = malloc(bytes + 1);
  char* name = strdup(given->name != NULL ? given->name : "");
  *kept = *given;
  kept->values = values;
  kept->name = name;
  if (values == NULL || name == NULL) {
    drop_launch(kept);
    return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a node of a graph");
  }
  if (bytes > 0) memcpy(values, given->values, bytes);
  return BRINGUP_OK;
}

static int32_t add(bringup_graph graph, const node* added) {
  if (graph->count == graph->room) {
    const size_t room = graph->room * 2 + 16;
    node* larger = realloc(graph->nodes, room * sizeof *larger);
    if (larger == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a node of a graph");
    graph->nodes = larger;
    graph->room = room;
  }
  graph->nodes[graph->count++] = *added;
  return BRINGUP_OK;
}

static int32_t add_locked(bringup_graph graph, const node* added) {
  pthread_mutex_lock(&graph->lock);
  const int32_t status = add(graph, added);
  pthread_mutex_unlock(&graph->lock);
  return status;
}

int32_t graph_create(int32_t device, bringup_graph* graph) {
  TRY(enter(device));
  bringup_graph made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a graph");
  made->device = device;
  pthread_mutex_init(&made->lock, NULL);
  *graph = made;
  return BRINGUP_OK;
}

int32_t graph_destroy(bringup_graph graph) {
  TRY(usable());
  for (size_t i = 0; i < graph->count; ++i) {
    if (graph->nodes[i].kind == kKernel) drop_launch(&graph->nodes[i].launch);
  }
  if (graph->last != NULL) clReleaseEvent(graph->last);
  pthread_mutex_destroy(&graph->lock);
  free(graph->nodes);
  free(graph);
  return BRINGUP_OK;
}

int32_t graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                       size_t bytes) {
  TRY(usable());
  TRY(check_copy(kind, dst, src, bytes));
  return add_locked(graph, &(node){.kind = kCopy, .dst = dst, .src = src, .bytes = bytes});
}

int32_t graph_add_host_func(bringup_graph graph, void (*fn)(void* user), void* user) {
  TRY(usable());
  NEED(fn != NULL, "graph_add_host_func without a function");
  return add_locked(graph, &(node){.kind = kHostFunc, .fn = fn, .user = user});
}

int32_t graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch) {
  TRY(usable());
  TRY(check_launch(graph->device, launch));
  node added = {.kind = kKernel};
  TRY(keep_launch(launch, &added.launch));
  const int32_t status = add_locked(graph, &added);
  if (status != BRINGUP_OK) drop_launch(&added.launch);
  return status;
}

/* NULL: the graph has no such kernel. Under the lock. */
static node* kernel_of(bringup_graph graph, int32_t kernel) {
  for (size_t i = 0; i < graph->count; ++i) {
    if (graph->nodes[i].kind == kKernel && kernel-- == 0) return &graph->nodes[i];
  }
  return NULL;
}

static int32_t update(bringup_graph graph, int32_t kernel,
                      const bringup_launch_values_args* launch) {
  node* found = kernel_of(graph, kernel);
  NEED(found != NULL, "the graph has no kernel %d", kernel);
  bringup_launch_values_args given = *launch;
  given.fn = found->launch.fn;
  TRY(check_launch(graph->device, &given));
  bringup_launch_values_args kept;
  TRY(keep_launch(&given, &kept));
  drop_launch(&found->launch);
  found->launch = kept;
  return BRINGUP_OK;
}

int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                            const bringup_launch_values_args* launch) {
  TRY(usable());
  pthread_mutex_lock(&graph->lock);
  const int32_t status = update(graph, kernel, launch);
  pthread_mutex_unlock(&graph->lock);
  return status;
}

static int32_t enqueue_node(bringup_stream stream, const node* given) {
  switch (given->kind) {
    case kCopy:
      return enqueue_copy(stream, given->dst, given->src, given->bytes, NULL);
    case kHostFunc:
      return enqueue_host_func(stream, given->fn, given->user);
    case kKernel:
      return enqueue_launch(stream, &given->launch, NULL);
  }
  return fail(BRINGUP_ERROR, "an unknown node of a graph");
}

/* Under the lock. `begin` and `end`: markers around it. */
static int32_t enqueue_nodes(bringup_graph graph, bringup_stream stream, cl_event* begin,
                             cl_event* end) {
  if (graph->last != NULL) TRY(enqueue_wait(stream, graph->last));
  if (begin != NULL) TRY(enqueue_marker(stream, begin));
  int32_t status = BRINGUP_OK;
  for (size_t i = 0; i < graph->count && status == BRINGUP_OK; ++i) {
    status = enqueue_node(stream, &graph->nodes[i]);
  }
  if (status != BRINGUP_OK) return status; /* the next launch waits for the former, in any case */
  TRY(enqueue_marker(stream, end));
  if (graph->last != NULL) clReleaseEvent(graph->last);
  graph->last = *end;
  clRetainEvent(graph->last);
  return BRINGUP_OK;
}

int32_t graph_launch(bringup_graph graph, bringup_stream stream) {
  TRY(stream_of(graph->device, &stream));
  cl_event begin = NULL;
  cl_event end = NULL;
  cl_event* wanted = recorded_event(stream, &begin);
  pthread_mutex_lock(&graph->lock);
  const int32_t status = enqueue_nodes(graph, stream, wanted, &end);
  pthread_mutex_unlock(&graph->lock);
  if (status == BRINGUP_OK) return finish_work(stream, BRINGUP_RECORD_GRAPH, begin, end, 0, "");
  if (begin != NULL) clReleaseEvent(begin);
  if (end != NULL) clReleaseEvent(end);
  flush(stream); /* what was enqueued of it runs; the failure's words were of the node */
  return status;
}
