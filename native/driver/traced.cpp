#include "driver/traced.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "driver/functions.h"
#include "driver/trace_copies.h"
#include "driver/trace_line.h"
#include "engine/util/sha256.h"

namespace bringup::driver {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Trace {
  Trace(const bringup_driver& driver, const TraceOptions& options) : real(driver), file(options) {}

  const bringup_driver real;
  TraceFile file;
  PendingCopies copies;
  std::atomic<uint64_t> calls{0};
  const SteadyClock::time_point start = SteadyClock::now();
};

std::atomic<Trace*> g_trace{nullptr};

// Replaced traces are kept: calls of other threads may still be in them.
void keep(std::unique_ptr<Trace> made) {
  static std::mutex mutex;
  static auto* all = new std::vector<std::unique_ptr<Trace>>;
  const std::lock_guard lock(mutex);
  g_trace.store(made.get(), std::memory_order_release);
  all->push_back(std::move(made));
}

Trace& trace() { return *g_trace.load(std::memory_order_acquire); }

int64_t since(SteadyClock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(SteadyClock::now() - begin).count();
}

int64_t thread_number() {
  thread_local const int64_t number = syscall(SYS_gettid);
  return number;
}

std::string sha256(std::span<const std::byte> bytes) {
  engine::Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

// The digest of bytes and where they are kept, as fields of the open object.
void put_bytes(TraceLine& line, Trace& to, std::span<const std::byte> bytes) {
  const std::string digest = sha256(bytes);
  line.field("sha256", digest);
  if (!to.file.keeps_payload()) return;
  if (const auto place = to.file.keep(digest, bytes)) line.field("payload", *place);
}

// --- arguments, by their types. What is written to is an output: nothing, before the call.

template <class T>
concept IsStructure = requires(const T& value) {
  { value.struct_size } -> std::convertible_to<uint32_t>;
};

template <class T>
void put_argument(TraceLine& line, std::string_view name, T value) {
  line.field(name, value);
}
template <IsStructure T>
void put_argument(TraceLine& line, std::string_view name, const T* launch) {
  line.open(name, '{');
  put_fields(line, *launch);
  line.close('}');
}
template <class T>
  requires(!std::is_const_v<T> && !std::is_void_v<T> && !std::is_function_v<T> &&
           (std::is_arithmetic_v<T> || std::is_pointer_v<T> || IsStructure<T>))
void put_argument(TraceLine&, std::string_view, T*) {}

template <class T>
void put_output(TraceLine&, std::string_view, T) {}
template <class T>
  requires(!std::is_const_v<T> && (std::is_arithmetic_v<T> || std::is_pointer_v<T>))
void put_output(TraceLine& line, std::string_view name, T* place) {
  if (place != nullptr) line.field(name, *place);
}
template <IsStructure T>
  requires(!std::is_const_v<T>)
void put_output(TraceLine& line, std::string_view name, T* place) {
  line.open(name, '{');
  put_fields(line, *place);
  line.close('}');
}
// Records of work are the device's own, and no replay repeats them.
void put_output(TraceLine&, std::string_view, bringup_record*) {}

std::string_view next_name(std::string_view& names) {
  const size_t end = names.find(' ');
  const std::string_view name = names.substr(0, end);
  names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  return name;
}

// --- what a function needs beyond its arguments. Added to the line before the call, done after it.

struct Nothing {
  template <class... A>
  static void before(Trace&, TraceLine&, A...) {}
  template <class... A>
  void after(Trace&, TraceLine&, uint64_t, int32_t, A...) {}
};

template <auto kFunction>
struct Extra : Nothing {};

// Waits and queries: what was given before they began is done once they say so.
struct Settling {
  PendingCopies::Clock done;

  template <class... A>
  void after(Trace& to, TraceLine& line, uint64_t, int32_t status, A...) {
    if (status != BRINGUP_OK || done.empty()) return;
    bool is_open = false;
    to.copies.take(done, [&](const TracedCopy& copy) {
      if (!is_open) line.open("done", '[');
      is_open = true;
      line.open('{');
      line.field("copy", copy.call);
      if (copy.kind == BRINGUP_DEVICE_TO_HOST && copy.is_overwritten) {
        line.field("overwritten", true);
      } else if (copy.kind == BRINGUP_DEVICE_TO_HOST) {
        put_rows(to, line, copy);
      }
      line.close('}');
    });
    if (is_open) line.close(']');
  }

  static void put_rows(Trace& to, TraceLine& line, const TracedCopy& copy) {
    if (copy.height == 1 || copy.pitch == copy.width) {
      return put_bytes(line, to, {copy.host, copy.width * copy.height});
    }
    std::vector<std::byte> rows;
    rows.reserve(copy.width * copy.height);
    for (size_t row = 0; row < copy.height; ++row) {
      const std::byte* begin = copy.host + row * copy.pitch;
      rows.insert(rows.end(), begin, begin + copy.width);
    }
    put_bytes(line, to, rows);
  }
};

struct SettlingStream : Settling {
  template <class... A>
  void before(Trace& to, TraceLine&, int32_t device, bringup_stream stream, A...) {
    done = to.copies.after(PendingCopies::Stream{device, stream});
  }
};
template <>
struct Extra<&bringup_driver::stream_synchronize> : SettlingStream {};
template <>
struct Extra<&bringup_driver::stream_query> : SettlingStream {};
template <>
struct Extra<&bringup_driver::stream_wait_for> : SettlingStream {};

struct SettlingEvent : Settling {
  template <class... A>
  void before(Trace& to, TraceLine&, bringup_event event, A...) {
    done = to.copies.after(event);
  }
};
template <>
struct Extra<&bringup_driver::event_synchronize> : SettlingEvent {};
template <>
struct Extra<&bringup_driver::event_query> : SettlingEvent {};
template <>
struct Extra<&bringup_driver::event_wait_for> : SettlingEvent {};

template <>
struct Extra<&bringup_driver::device_synchronize> : Settling {
  void before(Trace& to, TraceLine&, int32_t device) { done = to.copies.after_device(device); }
};

template <>
struct Extra<&bringup_driver::event_record> : Nothing {
  void after(Trace& to, TraceLine&, uint64_t, int32_t status, bringup_event event, int32_t device,
             bringup_stream stream) {
    if (status == BRINGUP_OK) to.copies.record(event, {device, stream});
  }
};
template <>
struct Extra<&bringup_driver::event_wait> : Nothing {
  void after(Trace& to, TraceLine&, uint64_t, int32_t status, bringup_event event, int32_t device,
             bringup_stream stream) {
    if (status == BRINGUP_OK) to.copies.wait(event, {device, stream});
  }
};
template <>
struct Extra<&bringup_driver::event_destroy> : Nothing {
  static void before(Trace& to, TraceLine&, bringup_event event) { to.copies.forget(event); }
};

template <>
struct Extra<&bringup_driver::stream_capture_begin> : Nothing {
  void after(Trace& to, TraceLine&, uint64_t, int32_t status, int32_t device,
             bringup_stream stream) {
    if (status == BRINGUP_OK) to.copies.begin_capture({device, stream});
  }
};
// Before: the stream runs again, also where the call fails.
struct EndingCapture : Nothing {
  template <class... A>
  void before(Trace& to, TraceLine&, int32_t device, bringup_stream stream, A...) {
    to.copies.end_capture({device, stream});
  }
};
template <>
struct Extra<&bringup_driver::stream_capture_end> : EndingCapture {};
template <>
struct Extra<&bringup_driver::stream_capture_abort> : EndingCapture {};

// The host's bytes of a copy to the device, unless a copy that is not done writes them first.
void put_source(Trace& to, TraceLine& line, const TracedCopy& copy) {
  const size_t extent = (copy.height - 1) * copy.pitch + copy.width;
  if (to.copies.is_being_written(copy.host, extent)) {
    line.field("source_is_pending", true);
  } else {
    Settling::put_rows(to, line, copy);
  }
}

template <>
struct Extra<&bringup_driver::copy_async> : Nothing {
  static TracedCopy copy_of(bringup_copy_kind kind, void* dst, const void* src, size_t bytes) {
    const void* host = kind == BRINGUP_HOST_TO_DEVICE ? src : dst;
    return {0, kind, static_cast<std::byte*>(const_cast<void*>(host)), bytes, 1, bytes, false};
  }
  static void before(Trace& to, TraceLine& line, bringup_copy_kind kind, int32_t, void* dst,
                     int32_t, const void* src, size_t bytes, bringup_stream) {
    if (kind == BRINGUP_HOST_TO_DEVICE && src != nullptr) {
      put_source(to, line, copy_of(kind, dst, src, bytes));
    }
  }
  void after(Trace& to, TraceLine&, uint64_t call, int32_t status, bringup_copy_kind kind,
             int32_t dst_device, void* dst, int32_t src_device, const void* src, size_t bytes,
             bringup_stream stream) {
    if (status != BRINGUP_OK || kind == BRINGUP_DEVICE_TO_DEVICE) return;
    TracedCopy copy = copy_of(kind, dst, src, bytes);
    copy.call = call;
    to.copies.add(copy, {kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, stream});
  }
};

template <>
struct Extra<&bringup_driver::copy_2d_async> : Nothing {
  static TracedCopy copy_of(bringup_copy_kind kind, void* dst, size_t dst_pitch, const void* src,
                            size_t src_pitch, size_t width, size_t height) {
    const bool to_device = kind == BRINGUP_HOST_TO_DEVICE;
    return {0,     kind,   static_cast<std::byte*>(to_device ? const_cast<void*>(src) : dst),
            width, height, to_device ? src_pitch : dst_pitch,
            false};
  }
  static void before(Trace& to, TraceLine& line, bringup_copy_kind kind, int32_t, void* dst,
                     size_t dst_pitch, int32_t, const void* src, size_t src_pitch, size_t width,
                     size_t height, bringup_stream) {
    if (kind == BRINGUP_HOST_TO_DEVICE && src != nullptr && height > 0) {
      put_source(to, line, copy_of(kind, dst, dst_pitch, src, src_pitch, width, height));
    }
  }
  void after(Trace& to, TraceLine&, uint64_t call, int32_t status, bringup_copy_kind kind,
             int32_t dst_device, void* dst, size_t dst_pitch, int32_t src_device, const void* src,
             size_t src_pitch, size_t width, size_t height, bringup_stream stream) {
    if (status != BRINGUP_OK || kind == BRINGUP_DEVICE_TO_DEVICE || height == 0) return;
    TracedCopy copy = copy_of(kind, dst, dst_pitch, src, src_pitch, width, height);
    copy.call = call;
    to.copies.add(copy, {kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, stream});
  }
};

template <>
struct Extra<&bringup_driver::fill_wide_async> : Nothing {
  static void before(Trace&, TraceLine& line, int32_t, void*, const void* pattern, uint32_t size,
                     size_t, bringup_stream) {
    if (pattern != nullptr && size <= 16) line.field("pattern_bytes", hex_of(pattern, size));
  }
};
template <>
struct Extra<&bringup_driver::module_load> : Nothing {
  static void before(Trace&, TraceLine& line, int32_t, const char* library, void**) {
    line.field("sha256", engine::sha256_of_file(library));
  }
};
template <>
struct Extra<&bringup_driver::module_load_data> : Nothing {
  static void before(Trace& to, TraceLine& line, int32_t, const void* data, size_t bytes, void**) {
    if (data != nullptr) put_bytes(line, to, {static_cast<const std::byte*>(data), bytes});
  }
};

// --- the functions

template <auto kFunction>
struct Traced;

template <class... A, int32_t (*bringup_driver::*kFunction)(A...)>
struct Traced<kFunction> {
  static inline const char* name;
  static inline std::string_view parameters;

  static int32_t call(A... arguments) {
    Trace& to = trace();
    if (!to.file.open()) return (to.real.*kFunction)(arguments...);
    const uint64_t number = to.calls.fetch_add(1) + 1;
    Extra<kFunction> extra;
    write_begin(to, number, extra, arguments...);
    const auto begin = SteadyClock::now();
    const int32_t status = (to.real.*kFunction)(arguments...);
    write_end(to, number, extra, status, since(begin), arguments...);
    return status;
  }

 private:
  static void write_begin(Trace& to, uint64_t number, Extra<kFunction>& extra, A... arguments) {
    std::string text;
    TraceLine line(text);
    line.field("call", number);
    line.field("at", since(to.start));
    line.field("thread", thread_number());
    line.field("function", name);
    line.open("arguments", '{');
    [[maybe_unused]] std::string_view names = parameters;
    (put_argument(line, next_name(names), arguments), ...);
    line.close('}');
    extra.before(to, line, arguments...);
    to.file.write(line.finish());
  }

  static void write_end(Trace& to, uint64_t number, Extra<kFunction>& extra, int32_t status,
                        int64_t nanoseconds, A... arguments) {
    std::string text;
    TraceLine line(text);
    line.field("call", number);
    line.field("status", status);
    line.field("took", nanoseconds);
    if (status == BRINGUP_OK) {
      line.open("outputs", '{');
      [[maybe_unused]] std::string_view names = parameters;
      (put_output(line, next_name(names), arguments), ...);
      line.close('}');
    }
    extra.after(to, line, number, status, arguments...);
    to.file.write(line.finish());
  }
};

// The text is the call's answer; it is asked for once, as some drivers forget it then.
const char* last_error() {
  Trace& to = trace();
  const char* words = to.real.last_error();
  std::string text;
  TraceLine line(text);
  line.field("last_error",
             words != nullptr ? std::string_view(words, strnlen(words, 4096)) : std::string_view());
  line.field("thread", thread_number());
  to.file.write(line.finish());
  return words;
}

void write_header(Trace& to, const std::string& library) {
  std::string text;
  TraceLine line(text);
  line.field("bringup_driver_trace", 1);
  line.field("process", static_cast<int64_t>(getpid()));
  line.field("library", library);
  line.field("sha256", engine::sha256_of_file(library));
  line.field("began", std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count());
  line.field("payload", to.file.keeps_payload());
  line.field("capabilities", to.real.capabilities);
  line.open("functions", '[');
#define BRINGUP_LISTED(function, ...) \
  if (to.real.function != nullptr) line.element(#function);
  BRINGUP_DRIVER_FUNCTIONS(BRINGUP_LISTED)
#undef BRINGUP_LISTED
  line.close(']');
  to.file.write(line.finish());
}

}  // namespace

bringup_driver traced(const bringup_driver& real, const std::string& library,
                      const TraceOptions& options) {
  if (Trace* former = g_trace.load(std::memory_order_acquire)) former->file.release();
  auto made = std::make_unique<Trace>(real, options);
  write_header(*made, library);
  keep(std::move(made));
  bringup_driver table = real;
#define BRINGUP_TRACED(function, names, ...)            \
  if (real.function != nullptr) {                       \
    using Function = Traced<&bringup_driver::function>; \
    Function::name = #function;                         \
    Function::parameters = names;                       \
    table.function = &Function::call;                   \
  }
  BRINGUP_DRIVER_FUNCTIONS(BRINGUP_TRACED)
#undef BRINGUP_TRACED
  if (real.last_error != nullptr) table.last_error = &last_error;
  if (options.payload) table.host_view = nullptr;
  return table;
}

std::string trace_path() {
  const Trace* active = g_trace.load(std::memory_order_acquire);
  return active != nullptr ? active->file.path() : "";
}

}  // namespace bringup::driver
