// Kernels and graphs of the library in the place of libcuda.
#include <elf.h>

#include <set>

#include "stand_in.h"

namespace {

template <typename T>
T read(const std::string& bytes) {
  T value;
  memcpy(&value, bytes.data(), sizeof value);
  return value;
}

size_t threads(const Kernel& of) {
  return size_t{of.grid[0]} * of.grid[1] * of.grid[2] * of.block[0] * of.block[1] * of.block[2];
}

// check_kernels.cu's, and the tests' `twice` and `wild`, which fails.
void compute(const Kernel& of) {
  const std::string& name = of.function->name;
  if (name == "check_values") {
    int* out = read<int*>(of.values[0]);
    const int* x = read<const int*>(of.values[1]);
    const auto count = read<long long>(of.values[2]), step = read<long long>(of.values[3]);
    const int factor = read<int>(of.values[4]);
    const int more = static_cast<int>(read<float>(of.values[5]) * read<double>(of.values[6]));
    for (size_t first = 0; first < threads(of); ++first) {
      for (auto i = static_cast<long long>(first); i < count; i += step) {
        out[i] += x[i] * factor + more;
      }
    }
  } else if (name == "wild") {
    lost = true;
  } else if (name == "twice") {
    auto* out = read<float*>(of.values[0]);
    const auto* x = read<const float*>(of.values[1]);
    for (long long i = 0; i < read<long long>(of.values[2]); ++i) out[i] = 2 * x[i];
  } else if (name == "check_shared") {
    int* out = read<int*>(of.values[0]);
    const int n = static_cast<int>(of.block[0]);
    for (int block = 0; block < static_cast<int>(of.grid[0]); ++block) {
      out[block] = n * (n - 1) / 2 + n * block;
    }
  }
}

std::string text_of(const Kernel& of) {
  char text[256];
  snprintf(text, sizeof text,
           "%s grid=%u,%u,%u block=%u,%u,%u shared=%u values=", of.function->name.c_str(),
           of.grid[0], of.grid[1], of.grid[2], of.block[0], of.block[1], of.block[2], of.shared);
  std::string all = text;
  const auto& [x, y, z] = of.cluster;
  if (x != 0) {
    snprintf(text, sizeof text, " cluster=%u,%u,%u", x, y, z);
    all.insert(all.find(" values="), text);
  }
  if (of.cooperative) all.insert(all.find(" values="), " cooperative");
  for (const std::string& value : of.values) {
    for (auto byte = value.rbegin(); byte != value.rend(); ++byte) {
      snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(*byte));
      all += text;
    }
    all += ',';
  }
  return all;
}

CUresult kernel_of(CUfunction fn, const unsigned (&grid)[3], const unsigned (&block)[3],
                   unsigned shared, void** values, std::shared_ptr<Kernel>* made) {
  auto* function = reinterpret_cast<Function*>(fn);
  const unsigned all = block[0] * block[1] * block[2];
  NEED(grid[0] && grid[1] && grid[2] && all && all <= 1024, CUDA_ERROR_INVALID_VALUE);
  NEED(static_cast<int>(shared) <= function->dynamic, CUDA_ERROR_INVALID_VALUE);
  auto kernel = std::make_shared<Kernel>();
  kernel->function = function;
  std::copy_n(grid, 3, kernel->grid);
  std::copy_n(block, 3, kernel->block);
  kernel->shared = shared;
  for (size_t i = 0; i < function->sizes.size(); ++i) {
    kernel->values.emplace_back(static_cast<char*>(values[i]), function->sizes[i]);
  }
  *made = std::move(kernel);
  return CUDA_SUCCESS;
}

