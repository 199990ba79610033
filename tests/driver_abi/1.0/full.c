/* The functions of ABI 1.0 that the simulator had too: pinned memory, host-visible memory, host
 * functions, device code that is host code, graphs. */
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
  ctx.set_error = set_error;
  ctx.workspace = workspace;
  ctx.parallel_for = parallel_for;
  for (block = 0; block < launch->grid; ++block) {
    ctx.block_index = block;
    if (launch->fn(launch->args, launch->nargs, &ctx) != 0) return BRINGUP_KERNEL_FAILED;
  }
  return BRINGUP_OK;
}
static int32_t launch(int32_t device, bringup_stream stream, const bringup_launch* what) {
  const int32_t status = run(what);
  (void)device, (void)stream;
  if (what->release != NULL) what->release(what->owner);
  return status;
}

/* --- graphs: arguments are read when a node runs */
typedef struct node {
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
    } else {
      memcpy(each->dst, each->src, each->bytes);
    }
  }
  return status;
}

static const bringup_driver driver = {
    .struct_size = sizeof(bringup_driver),
    .description = "the optional functions of ABI 1.0 too",
    .copy_async = copy_async,
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
};

__attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(uint32_t version) {
  return version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}
