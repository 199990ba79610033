/* Optional functions of ABI 1.4: pinned memory, host-visible memory, host functions, device code
 * that is host code, graphs, native handles, streams that are captured, and blocks of its own
 * choice where a launch has work items. */
#define BOARD_HOST_VISIBLE
#include <dlfcn.h>

#include "board.h"

static const char* g_words = "";

static const char* last_error(void) { return g_words; }
static int32_t failed(int32_t status, const char* words) {
  g_words = words;
  return status;
}

static int32_t host_alloc(size_t bytes, void** address) { return mem_alloc(0, bytes, address); }
static int32_t host_free(void* address) { return mem_free(0, address); }
static int32_t host_view(int32_t device, const void* address, void** host_address) {
  (void)device;
  *host_address = (void*)address;
  return BRINGUP_OK;
}
static int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void*), void* user) {
  (void)device, (void)stream;
  fn(user);
  return BRINGUP_OK;
}

static int32_t module_load(int32_t device, const char* library, void** module) {
  (void)device;
  *module = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return *module != NULL ? BRINGUP_OK : failed(BRINGUP_INVALID, dlerror());
}
static int32_t module_unload(void* module) {
  return dlclose(module) == 0 ? BRINGUP_OK : BRINGUP_INVALID;
}
static int32_t get_function(void* module, const char* name, bringup_kernel_fn* fn) {
  *(void**)fn = dlsym(module, name);
  return *fn != NULL ? BRINGUP_OK : failed(BRINGUP_INVALID, "there is no such function");
}

/* --- launches: a context of the fields that a kernel may ask for */
static void set_error(const bringup_ctx* ctx, const char* message) {
  static char text[256];
  (void)ctx;
  strncpy(text, message, sizeof(text) - 1);
  g_words = text;
}
static void* workspace(const bringup_ctx* ctx, size_t bytes) {
  static _Thread_local void* memory = NULL;
  (void)ctx;
  free(memory);
  memory = malloc(bytes);
  return memory;
}
static void parallel_for(const bringup_ctx* ctx, int64_t n, int64_t grain,
                         void (*fn)(int64_t begin, int64_t end, void* user), void* user) {
  (void)ctx, (void)grain;
  fn(0, n, user);
}
static int32_t run(const bringup_launch* launch) {
  bringup_ctx ctx;
  int64_t block;
  memset(&ctx, 0, sizeof(ctx));
  ctx.struct_size = sizeof(ctx);
  ctx.abi_version = BRINGUP_KERNEL_ABI;
  ctx.block_count = launch->grid;
  if (launch->work_items != 0) ctx.block_count = launch->work_items < 8 ? launch->work_items : 8;
  ctx.set_error = set_error;
  ctx.workspace = workspace;
  ctx.parallel_for = parallel_for;
  for (block = 0; block < ctx.block_count; ++block) {
    ctx.block_index = block;
    if (launch->fn(launch->args, launch->nargs, &ctx) != 0) return BRINGUP_KERNEL_FAILED;
  }
  return BRINGUP_OK;
}
/* --- graphs: arguments are read when a node runs */
typedef struct node {
  int is_fill;
  uint8_t value;
  bringup_launch launch; /* of a kernel; its fn is NULL otherwise */
  void (*fn)(void*);
  void* user;
  void* dst;
  const void* src;
  size_t bytes;
} node;
struct bringup_graph_s {
  node nodes[64];
  int count;
};
static int32_t graph_create(int32_t device, bringup_graph* graph) {
  (void)device;
  *graph = calloc(1, sizeof(struct bringup_graph_s));
  return *graph != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t graph_destroy(bringup_graph graph) {
  int i;
  for (i = 0; i < graph->count; ++i) {
    const bringup_launch* launch = &graph->nodes[i].launch;
    if (launch->release != NULL) launch->release(launch->owner);
  }
  free(graph);
  return BRINGUP_OK;
}
static int32_t add(bringup_graph graph, node added) {
  if (graph->count == 64) return failed(BRINGUP_ERROR, "a graph has at most 64 nodes");
  graph->nodes[graph->count++] = added;
  return BRINGUP_OK;
}
static int32_t graph_add_kernel(bringup_graph graph, const bringup_launch* what) {
  node added = {0};
  added.launch = *what;
  return add(graph, added);
}
static int32_t graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst,
                              const void* src, size_t bytes) {
  node added = {0};
  (void)kind;
  added.dst = dst;
  added.src = src;
  added.bytes = bytes;
  return add(graph, added);
}
static int32_t graph_add_host_func(bringup_graph graph, void (*fn)(void*), void* user) {
  node added = {0};
  added.fn = fn;
  added.user = user;
  return add(graph, added);
}
static int32_t graph_launch(bringup_graph graph, bringup_stream stream) {
  int i;
  int32_t status = BRINGUP_OK;
  (void)stream;
  for (i = 0; i < graph->count && status == BRINGUP_OK; ++i) {
    const node* each = &graph->nodes[i];
    if (each->launch.fn != NULL) {
      status = run(&each->launch);
    } else if (each->fn != NULL) {
      each->fn(each->user);
    } else if (each->is_fill) {
      memset(each->dst, each->value, each->bytes);
    } else {
      memcpy(each->dst, each->src, each->bytes);
    }
  }
  return status;
}

