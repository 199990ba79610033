#include "sim/kernel_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace bringup::sim {
namespace {

constexpr size_t kAlignment = 64;
constexpr int32_t kExternalDevice = 12;  // DLPack's kDLExtDev

// The most bytes of tensors, each by its elements, that a short launch may name.
constexpr int64_t kShortLaunch = int64_t{16} << 10;

// A worker's scratch memory. Request number i of a block gets buffer i, so a kernel launched again
// and again allocates nothing.
class Scratch {
 public:
  void rewind() { next_ = 0; }

  void* take(size_t bytes) {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[next_];
    if (buffer.size < bytes || buffer.memory == nullptr) {
      const size_t size = (bytes + kAlignment) / kAlignment * kAlignment;
      buffer.memory.reset(std::aligned_alloc(kAlignment, size));
      buffer.size = buffer.memory != nullptr ? size : 0;
    }
    if (buffer.memory != nullptr) ++next_;
    return buffer.memory.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Buffer {
    std::unique_ptr<void, Free> memory;
    size_t size = 0;
  };
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
};

Scratch& scratch() {
  thread_local Scratch scratch;
  return scratch;
}

void set_error(const bringup_ctx* ctx, const char* message) {
  static_cast<std::string*>(ctx->opaque)->assign(message != nullptr ? message : "");
}

void* workspace(const bringup_ctx*, size_t bytes) { return scratch().take(bytes); }

// The worker is the whole core: it covers the range itself.
void parallel_for(const bringup_ctx*, int64_t n, int64_t, void (*fn)(int64_t, int64_t, void*),
                  void* user) {
  if (n > 0) fn(0, n, user);
}

// Device code has nothing of the vendor's: that is for host entries.
int32_t no_native_handle(const bringup_ctx*, int32_t, void**) { return BRINGUP_UNSUPPORTED; }

// The arguments of a launch with every tensor address replaced by the worker's. The launch itself
// is left alone: a graph runs it again, and its owner may change scalars in between.
class WorkerArguments {
 public:
  WorkerArguments(const bringup_launch& launch, const DeviceMemory& memory) : memory_(memory) {
    pointers_.assign(launch.args, launch.args + launch.nargs);
    for (int32_t i = 0; i < launch.nargs; ++i) {
      void*& pointer = pointers_[static_cast<size_t>(i)];
      if (launch.kinds[i] == BRINGUP_ARG_TENSOR) {
        pointer = translate(static_cast<const DLTensor*>(pointer));
      } else if (launch.kinds[i] == BRINGUP_ARG_TENSOR_LIST) {
        pointer = translate(static_cast<const bringup_list*>(pointer));
      }
    }
  }

  void** data() { return pointers_.data(); }

 private:
  DLTensor* translate(const DLTensor* tensor) {
    if (tensor == nullptr) return nullptr;
    DLTensor& copy = tensors_.emplace_back(*tensor);
    if (copy.data != nullptr) copy.data = memory_.worker_address(copy.data);
    return &copy;
  }

  bringup_list* translate(const bringup_list* list) {
    if (list == nullptr) return nullptr;
    const auto* sources = static_cast<DLTensor* const*>(list->data);
    std::vector<DLTensor*>& items = item_lists_.emplace_back();
    for (int64_t i = 0; i < list->size; ++i) items.push_back(translate(sources[i]));
    return &lists_.emplace_back(bringup_list{items.data(), list->size});
  }

