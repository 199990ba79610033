// What the handles of the C API stand for: numbers that are never used twice, so that ends show.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "bringup/engine.h"
#include "engine/graph/graph.h"
#include "engine/graph/providers.h"
#include "engine/pattern/pattern_elements.h"
#include "engine/run/executor.h"
#include "engine/run/pass.h"
#include "engine/util/error.h"
#include "engine/util/handle_number.h"

namespace bringup::engine {

template <class Entry>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}

  uint64_t add(std::shared_ptr<Entry> entry) {
    const uint64_t handle = next_handle();
    const std::lock_guard lock(mutex_);
    entries_.emplace(handle, std::move(entry));
    return handle;
  }

  // EngineError(kExpired) when the handle is none of this kind or ended.
  std::shared_ptr<Entry> get(uint64_t handle) const {
    const std::lock_guard lock(mutex_);
    const auto place = entries_.find(handle);
    if (place == entries_.end()) refuse(handle);
    return place->second;
  }

  std::shared_ptr<Entry> take(uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto place = entries_.find(handle);
    if (place == entries_.end()) refuse(handle);
    std::shared_ptr<Entry> entry = std::move(place->second);
    entries_.erase(place);
    return entry;
  }

 private:
  [[noreturn]] void refuse(uint64_t handle) const {
    throw_error(ErrorCode::kExpired, what_, " handle has expired: ", handle,
                " is not one that lives");
  }

  const char* what_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_;
};

// A graph that C code may use.
struct GraphEntry {
  std::shared_ptr<Graph> graph;
  std::shared_ptr<const Providers> providers;
  bool lent = false;             // to a hook, on the thread `lender`
  bool shapes_withheld = false;  // the hook runs before shape inference
  std::thread::id lender;
  Pieces pieces;                               // of the pattern that it becomes
  std::pmr::monotonic_buffer_resource memory;  // of what was returned

  template <class T>
  T* array(size_t count) {
    return static_cast<T*>(memory.allocate(std::max<size_t>(count, 1) * sizeof(T), alignof(T)));
  }
};

Handles<GraphEntry>& graph_handles();
// The entry of a handle; EngineError(kExpired) also when it was lent to another thread.
std::shared_ptr<GraphEntry> graph_of(bringup_ir_graph handle);
// Takes a graph that C code made and hands over; EngineError for a lent one.
std::shared_ptr<GraphEntry> take_graph(bringup_ir_graph handle);

// Lends a graph to the hook that runs on this thread.
class LentGraph {
 public:
  LentGraph(Graph& graph, const Providers& providers, bool shapes_withheld);
  ~LentGraph();
  LentGraph& operator=(LentGraph&&) = delete;

  bringup_ir_graph handle() const { return handle_; }

 private:
  bringup_ir_graph handle_;
};

// A hook that runs on this thread: its context, and where `patterns` puts them.
struct ContextEntry {
  PassContext* context = nullptr;
  std::thread::id lender;
  std::vector<PatternPtr>* patterns = nullptr;
};

Handles<ContextEntry>& context_handles();
// The entry of a handle; EngineError(kExpired) also when it was lent to another thread.
std::shared_ptr<ContextEntry> context_of(bringup_pass_context handle);

class LentContext {
 public:
  explicit LentContext(PassContext& context, std::vector<PatternPtr>* patterns = nullptr);
  ~LentContext();
  LentContext& operator=(LentContext&&) = delete;

  bringup_pass_context handle() const { return handle_; }
  // The context of the innermost hook on this thread, or nullptr.
  static const PassContext* current();

 private:
  bringup_pass_context handle_;
  const PassContext* outer_;
};

// Errors between C code and the engine, on this thread.
const char* last_error();
void set_hook_error(const char* message);
void clear_hook_error();
// Why a hook failed: what it set, or else why the engine refused it with this status.
std::string take_hook_error(int32_t status);
// Notes the exception being handled as the last error and returns its status.
int32_t note_exception() noexcept;

// What `call`, code of the program or of a library, returns; what it throws becomes an EngineError:
// its class may live in a library that goes before the exception does. `where`: "run of 'fuse'".
template <class Call>
auto foreign(const std::string& where, Call&& call) {
  clear_hook_error();
  try {
    return call();
  } catch (const std::exception& error) {
    throw_error(ErrorCode::kFailed, where, " threw: ", error.what());
  } catch (...) {
    throw_error(ErrorCode::kFailed, where, " threw something that is no std::exception");
  }
}

template <class Work>
int32_t guarded(Work&& work) noexcept {
  try {
    work();
    return BRINGUP_ENGINE_OK;
  } catch (...) {
    return note_exception();
  }
}

// What a function is given that the C API calls: for a handle, what it stands for.
template <class Parameter>
struct Received {
  Parameter given;
  operator Parameter() const { return given; }
};

template <class Entry, std::shared_ptr<Entry> (*kFind)(uint64_t handle)>
struct ReceivedHandle {
  explicit ReceivedHandle(uint64_t handle) : entry(kFind(handle)) {}
  operator Entry&() const { return *entry; }
  std::shared_ptr<Entry> entry;
};

template <>
struct Received<GraphEntry&> : ReceivedHandle<GraphEntry, graph_of> {
  using ReceivedHandle::ReceivedHandle;
};

template <>
struct Received<ContextEntry&> : ReceivedHandle<ContextEntry, context_of> {
  using ReceivedHandle::ReceivedHandle;
};

template <auto kFunction>
struct Guarded;

template <class... Parameters, void (*kFunction)(Parameters...)>
struct Guarded<kFunction> {
  template <class Parameter>
  using Given = std::conditional_t<std::is_reference_v<Parameter>, uint64_t, Parameter>;

  static int32_t call(Given<Parameters>... given) noexcept {
    return guarded([&] { kFunction(Received<Parameters>{given}...); });
  }
};

// The function of the C API's table that calls `kFunction`, which may throw.
template <auto kFunction>
constexpr auto api = &Guarded<kFunction>::call;

// `what` is there; EngineError(kInvalid) naming it otherwise.
template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw_error(ErrorCode::kInvalid, what, " is NULL");
  return *pointer;
}

inline std::string_view text_given(const char* text, const char* what) {
  given(text, what);
  return text;
}

// A text that lives as long as the process.
inline const char* kept(std::string_view text) {
  return Strings::text(Strings::intern(text)).data();
}

}  // namespace bringup::engine