/* --- streams that are captured: their work goes to a graph, whose nodes another one gets at the
 * end */
static int32_t stream_capture_begin(int32_t device, bringup_stream stream) {
  if (stream == NULL || stream->captured != NULL) return BRINGUP_INVALID;
  stream->broken = 0;
  return graph_create(device, &stream->captured);
}
static int32_t stream_capture_abort(int32_t device, bringup_stream stream) {
  (void)device;
  if (stream == NULL || stream->captured == NULL) return BRINGUP_INVALID;
  graph_destroy(stream->captured);
  stream->captured = NULL;
  return BRINGUP_OK;
}
static int32_t stream_capture_end(int32_t device, bringup_stream stream, bringup_graph graph) {
  int i;
  if (stream == NULL || stream->captured == NULL) return BRINGUP_INVALID;
  if (stream->captured->count == 0) {
    stream_capture_abort(device, stream);
    return failed(BRINGUP_INVALID, "nothing was given to the stream");
  }
  if (stream->broken || graph->count + stream->captured->count > 64) {
    stream_capture_abort(device, stream);
    return failed(BRINGUP_ERROR, "the capture is broken");
  }
  for (i = 0; i < stream->captured->count; ++i) {
    graph->nodes[graph->count++] = stream->captured->nodes[i];
  }
  free(stream->captured);
  stream->captured = NULL;
  return BRINGUP_OK;
}
static int32_t stream_capture_query(int32_t device, bringup_stream stream, int32_t* state) {
  (void)device;
  *state = BRINGUP_CAPTURE_NONE;
  if (stream != NULL && stream->captured != NULL) {
    *state = stream->broken ? BRINGUP_CAPTURE_BROKEN : BRINGUP_CAPTURE_ACTIVE;
  }
  return BRINGUP_OK;
}
static bringup_graph captured_by(bringup_stream stream) {
  return stream != NULL ? stream->captured : NULL;
}
static int32_t launch(int32_t device, bringup_stream stream, const bringup_launch* what) {
  int32_t status;
  (void)device;
  if (captured_by(stream) != NULL) return graph_add_kernel(stream->captured, what);
  status = run(what);
  if (what->release != NULL) what->release(what->owner);
  return status;
}
static int32_t copy(bringup_copy_kind kind, int32_t to, void* dst, int32_t from, const void* src,
                    size_t bytes, bringup_stream stream) {
  if (captured_by(stream) == NULL) return copy_async(kind, to, dst, from, src, bytes, stream);
  return graph_add_copy(stream->captured, kind, dst, src, bytes);
}
static int32_t fill(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  node added = {0};
  if (captured_by(stream) == NULL) return fill_async(device, dst, value, bytes, stream);
  added.is_fill = 1;
  added.dst = dst;
  added.value = value;
  added.bytes = bytes;
  return add(stream->captured, added);
}
static int32_t stream_wait(int32_t device, bringup_stream stream) {
  if (captured_by(stream) == NULL) return stream_done(device, stream);
  stream->broken = 1;
  return failed(BRINGUP_INVALID, "a wait for a stream that is captured");
}

static int32_t native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle) {
  static int context;
  (void)device;
  if (kind != BRINGUP_NATIVE_CONTEXT && kind != BRINGUP_NATIVE_DEVICE &&
      kind != BRINGUP_NATIVE_QUEUE) {
    return failed(BRINGUP_UNSUPPORTED, "no such object");
  }
  *handle = kind == BRINGUP_NATIVE_QUEUE && stream != NULL ? (void*)stream : (void*)&context;
  return BRINGUP_OK;
}

