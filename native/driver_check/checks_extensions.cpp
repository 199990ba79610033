// The groups behind `capabilities`, but for device code.
#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

void shutdown(Context& context) {
  const Bytes content = pattern(4096, 1);
  void* address = nullptr;
  context.must<&D::mem_alloc>(0, size_t{4096}, &address);
  bringup_stream stream = nullptr;
  context.must<&D::stream_create>(0, 0, &stream);
  bringup_event event = nullptr;
  context.must<&D::event_create>(0, 0, &event);
  context.upload(0, address, content, stream);
  context.must<&D::shutdown>();
  // Allowed to fail, not to crash; what they return is no rule.
  context.call<&D::mem_free>(0, address);
  context.call<&D::event_destroy>(event);
  if (context.has<&D::stream_destroy>()) context.call<&D::stream_destroy>(stream);
}

void error_detail(Context& context) {
  void* address = nullptr;
  context.must_give<&D::mem_alloc>(BRINGUP_INVALID, context.device_count(), size_t{64}, &address);
  struct {
    bringup_error_detail detail;
    uint8_t behind[64];
  } given;
  for (const size_t size : {sizeof given.detail, offsetof(bringup_error_detail, text)}) {
    std::memset(&given, 0x5a, sizeof given);
    given.detail.struct_size = static_cast<uint32_t>(size);
    context.must<&D::error_detail>(&given.detail);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&given);
    for (size_t i = size; i < sizeof given; ++i) {
      expect(bytes[i] == 0x5a, "error_detail wrote behind struct_size",
             concat("nothing behind byte ", size), concat("byte ", i));
    }
    const bringup_error_detail& detail = given.detail;
    expect(strnlen(detail.kernel, sizeof detail.kernel) < sizeof detail.kernel,
           "error_detail: kernel does not end", "NUL-terminated text", "no end");
    if (size < sizeof given.detail) continue;
    expect(strnlen(detail.text, sizeof detail.text) < sizeof detail.text,
           "error_detail: text does not end", "NUL-terminated text", "no end");
  }
}

void expect_prompt(const char* function, double begun) {
  const double took = now_seconds() - begun;
  expect(took < 1.5, concat(function, " with 20 ms returned after ", took, " s"), "about 20 ms",
         concat(took, " s"));
}

void timed_waits(Context& context) {
  const Stream stream(context);
  const Event event(context);
  context.must<&D::stream_wait_for>(0, stream, kMillisecond);
  context.must<&D::event_wait_for>(event, kMillisecond);
  context.must<&D::event_record>(event, 0, stream);
  context.must<&D::event_wait_for>(event, 10'000 * kMillisecond);
  context.must<&D::stream_wait_for>(0, stream, 10'000 * kMillisecond);
  if (!context.has<&D::host_func>()) return;
  Gate gate(context, 0, stream);
  context.must<&D::event_record>(event, 0, stream);
  gate.require_holding();
  double begun = now_seconds();
  context.must_give<&D::stream_wait_for>(BRINGUP_TIMEOUT, 0, stream, 20 * kMillisecond);
  expect_prompt("stream_wait_for", begun);
  begun = now_seconds();
  context.must_give<&D::event_wait_for>(BRINGUP_TIMEOUT, event, 20 * kMillisecond);
  expect_prompt("event_wait_for", begun);
  gate.open();
  context.must<&D::event_wait_for>(event, 10'000 * kMillisecond);
  context.must<&D::stream_wait_for>(0, stream, 10'000 * kMillisecond);
}

void reset(Context& context) {
  const size_t bytes = context.at_most(1 << 20);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 1);
  Bytes sink(bytes);
  const Stream stream(context);
  const Event event(context);
  memory.upload(content, stream);
  for (int i = 0; i < 20; ++i) {
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), bytes, stream);
  }
  context.must<&D::event_record>(event, 0, stream);
  context.must<&D::device_reset>(0);
  context.must_give<&D::event_query>(BRINGUP_OK, event);
  context.synchronize(0, stream);
  const Bytes other = pattern(bytes, 2);
  memory.upload(other, stream);
  memory.expect(other, "copies in a stream and memory from before device_reset", stream);
  context.must<&D::event_record>(event, 0, stream);
  context.wait_done(event, 4);
}

void host_memory(Context& context) {
  constexpr size_t kBytes = 1 << 16;
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(4096, kBytes),
                                                          &std::free);
  auto* host = static_cast<uint8_t*>(block.get());
  const Bytes content = pattern(kBytes, 4);
  const Memory memory(context, 0, kBytes);
  const Stream stream(context);
  for (int round = 0; round < 2; ++round) {  // what was unregistered may be registered again
    context.must<&D::host_register>(static_cast<void*>(host), kBytes);
    std::copy(content.begin(), content.end(), host);
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), host, kBytes, stream);
    context.synchronize(0, stream);
    std::fill_n(host, kBytes, uint8_t{0});
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, host, memory.data(), kBytes, stream);
    context.synchronize(0, stream);
    context.must<&D::host_unregister>(static_cast<void*>(host));
    expect_bytes(host, content.data(), kBytes, "copies from and to memory of host_register");
  }
}