CUresult set_attribute(Kernel* kernel, int which, const CUlaunchAttributeValue& value) {
  const auto& [x, y, z] = value.clusterDim;
  const auto& grid = kernel->grid;
  switch (which) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      NEED(x * y * z <= 8 && grid[0] % x == 0 && grid[1] % y == 0 && grid[2] % z == 0,
           CUDA_ERROR_INVALID_CLUSTER_SIZE);
      kernel->cluster[0] = x, kernel->cluster[1] = y, kernel->cluster[2] = z;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:  // one block for each multiprocessor
      NEED(grid[0] * grid[1] * grid[2] <= 132, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
      kernel->cooperative = value.cooperative != 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult kernel_of(const CUDA_KERNEL_NODE_PARAMS* p, std::shared_ptr<Kernel>* made) {
  return kernel_of(p->func, {p->gridDimX, p->gridDimY, p->gridDimZ},
                   {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, p->kernelParams,
                   made);
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count,
                  CUgraphNode_st made) {
  const bool is_row =
      graph->nodes.empty() ? count == 0 : count == 1 && *behind == graph->nodes.back();
  NEED(is_row, CUDA_ERROR_INVALID_VALUE);
  *node = new CUgraphNode_st(std::move(made));
  graph->nodes.push_back(*node);
  return CUDA_SUCCESS;
}

void flatten(const std::vector<CUgraphNode>& nodes, CUgraphExec into) {
  for (CUgraphNode node : nodes) {
    into->steps.emplace_back(node, node->kernel);
    flatten(node->child, into);
  }
}

}  // namespace

// --- kernels

// A cubin has a section .nv.info.NAME for each kernel, whose records of this kind are its
// parameters.
void read_cubin(const char* image, CUmod_st* module) {
  constexpr uint8_t kParameter = 0x17;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  const char* names = image + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; ++i) {
    const std::string name = names + sections[i].sh_name;
    if (name.rfind(".nv.info.", 0) != 0) continue;
    Function& function = module->functions[name.substr(9)];
    function.name = name.substr(9);
    const auto* at = reinterpret_cast<const uint8_t*>(image + sections[i].sh_offset);
    const auto* end = at + sections[i].sh_size;
    while (at < end) {
      const bool has_body = at[0] == 4;
      const size_t bytes = has_body ? static_cast<size_t>(at[2] | at[3] << 8) : 0;
      if (has_body && at[1] == kParameter) {
        uint16_t ordinal;
        uint32_t size;
        memcpy(&ordinal, at + 8, sizeof ordinal);
        memcpy(&size, at + 12, sizeof size);
        if (function.sizes.size() <= ordinal) function.sizes.resize(ordinal + 1u);
        function.sizes[ordinal] = size >> 18;
      }
      at += 4 + bytes;
    }
  }
}

constexpr unsigned char kFatbin[] = {0x50, 0xed, 0x55, 0xba};

// The cubin for a model in a fatbin that is not compressed, or what is no fatbin itself.
const char* code_for(const char* image, int wanted) {
  if (memcmp(image, kFatbin, sizeof kFatbin) != 0) return image;
  const auto at = [image](size_t place, auto value) {
    memcpy(&value, image + place, sizeof value);
    return value;
  };
  size_t next = at(6, uint16_t{});
  const size_t end = next + at(8, uint64_t{});
  while (next < end) {
    const bool is_cubin = at(next, uint16_t{}) == 2;
    const uint32_t header = at(next + 4, uint32_t{});
    if (is_cubin && at(next + 28, int32_t{}) == wanted) return image + next + header;
    next += header + at(next + 8, uint64_t{});
  }
  return image;
}

// Of PTX as nvcc writes it: each entry with the sizes of its parameters.
API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                       void** values) {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  const std::string text = static_cast<const char*>(image);
  const char* cubin = code_for(static_cast<const char*>(image), model(current->device));
  if (memcmp(cubin, ELFMAG, SELFMAG) == 0) {
    const auto found = reinterpret_cast<const Elf64_Ehdr*>(cubin)->e_flags >> 8 & 0xff;
    NEED(static_cast<int>(found) == model(current->device), kNoBinaryForGpu);
    log("module device=%d sm_%u%s", current->device, found, cubin != image ? " of a fatbin" : "");
    *module = new CUmod_st;
    read_cubin(cubin, *module);
    return CUDA_SUCCESS;
  }
  NEED(memcmp(image, kFatbin, sizeof kFatbin) != 0, kNoBinaryForGpu);
  if (text.find(".version") == std::string::npos) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(static_cast<char*>(values[i]), "no PTX");
    }
    return kInvalidImage;
  }
  auto made = std::make_unique<CUmod_st>();
  for (size_t at = 0; (at = text.find(".entry ", at)) != std::string::npos;) {
    at += 7;
    const size_t open = text.find('(', at), end = text.find(')', at);
    Function& function = made->functions[text.substr(at, open - at)];
    function.name = text.substr(at, open - at);
    for (size_t p = open; (p = text.find(".param .", p)) < end; ++p) {
      function.sizes.push_back(text.compare(p + 9, 2, "64") == 0 ? 8 : 4);
    }
  }
  *module = made.release();
  return CUDA_SUCCESS;
}
API cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const auto found = module->functions.find(name);
  NEED(found != module->functions.end(), CUDA_ERROR_NOT_FOUND);
  *function = reinterpret_cast<CUfunction>(&found->second);
  return CUDA_SUCCESS;
}
API cuFuncGetAttribute(int* value, int attribute, CUfunction) {
  return *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  NEED(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value <= kShared,
       CUDA_ERROR_INVALID_VALUE);
  reinterpret_cast<Function*>(function)->dynamic = value;
  return CUDA_SUCCESS;
}
API cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  const auto& sizes = reinterpret_cast<Function*>(function)->sizes;
  NEED(index < sizes.size(), CUDA_ERROR_INVALID_VALUE);
  *offset = 0;
  *size = sizes[index];
  return CUDA_SUCCESS;
}
static CUresult launch(CUstream stream, CUfunction function, const unsigned (&grid)[3],
                       const unsigned (&block)[3], unsigned shared, void** values,
                       const CUlaunchAttribute* attributes, unsigned count) {
  stream = of(stream);
  NEED_CONTEXT(stream->device);
  std::shared_ptr<Kernel> kernel;
  CUresult code = kernel_of(function, grid, block, shared, values, &kernel);
  for (unsigned i = 0; i < count && code == CUDA_SUCCESS; ++i) {
    code = set_attribute(kernel.get(), attributes[i].id, attributes[i].value);
  }
  NEED(code == CUDA_SUCCESS, code);
  log("launch stream=%d %s", stream->number_, text_of(*kernel).c_str());
  stream->give([kernel] { compute(*kernel); }, kernel);
  return CUDA_SUCCESS;
}
API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   CUstream stream, void** values, void** extra) {
  NEED(extra == nullptr, CUDA_ERROR_INVALID_VALUE);
  return launch(stream, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared,
                values, nullptr, 0);
}
API cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** values, void** extra) {
  NEED(extra == nullptr && c->numAttrs > 0, CUDA_ERROR_INVALID_VALUE);
  return launch(c->hStream, function, {c->gridDimX, c->gridDimY, c->gridDimZ},
                {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, values, c->attrs,
                c->numAttrs);
}

// --- graphs

static std::set<CUgraph> graphs;
API cuGraphCreate(CUgraph* graph, unsigned) {
  graphs.insert(*graph = new CUgraph_st);
  return CUDA_SUCCESS;
}
API cuGraphDestroy(CUgraph graph) {
  graphs.erase(graph);
  delete graph;
  return CUDA_SUCCESS;
}
API cuGraphGetNodes(CUgraph graph, CUgraphNode*, size_t* count) {
  return *count = graph->nodes.size(), CUDA_SUCCESS;
}
API cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count) {
  return add_node(node, graph, behind, count, {[] {}, nullptr, {}});
}
API cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count,
                         const CUDA_MEMCPY3D* of, CUcontext context) {
  const bool from_host = of->srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = of->dstMemoryType == CU_MEMORYTYPE_HOST;
  NEED(context != nullptr && of->Height == 1 && of->Depth == 1 && of->WidthInBytes > 0 &&
           (from_host || is_device(of->srcDevice)) && (to_host || is_device(of->dstDevice)),
       CUDA_ERROR_INVALID_VALUE);
  void* to = to_host ? of->dstHost : bytes_at(of->dstDevice);
  const void* from = from_host ? of->srcHost : bytes_at(of->srcDevice);
  const size_t bytes = of->WidthInBytes;
  return add_node(node, graph, behind, count, {[=] { memmove(to, from, bytes); }, nullptr, {}});
}
API cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, size_t count,
                       const CUDA_HOST_NODE_PARAMS* of) {
  const CUDA_HOST_NODE_PARAMS call = *of;
  return add_node(node, graph, behind, count,
                  {[call] { call_on_host(call.fn, call.userData); }, nullptr, {}});
}
API cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind,
                            size_t count, const CUDA_KERNEL_NODE_PARAMS* launch) {
  std::shared_ptr<Kernel> kernel;
  const CUresult code = kernel_of(launch, &kernel);
  NEED(code == CUDA_SUCCESS, code);
  return add_node(node, graph, behind, count, {nullptr, kernel, {}});
}
API cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* behind,
                             size_t count, CUgraph child) {
  return add_node(node, graph, behind, count, {[] {}, nullptr, child->nodes});
}
API cuGraphDestroyNode(CUgraphNode node) {
  for (CUgraph graph : graphs) std::erase(graph->nodes, node);
  return CUDA_SUCCESS;
}
API cuGraphKernelNodeSetAttribute(CUgraphNode node, int which,
                                  const CUlaunchAttributeValue* value) {
  return set_attribute(node->kernel.get(), which, *value);
}
// The node's attributes stay.
static CUresult set_params(const CUDA_KERNEL_NODE_PARAMS* launch, std::shared_ptr<Kernel>* of) {
  std::shared_ptr<Kernel> kernel;
  const CUresult code = kernel_of(launch, &kernel);
  NEED(code == CUDA_SUCCESS, code);
  std::copy_n((*of)->cluster, 3, kernel->cluster);
  kernel->cooperative = (*of)->cooperative;
  *of = std::move(kernel);
  return CUDA_SUCCESS;
}
API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* launch) {
  return set_params(launch, &node->kernel);
}
API cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
  *made = new CUgraphExec_st{{}, nullptr, number()};
  flatten(graph->nodes, *made);
  log("instantiate nodes=%zu", graph->nodes.size());
  return CUDA_SUCCESS;
}
API cuGraphExecKernelNodeSetParams_v2(CUgraphExec of, CUgraphNode node,
                                      const CUDA_KERNEL_NODE_PARAMS* launch) {
  for (auto& step : of->steps) {
    if (step.first == node) return set_params(launch, &step.second);
  }
  return CUDA_ERROR_INVALID_VALUE;
}
API cuGraphLaunch(CUgraphExec of, CUstream stream) {
  NEED_CONTEXT(stream->device);
  log("graph stream=%d", stream->number_);
  if (of->last != nullptr) stream->push([last = of->last] { last->wait(); });
  for (const auto& [node, kernel] : of->steps) {
    if (kernel != nullptr) {
      log("graph kernel %s", text_of(*kernel).c_str());
      stream->push([kernel = kernel] { compute(*kernel); });
    } else {
      stream->push(node->work);
    }
  }
  of->last = stream->mark();
  return CUDA_SUCCESS;
}
API cuGraphExecDestroy(CUgraphExec of) {
  delete of;
  return CUDA_SUCCESS;
}