/* Collectives of one rank, which is its own peer. */
struct bringup_comm_s {
  int is_aborted;
};
static int32_t comm_id(bringup_comm_id* id) {
  memset(id, 1, sizeof *id);
  return BRINGUP_OK;
}
static int32_t comm_create(int32_t device, const bringup_comm_id* id, int32_t rank, int32_t size,
                           int64_t nanoseconds, bringup_comm* comm) {
  (void)device, (void)id, (void)rank, (void)nanoseconds;
  if (size != 1) return failed(BRINGUP_UNSUPPORTED, "more than one rank");
  *comm = calloc(1, sizeof **comm);
  return *comm != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t comm_destroy(bringup_comm comm) {
  free(comm);
  return BRINGUP_OK;
}
static int32_t comm_abort(bringup_comm comm) {
  comm->is_aborted = 1;
  return BRINGUP_OK;
}
static int32_t comm_query(bringup_comm comm) {
  return comm->is_aborted ? failed(BRINGUP_ERROR, "it was aborted") : BRINGUP_OK;
}
static int32_t all_reduce(bringup_comm comm, const void* src, void* dst, size_t count,
                          uint64_t dtype, int32_t reduction, bringup_stream stream) {
  (void)comm, (void)reduction;
  if (dtype != BRINGUP_DTYPE_FLOAT32) return failed(BRINGUP_UNSUPPORTED, "not of that dtype");
  return copy(BRINGUP_DEVICE_TO_DEVICE, 0, dst, 0, src, count * sizeof(float), stream);
}
static int32_t all_gather(bringup_comm comm, const void* src, void* dst, size_t bytes,
                          bringup_stream stream) {
  (void)comm;
  return copy(BRINGUP_DEVICE_TO_DEVICE, 0, dst, 0, src, bytes, stream);
}
static int32_t broadcast(bringup_comm comm, void* address, size_t bytes, int32_t root,
                         bringup_stream stream) {
  (void)comm, (void)address, (void)bytes, (void)root, (void)stream;
  return BRINGUP_OK;
}
static int32_t send(bringup_comm comm, const void* src, size_t bytes, int32_t peer,
                    bringup_stream stream) {
  (void)comm, (void)src, (void)bytes, (void)peer, (void)stream;
  return failed(BRINGUP_UNSUPPORTED, "there is no peer");
}
static int32_t recv(bringup_comm comm, void* dst, size_t bytes, int32_t peer,
                    bringup_stream stream) {
  return send(comm, dst, bytes, peer, stream);
}
static int32_t all_to_all(bringup_comm comm, const void* src, const size_t* src_bytes, void* dst,
                          const size_t* dst_bytes, bringup_stream stream) {
  (void)dst_bytes;
  return all_gather(comm, src, dst, src_bytes[0], stream);
}

static const bringup_driver driver = {
    .struct_size = sizeof(bringup_driver),
    .description = "the optional functions of ABI 1.4 too",
    .copy_async = copy,
    .fill_async = fill,
    .stream_synchronize = stream_wait,
    .stream_query = stream_wait,
    BOARD_REQUIRED,
    .last_error = last_error,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_view = host_view,
    .host_func = host_func,
    .module_load = module_load,
    .module_unload = module_unload,
    .get_function = get_function,
    .launch = launch,
    .graph_create = graph_create,
    .graph_destroy = graph_destroy,
    .graph_add_kernel = graph_add_kernel,
    .graph_add_copy = graph_add_copy,
    .graph_add_host_func = graph_add_host_func,
    .graph_launch = graph_launch,
    .capabilities = BRINGUP_HAS_NATIVE | BRINGUP_HAS_STREAM_CAPTURE | BRINGUP_HAS_COLLECTIVES,
    .native_handle = native_handle,
    .stream_capture_begin = stream_capture_begin,
    .stream_capture_end = stream_capture_end,
    .stream_capture_abort = stream_capture_abort,
    .stream_capture_query = stream_capture_query,
    .comm_id = comm_id,
    .comm_create = comm_create,
    .comm_destroy = comm_destroy,
    .comm_abort = comm_abort,
    .comm_query = comm_query,
    .all_reduce = all_reduce,
    .reduce_scatter = all_reduce,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .all_to_all = all_to_all,
};

__attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(uint32_t version) {
  return version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}
