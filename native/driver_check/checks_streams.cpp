// Streams: handles, waiting, asking, destroying, priorities.
#include <algorithm>
#include <deque>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

size_t large(Context& context) { return context.at_most(size_t{4} << 20); }

void handles(Context& context) {
  const int32_t devices = context.device_count();
  std::deque<Stream> streams;  // the kit's table sees NULL, and a handle that is given out twice
  for (int i = 0; i < 40; ++i) streams.emplace_back(context, i % devices);
  std::deque<Event> events;
  for (int i = 0; i < 40; ++i) events.emplace_back(context, i % devices);
}

void synchronize(Context& context) {
  const size_t bytes = large(context);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 1);
  Bytes result(bytes, 0);
  const Stream stream(context);
  for (int round = 0; round < 3; ++round) {
    std::fill(result.begin(), result.end(), uint8_t{0});
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), bytes, stream);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, stream);
    context.synchronize(0, stream);
    expect_bytes(result, content,
                 "stream_synchronize returned before the stream's copies were done");
  }
}

void synchronize_device(Context& context) {
  const size_t bytes = large(context) / 4;
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 2);
  memory.upload(content);
  std::vector<Bytes> results(4, Bytes(bytes, 0));
  std::deque<Stream> streams;
  for (size_t i = 0; i < results.size(); ++i) {
    streams.emplace_back(context);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, results[i].data(), memory.data(), bytes,
                 streams.back());
  }
  context.must<&D::device_synchronize>(0);
  for (const Bytes& result : results) {
    expect_bytes(result, content,
                 "device_synchronize returned before the copy of a stream was done");
  }
}

void query(Context& context) {
  const Stream stream(context);
  context.synchronize(0, stream);
  context.must_give<&D::stream_query>(BRINGUP_OK, 0, stream);
  context.must_give<&D::stream_query>(BRINGUP_OK, 0, nullptr);
}

void query_pending(Context& context) {
  const Stream stream(context);
  Gate gate(context, 0, stream);
  context.must_be_pending<&D::stream_query>(gate, "of the stream", 0, stream);
  gate.open();
  context.synchronize(0, stream);
  context.must_give<&D::stream_query>(BRINGUP_OK, 0, stream);
}

void destroy(Context& context) {
  const Bytes content = pattern(4096, 6);
  const Memory memory(context, 0, 4096);
  for (int i = 0; i < 50; ++i) {
    const Stream stream(context);
    memory.upload(content, stream);
    bringup_stream handle = nullptr;
    context.must<&D::stream_create>(0, 0, &handle);
    memory.upload(content, handle);
    context.must<&D::stream_destroy>(handle);
  }
  memory.expect(content, "memory after stream_destroy");
}

void priorities(Context& context) {
  const bringup_device_props props = context.props(0);
  if (props.least_priority == 0 && props.greatest_priority == 0) {
    throw Skipped{"the device has no priorities"};
  }
  const Memory memory(context, 0, 4096);
  const Bytes content = pattern(4096, 6);
  for (const int32_t priority : {props.greatest_priority, 0, props.least_priority}) {
    const Stream stream(context, 0, priority);
    memory.upload(content, stream);
    memory.expect(content, concat("a copy in a stream of priority ", priority), stream);
  }
}

}  // namespace

std::vector<Check> stream_checks() {
  return {
      {"streams.handles", "stream_create",
       "A handle is never NULL and differs from all live ones of its kind.", handles},
      {"streams.synchronize", "stream_synchronize",
       "Returns when the work given to the stream is done.", synchronize},
      {"streams.synchronize_device", "device_synchronize", "Waits for all work of the device.",
       synchronize_device, "device_synchronize"},
      {"streams.query", "stream_query", "A stream without pending work is BRINGUP_OK.", query,
       "stream_query"},
      {"streams.query_pending", "stream_query",
       "stream_query returns BRINGUP_NOT_READY while work is pending.", query_pending,
       "stream_query host_func"},
      {"streams.destroy", "stream_destroy", "A stream without pending work can be destroyed.",
       destroy, "stream_destroy"},
      {"streams.priorities", "stream_create",
       "0 is normal, lower is more urgent, within the range of the properties.", priorities},
  };
}

}  // namespace bringup::driver_check