bringup_pointer_info asked(Context& context, const void* address) {
  bringup_pointer_info info{};
  info.struct_size = sizeof info;
  context.must<&D::pointer_info>(address, &info);
  return info;
}

void expect_kind(const bringup_pointer_info& info, int32_t kind, const char* what) {
  expect(info.kind == kind, concat("pointer_info says that ", what, " is of kind ", info.kind),
         concat("kind ", kind), info.kind);
}

void pointers(Context& context) {
  constexpr size_t kBytes = 8192;
  const int32_t devices = context.device_count();
  for (int32_t device = 0; device < devices; ++device) {
    const Memory memory(context, device, kBytes);
    for (const size_t offset : {0, 1, 8191}) {
      const bringup_pointer_info info = asked(context, memory.data() + offset);
      expect_kind(info, BRINGUP_POINTER_DEVICE, "device memory");
      expect(info.device == device, "pointer_info gives the wrong device", device, info.device);
      const bool base = info.base == memory.data() && info.bytes >= kBytes;
      expect(base || (info.base == nullptr && info.bytes == 0),
             concat("pointer_info gives ", info.bytes, " bytes at ", hex(info.base),
                    " for an allocation of 8192 bytes"),
             hex(memory.data()), hex(info.base));
    }
  }
  const Bytes ordinary(64);
  expect_kind(asked(context, ordinary.data()), BRINGUP_POINTER_UNKNOWN, "ordinary host memory");
  expect_kind(asked(context, nullptr), BRINGUP_POINTER_UNKNOWN, "NULL");
  if (!context.has<&D::host_alloc>()) return;
  void* pinned = nullptr;
  context.must<&D::host_alloc>(kBytes, &pinned);
  const bringup_pointer_info info = asked(context, static_cast<uint8_t*>(pinned) + 5);
  expect_kind(info, BRINGUP_POINTER_HOST, "memory of host_alloc");
  expect(info.device == -1, "pointer_info gives a device for host memory", "-1", info.device);
  context.must<&D::host_free>(pinned);
}

struct Rows {
  size_t width, height, pitch, offset;
  size_t bytes() const { return offset + pitch * height; }
};

void put_rows(Bytes& into, const Rows& to, const Bytes& from, const Rows& of) {
  for (size_t row = 0; row < to.height; ++row) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(of.offset + row * of.pitch), to.width,
                into.begin() + static_cast<ptrdiff_t>(to.offset + row * to.pitch));
  }
}

