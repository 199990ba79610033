// Order under load: many streams, many events, against what the host computes in order.
#include <algorithm>
#include <deque>
#include <random>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kBuffers = 8;
constexpr size_t kStreams = 6;
constexpr size_t kSteps = 250;

size_t buffer_bytes(Context& context) {
  return std::min<size_t>(64 << 10, context.props(0).total_memory / 32);
}

// A token goes through a row of buffers, each step in another stream behind the former's event.
void pipeline(Context& context) {
  const size_t bytes = buffer_bytes(context);
  std::deque<Memory> buffers;
  for (size_t i = 0; i < kBuffers; ++i) buffers.emplace_back(context, 0, bytes);
  std::vector<Bytes> contents;
  for (uint64_t round = 0; round < 40; ++round) contents.push_back(pattern(bytes, round));
  std::vector<Bytes> results(contents.size(), Bytes(bytes, 0));
  std::deque<Stream> streams;
  for (size_t i = 0; i < kBuffers; ++i) streams.emplace_back(context);
  const Event turn(context);  // recorded again and again: a wait stands for the record before it
  for (size_t round = 0; round < contents.size(); ++round) {
    context.must<&D::event_wait>(turn, 0, streams[0]);
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, buffers[0].data(), contents[round].data(), bytes,
                 streams[0]);
    for (size_t i = 1; i < kBuffers; ++i) {
      context.must<&D::event_record>(turn, 0, streams[i - 1]);
      context.must<&D::event_wait>(turn, 0, streams[i]);
      context.copy(BRINGUP_DEVICE_TO_DEVICE, 0, buffers[i].data(), buffers[i - 1].data(), bytes,
                   streams[i]);
    }
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, results[round].data(), buffers.back().data(), bytes,
                 streams.back());
    context.must<&D::event_record>(turn, 0, streams.back());
  }
  for (const Stream& stream : streams) context.synchronize(0, stream);
  for (size_t round = 0; round < contents.size(); ++round) {
    expect_bytes(results[round], contents[round],
                 concat("what went through ", kBuffers,
                        " streams, each behind an event of the former, in round ", round));
  }
}

// Who wrote a buffer last, and who has read it since.
struct Use {
  int writer = -1;
  std::vector<int> readers;
};

// A random program over buffers and streams with the waits that it needs, and the same on the host.
class RandomProgram {
 public:
  RandomProgram(Context& context, uint64_t seed)
      : context_(context), random_(seed), bytes_(buffer_bytes(context)), host_(kBuffers) {
    for (size_t i = 0; i < kBuffers; ++i) {
      host_[i] = pattern(bytes_, i);
      buffers_.emplace_back(context, 0, bytes_);
      buffers_.back().upload(host_[i]);
      sources_.push_back(pattern(bytes_, seed * 100 + i));
    }
    for (size_t i = 0; i < kStreams; ++i) streams_.emplace_back(context);
  }

  void run() {
    for (size_t step = 0; step < kSteps; ++step) one_step();
    for (const Stream& stream : streams_) context_.synchronize(0, stream);
    for (size_t i = 0; i < kBuffers; ++i) {
      buffers_[i].expect(host_[i], concat("buffer ", i, " after ", kSteps, " copies and fills in ",
                                          kStreams, " streams, ordered by events"));
    }
  }

 private:
  size_t pick(size_t count) { return random_() % count; }

  void one_step() {
    const size_t stream = pick(kStreams);
    const size_t to = pick(kBuffers);
    const size_t kind = pick(context_.has<&D::fill_async>() ? 3 : 2);
    const size_t from = (to + 1 + pick(kBuffers - 1)) % kBuffers;
    const size_t begin = pick(bytes_ / 2);
    const size_t count = 1 + pick(bytes_ / 2);
    wait_for(uses_[to].writer, stream);
    for (const int reader : uses_[to].readers) wait_for(reader, stream);
    if (kind == 0) wait_for(uses_[from].writer, stream);
    give(kind, stream, to, from, begin, count);
    events_.emplace_back(context_);
    stream_of_.push_back(stream);
    const int number = static_cast<int>(events_.size()) - 1;
    context_.must<&D::event_record>(events_.back(), 0, streams_[stream]);
    uses_[to] = Use{number, {}};
    if (kind == 0) uses_[from].readers.push_back(number);
  }

  void give(size_t kind, size_t stream, size_t to, size_t from, size_t begin, size_t count) {
    uint8_t* target = buffers_[to].data() + begin;
    const auto place = host_[to].begin() + static_cast<ptrdiff_t>(begin);
    if (kind == 0) {
      context_.copy(BRINGUP_DEVICE_TO_DEVICE, 0, target, buffers_[from].data() + begin, count,
                    streams_[stream]);
      std::copy_n(host_[from].begin() + static_cast<ptrdiff_t>(begin), count, place);
    } else if (kind == 1) {
      context_.copy(BRINGUP_HOST_TO_DEVICE, 0, target, sources_[from].data(), count,
                    streams_[stream]);
      std::copy_n(sources_[from].begin(), count, place);
    } else {
      const auto value = static_cast<uint8_t>(random_());
      context_.must<&D::fill_async>(0, target, value, count, streams_[stream]);
      std::fill_n(place, count, value);
    }
  }

  void wait_for(int event, size_t stream) {
    if (event < 0 || stream_of_[static_cast<size_t>(event)] == stream) return;
    context_.must<&D::event_wait>(events_[static_cast<size_t>(event)], 0, streams_[stream]);
  }

  Context& context_;
  std::mt19937_64 random_;
  size_t bytes_;
  std::vector<Bytes> host_;  // what the buffers shall hold
  std::vector<Bytes> sources_;
  std::deque<Memory> buffers_;
  std::deque<Stream> streams_;
  std::deque<Event> events_;
  std::vector<size_t> stream_of_;  // of the events
  Use uses_[kBuffers];
};

void random_program(Context& context) {
  for (uint64_t seed = 1; seed <= 3; ++seed) RandomProgram(context, seed).run();
}

}  // namespace

std::vector<Check> ordering_checks() {
  return {
      {"ordering.pipeline", "event_wait",
       "The stream waits for the record of the event before the wait, also when the event is "
       "recorded again.",
       pipeline},
      {"ordering.random_program", "event_wait",
       "Work of one stream runs in the order given; behind event_wait it runs after the event.",
       random_program},
  };
}

}  // namespace bringup::driver_check
