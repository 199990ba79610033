// What the parts of the library in the place of libcuda share: memory, streams, what is recorded.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define _Atomic(type) type
#include "cuda_api.h"

#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace stand_in {

constexpr size_t kMemory = size_t{256} << 20;
constexpr int kShared = 232448;
enum {
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209
};
using Work = std::function<void()>;
using Lock = std::unique_lock<std::mutex>;

inline void log(const char* format, ...) {
  static FILE* file = [] {
    const char* path = getenv("CUDA_STAND_IN_LOG");
    return path != nullptr ? fopen(path, "a") : nullptr;
  }();
  if (file == nullptr) return;
  char line[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  fprintf(file, "%s\n", line);
  fflush(file);
}

inline int devices() {
  const char* text = getenv("CUDA_STAND_IN_DEVICES");
  return text != nullptr ? atoi(text) : 1;
}

// The model of a device, 90 for sm_90: the device's of $CUDA_STAND_IN_MODELS, "90,80".
inline int model(int device) {
  const char* text = getenv("CUDA_STAND_IN_MODELS");
  for (; text != nullptr && device > 0 && *text != '\0'; ++text) device -= *text == ',';
  return text != nullptr && *text != '\0' ? atoi(text) : 90;
}

inline int number() {
  static std::atomic<int> next{1};
  return next++;
}

// A place in a stream's work.
struct Mark {
  std::mutex lock;
  std::condition_variable changed;
  bool done = false;
  bool captured = false;
  std::chrono::steady_clock::time_point time;
  void reach() {
    const Lock held(lock);
    time = std::chrono::steady_clock::now();
    done = true;
    changed.notify_all();
  }
  void wait() {
    Lock held(lock);
    changed.wait(held, [&] { return done; });
  }
  bool reached() {
    const Lock held(lock);
    return done;
  }
};

struct Allocation {
  size_t bytes;
  int device;  // -1: the host's
  int file;
  bool opened;
};
inline std::mutex memory_lock;
inline std::map<CUdeviceptr, Allocation> memory;
inline size_t used[64];

inline const std::pair<const CUdeviceptr, Allocation>* allocation_of(CUdeviceptr address) {
  const Lock held(memory_lock);
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  --after;
  return address - after->first < after->second.bytes ? &*after : nullptr;
}
inline bool is_device(CUdeviceptr address) {
  const auto* found = allocation_of(address);
  return found != nullptr && found->second.device >= 0;
}
inline bool is_pageable(CUdeviceptr address) { return allocation_of(address) == nullptr; }

}  // namespace stand_in

using namespace stand_in;

struct CUctx_st {
  int device;
};
struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<Mark> mark;
};
struct Function {
  std::string name;
  std::vector<size_t> sizes;
  int dynamic = 49152;
};
struct CUmod_st {
  std::map<std::string, Function> functions;
};
struct Kernel {
  Function* function;
  unsigned grid[3], block[3], shared;
  unsigned cluster[3] = {0, 0, 0};
  bool cooperative = false;
  std::vector<std::string> values;
};
struct CUgraphNode_st {
  Work work;
  std::shared_ptr<Kernel> kernel;
  std::vector<CUgraphNode> child;
};
struct CUgraph_st {
  std::vector<CUgraphNode> nodes;
};
struct CUgraphExec_st {
  std::vector<std::pair<CUgraphNode, std::shared_ptr<Kernel>>> steps;
  std::shared_ptr<Mark> last;
  int number_;
};
struct CUstream_st {
  int device, number_;
  std::mutex lock;
  std::condition_variable changed;
  std::deque<Work> work;
  std::atomic<int> pending{0};  // of `work`, but for marks
  bool stopping = false;
  CUgraph captured = nullptr;
  bool broken = false;

  void run() {
    for (;;) {
      Work next;
      {
        Lock held(lock);
        changed.wait(held, [&] { return stopping || !work.empty(); });
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
      }
      next();
    }
  }
  void append(Work added) {
    const Lock held(lock);
    work.push_back(std::move(added));
    changed.notify_all();
  }
  void push(Work added) {
    ++pending;
    append([this, added = std::move(added)] {
      added();
      --pending;
    });
  }
  // Runs it in order, or puts it into the graph that is captured.
  void give(Work added, std::shared_ptr<Kernel> kernel = nullptr) {
    if (captured != nullptr) {
      captured->nodes.push_back(new CUgraphNode_st{std::move(added), std::move(kernel), {}});
    } else {
      push(std::move(added));
    }
  }
  std::shared_ptr<Mark> mark() {
    auto made = std::make_shared<Mark>();
    append([made] { made->reach(); });
    return made;
  }
};

namespace stand_in {

inline thread_local CUcontext current = nullptr;
inline CUctx_st contexts[64];

#define NEED(condition, code) \
  if (!(condition)) return code
// A kernel that failed is the end of the process's CUDA.
inline std::atomic<bool> lost{false};
#define NEED_CONTEXT(of)                   \
  NEED(!lost, CUDA_ERROR_ILLEGAL_ADDRESS); \
  NEED(current != nullptr && current->device == (of), CUDA_ERROR_INVALID_CONTEXT)

// Not while another host function runs, of whatever stream.
inline void call_on_host(CUhostFn fn, void* user) {
  static std::mutex& one = *new std::mutex;
  const Lock held(one);
  fn(user);
}

inline void* bytes_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

inline CUresult allocate(CUdeviceptr* address, size_t bytes, int device, int file, bool opened) {
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  NEED(made != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  *address = reinterpret_cast<CUdeviceptr>(made);
  const Lock held(memory_lock);
  memory[*address] = {bytes, device, file, opened};
  return CUDA_SUCCESS;
}

inline CUresult release(CUdeviceptr address, bool opened) {
  const Lock held(memory_lock);
  const auto found = memory.find(address);
  NEED(found != memory.end() && found->second.device >= 0 && found->second.opened == opened,
       CUDA_ERROR_INVALID_VALUE);
  if (!opened) used[found->second.device] -= found->second.bytes;
  munmap(bytes_at(address), found->second.bytes);
  close(found->second.file);
  memory.erase(found);
  return CUDA_SUCCESS;
}

// The stream itself, or the legacy default one of the current device.
inline CUstream of(CUstream stream) {
  if (stream != nullptr || current == nullptr) return stream;
  static std::mutex& one = *new std::mutex;
  static CUstream_st* legacy[64];
  const Lock held(one);
  CUstream_st*& found = legacy[current->device];
  if (found == nullptr) {
    found = new CUstream_st{};
    found->device = current->device;
    std::thread([found = found] { found->run(); }).detach();
  }
  return found;
}

// A copy, which of pageable memory waits for its turn and its end, unless it is captured.
inline void copy(CUstream stream, bool waits, Work work) {
  stream->give(std::move(work));
  if (waits && stream->captured == nullptr) stream->mark()->wait();
}

}  // namespace stand_in