void rows_between(Context& context, const Rows& to, const Rows& from) {
  const Stream stream(context);
  const Memory first(context, 0, from.bytes());
  const Memory second(context, 0, to.bytes());
  const Bytes source = pattern(from.bytes(), 1);
  const Bytes target = pattern(to.bytes(), 2);
  const auto copy = [&](bringup_copy_kind kind, void* dst, const void* src) {
    context.must<&D::copy_2d_async>(kind, 0, dst, to.pitch, 0, src, from.pitch, to.width, to.height,
                                    stream);
    context.synchronize(0, stream);
  };
  Bytes expected = target;
  put_rows(expected, to, source, from);
  second.upload(target, stream);
  copy(BRINGUP_HOST_TO_DEVICE, second.data() + to.offset, source.data() + from.offset);
  second.expect(expected, "copy_2d_async to the device", stream);
  first.upload(source, stream);
  second.upload(target, stream);
  copy(BRINGUP_DEVICE_TO_DEVICE, second.data() + to.offset, first.data() + from.offset);
  second.expect(expected, "copy_2d_async on the device", stream);
  Bytes host = target;
  copy(BRINGUP_DEVICE_TO_HOST, host.data() + to.offset, first.data() + from.offset);
  expect_bytes(host, expected, "copy_2d_async to the host");
}

void copy_2d(Context& context) {
  rows_between(context, {5, 7, 9, 3}, {5, 7, 16, 1});
  rows_between(context, {64, 33, 64, 0}, {64, 33, 100, 8});
  rows_between(context, {1000, 4, 1003, 64}, {1000, 4, 1000, 0});
}

void wide_fill(Context& context) {
  constexpr size_t kBytes = 4096;
  const Memory memory(context, 0, kBytes);
  const Stream stream(context);
  for (const uint32_t size : {1, 2, 4, 8, 16}) {
    for (const size_t count : {size_t{1}, size_t{3}, size_t{100}}) {
      Bytes expected = pattern(kBytes, size);
      memory.upload(expected, stream);
      Bytes repeated = pattern(size, count);
      const Bytes kept = repeated;
      context.must<&D::fill_wide_async>(
          0, memory.data() + 64, static_cast<const void*>(repeated.data()), size, count, stream);
      std::fill(repeated.begin(), repeated.end(), uint8_t{0});  // it was read before the return
      for (size_t i = 0; i < count; ++i) {
        std::copy(kept.begin(), kept.end(),
                  expected.begin() + static_cast<ptrdiff_t>(64 + i * size));
      }
      memory.expect(expected, concat("fill_wide_async of ", count, " times ", size, " bytes"),
                    stream);
    }
  }
}

}  // namespace

std::vector<Check> extension_checks() {
  return {
      {"lifecycle.shutdown", "shutdown",
       "No call follows it but mem_free, host_free and the functions that destroy, which return a "
       "failure or do nothing.",
       shutdown, "init shutdown"},
      {"errors.detail", "error_detail",
       "struct_size is set by the caller: write no further; texts end with NUL.", error_detail,
       "error_detail"},
      {"streams.timed_waits", "stream_wait_for",
       "BRINGUP_TIMEOUT when the work is not done after `nanoseconds`, and the work goes on.",
       timed_waits, "stream_wait_for event_wait_for"},
      {"device.reset", "device_reset",
       "Drops all pending work; memory, streams and events stay valid; events that were pending "
       "are done.",
       reset, "device_reset"},
      {"host.registered_memory", "host_register",
       "Makes the caller's host memory as good as that of host_alloc for copies.", host_memory,
       "host_register host_unregister"},
      {"memory.pointers", "pointer_info",
       "Any address may be asked for; one that the driver does not know is "
       "BRINGUP_POINTER_UNKNOWN and BRINGUP_OK.",
       pointers, "pointer_info"},
      {"copies.rows", "copy_2d_async",
       "`height` rows of `width` bytes; what lies between the rows of the target stays as it is.",
       copy_2d, "copy_2d_async"},
      {"fills.wide", "fill_wide_async",
       "Repeats the `size` bytes of `pattern` `count` times; `pattern` is read before the call "
       "returns.",
       wide_fill, "fill_wide_async"},
  };
}

}  // namespace bringup::driver_check