  const DeviceMemory& memory_;
  std::vector<void*> pointers_;
  std::deque<DLTensor> tensors_;  // deques: what is pointed at must not move
  std::deque<std::vector<DLTensor*>> item_lists_;
  std::deque<bringup_list> lists_;
};

// The first argument with a tensor for which `is_meant` holds, or -1.
template <class IsMeant>
int32_t find_tensor(const bringup_launch& launch, IsMeant is_meant) {
  for (int32_t i = 0; i < launch.nargs; ++i) {
    if (launch.args[i] == nullptr) continue;
    if (launch.kinds[i] == BRINGUP_ARG_TENSOR) {
      if (is_meant(*static_cast<const DLTensor*>(launch.args[i]))) return i;
    } else if (launch.kinds[i] == BRINGUP_ARG_TENSOR_LIST) {
      const auto* list = static_cast<const bringup_list*>(launch.args[i]);
      const auto* items = static_cast<DLTensor* const*>(list->data);
      for (int64_t item = 0; item < list->size; ++item) {
        if (items[item] != nullptr && is_meant(*items[item])) return i;
      }
    }
  }
  return -1;
}

std::optional<Failure> run_blocks(const bringup_launch& launch, void** args, const Place& place) {
  std::string message;
  bringup_ctx ctx{sizeof(bringup_ctx),
                  BRINGUP_KERNEL_ABI,
                  place.native_stream,
                  {kExternalDevice, place.device},
                  0,
                  launch.grid,
                  &set_error,
                  &workspace,
                  &parallel_for,
                  &message,
                  &no_native_handle};
  for (int64_t block = 0; block < launch.grid; ++block) {
    ctx.block_index = block;
    scratch().rewind();
    const int32_t status = launch.fn(args, launch.nargs, &ctx);
    if (status == 0) continue;
    std::string text = "the kernel returned " + std::to_string(status);
    if (launch.grid > 1) text += " in block " + std::to_string(block);
    if (!message.empty()) text += ": " + message;
    return failure_of(launch.name, place, text, status,
                      "block " + std::to_string(block) + " of " + std::to_string(launch.grid));
  }
  return std::nullopt;
}

// How many bytes the elements of a tensor have, but no more than kShortLaunch + 1.
int64_t bytes_of(const DLTensor& tensor) noexcept {
  int64_t bytes = (int64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  for (int32_t dim = 0; dim < tensor.ndim; ++dim) {
    const int64_t size = tensor.shape[dim];
    if (size == 0) return 0;
    bytes = size > kShortLaunch ? kShortLaunch + 1 : std::min(bytes * size, kShortLaunch + 1);
  }
  return bytes;
}

}  // namespace

bringup_launch read_launch(const bringup_launch& launch) noexcept {
  bringup_launch read{};
  std::memcpy(&read, &launch, std::min<size_t>(launch.struct_size, sizeof read));
  return read;
}

bool is_short_launch(const bringup_launch& launch) noexcept {
  if ((launch.flags & BRINGUP_LAUNCH_WAITS_FOR_NOTHING) == 0) return false;
  int64_t bytes = 0;
  return find_tensor(launch, [&](const DLTensor& tensor) {
           return (bytes += bytes_of(tensor)) > kShortLaunch;
         }) < 0;
}

Failure failure_of(const char* name, const Place& place, const std::string& what, int64_t code,
                   std::string text) {
  ErrorDetail detail;
  detail.code = code;
  detail.device = place.device;
  detail.stream = place.native_stream;
  detail.kernel = name != nullptr ? name : "";
  detail.text = std::move(text);
  return {"operator '" + std::string(name != nullptr ? name : "?") + "' failed in stream " +
              std::to_string(place.stream_number) + " of device " + std::to_string(place.device) +
              ": " + what,
          std::move(detail)};
}

std::optional<Failure> run_launch(const bringup_launch& launch, const Place& place) {
  const int32_t foreign = find_tensor(launch, [&](const DLTensor& tensor) {
    return tensor.data != nullptr && !place.memory->contains(tensor.data);
  });
  if (foreign >= 0) {
    return failure_of(
        launch.name, place,
        "argument " + std::to_string(foreign) + " is a tensor outside this device's memory");
  }
  try {
    if (!place.memory->isolated()) return run_blocks(launch, launch.args, place);
    WorkerArguments arguments(launch, *place.memory);
    return run_blocks(launch, arguments.data(), place);
  } catch (const std::exception& error) {
    return failure_of(launch.name, place, std::string("the kernel threw: ") + error.what());
  } catch (...) {
    return failure_of(launch.name, place, "the kernel threw something that is no std::exception");
  }
}

}  // namespace bringup::sim
