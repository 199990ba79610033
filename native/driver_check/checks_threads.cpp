// Several threads: streams of their own, one stream for all, memory.
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kThreads = 8;
constexpr size_t kBytes = 16 << 10;

size_t thread_bytes(Context& context) {
  return std::min<size_t>(kBytes, context.props(0).total_memory / 64);
}

// Runs `body(number)` in each thread; what one of them finds fails the check.
void in_threads(const std::function<void(size_t)>& body) {
  std::mutex mutex;
  std::optional<Failure> first;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const Failure& failure) {
        const std::lock_guard lock(mutex);
        if (!first) first = failure;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) throw Failure(*first);
}

void round_trip(const Memory& memory, bringup_stream stream, uint64_t seed) {
  const Bytes content = pattern(memory.bytes(), seed);
  memory.upload(content, stream);
  memory.expect(content, "copy_async while other threads use the driver", stream);
}

void own_streams(Context& context) {
  const size_t bytes = thread_bytes(context);
  in_threads([&](size_t number) {
    const Memory memory(context, 0, bytes);
    const Stream stream(context);
    for (uint64_t round = 0; round < 20; ++round) round_trip(memory, stream, number * 100 + round);
  });
}

void one_stream(Context& context) {
  const size_t bytes = thread_bytes(context);
  const Stream stream(context);
  in_threads([&](size_t number) {
    const Memory memory(context, 0, bytes);
    for (uint64_t round = 0; round < 20; ++round) round_trip(memory, stream, number * 100 + round);
  });
}

void memory(Context& context) {
  const size_t bytes = thread_bytes(context);
  in_threads([&](size_t number) {
    for (size_t round = 0; round < 60; ++round) {
      const Memory first(context, 0, 1 + (bytes / 2 + number * 64 + round) % bytes);
      const Memory second(context, 0, 64);
    }
  });
}

void streams_and_events(Context& context) {
  in_threads([&](size_t) {
    for (int round = 0; round < 20; ++round) {
      const Stream stream(context);
      const Event event(context);
      context.must<&D::event_record>(event, 0, stream);
      context.wait_done(event, 4);
    }
  });
}

}  // namespace

std::vector<Check> thread_checks() {
  return {
      {"threads.own_streams", "copy_async", "Every function may be called from any thread.",
       own_streams},
      {"threads.one_stream", "copy_async", "Every function may be called from any thread.",
       one_stream},
      {"threads.memory", "mem_alloc",
       "Every function may be called from any thread; an address overlaps no live one.", memory},
      {"threads.streams_and_events", "event_record",
       "Every function may be called from any thread.", streams_and_events},
  };
}

}  // namespace bringup::driver_check
