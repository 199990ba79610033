// Events: when they are done, what waits for them, the time between two.
#include <algorithm>
#include <cmath>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr double kPatience = 4;  // seconds for an event whose work is done

size_t large(Context& context) { return context.at_most(size_t{4} << 20); }

void never_recorded(Context& context) {
  const Memory memory(context, 0, 64);
  const Bytes content = pattern(64, 1);
  const Stream stream(context);
  const Event event(context);
  context.must_give<&D::event_query>(BRINGUP_OK, event);
  context.must<&D::event_wait>(event, 0, stream);
  if (context.has<&D::event_synchronize>()) context.must<&D::event_synchronize>(event);
  memory.upload(content, stream);
  memory.expect(content, "a copy behind event_wait for an event that was never recorded", stream);
}

// What a copy brought must be there once an event behind it is done: looked at from its end.
void follow_a_copy(Context& context) {
  const size_t bytes = large(context);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 1);
  Bytes result(bytes);
  const Stream stream(context);
  const Event event(context);
  for (int round = 0; round < 3; ++round) {
    std::fill(result.begin(), result.end(), uint8_t{0});
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), bytes, stream);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, stream);
    context.must<&D::event_record>(event, 0, stream);
    context.wait_done(event, kPatience);
    const Bytes seen(result.rbegin(), result.rend());
    expect_bytes(Bytes(seen.rbegin(), seen.rend()), content,
                 "event_query returned BRINGUP_OK before the copy in front of event_record was "
                 "done");
  }
  context.synchronize(0, stream);
}

void follow(Context& context, const Stream& stream, const Event& event) {
  Gate gate(context, 0, stream);
  context.must<&D::event_record>(event, 0, stream);
  context.must_be_pending<&D::event_query>(gate, "in front of event_record", event);
  gate.open();
  context.wait_done(event, kPatience);
  context.synchronize(0, stream);
}

void follow_a_function(Context& context) {
  const Stream stream(context);
  const Event event(context);
  follow(context, stream, event);
}

void recorded_again(Context& context) {
  const Stream stream(context);
  const Event event(context);
  context.must<&D::event_record>(event, 0, stream);
  context.synchronize(0, stream);
  context.must_give<&D::event_query>(BRINGUP_OK, event);
  follow(context, stream, event);
}

// One stream writes, another reads behind event_wait.
void hold_a_copy(Context& context) {
  const size_t bytes = large(context);
  const Memory memory(context, 0, bytes);
  const Memory between(context, 0, bytes);
  Bytes result(bytes);
  const Stream writer(context);
  const Stream reader(context);
  for (uint64_t round = 0; round < 3; ++round) {
    const Bytes content = pattern(bytes, round + 40);
    const Event event(context);
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, between.data(), content.data(), bytes, writer);
    context.copy(BRINGUP_DEVICE_TO_DEVICE, 0, memory.data(), between.data(), bytes, writer);
    context.must<&D::event_record>(event, 0, writer);
    context.must<&D::event_wait>(event, 0, reader);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, reader);
    context.synchronize(0, reader);
    const Bytes seen = result;
    context.synchronize(0, writer);  // also where the rule does not hold: `content` goes
    expect_bytes(seen, content,
                 "event_wait did not hold the stream back: its copy read what another stream was "
                 "still writing");
  }
}

// For a stream that goes on although it must not.
void wait_idle(Context& context, bringup_stream stream, double seconds) {
  const double deadline = now_seconds() + seconds;
  while (now_seconds() < deadline) {
    if (context.has<&D::stream_query>() &&
        context.call<&D::stream_query>(0, stream) == BRINGUP_OK) {
      return;
    }
    pause_milliseconds(1);
  }
}

// A stream that waits for an event of one that is held reads what is written in front of the event.
// `again`: a stream that records the event once more, after the wait was given.
void expect_held(Context& context, const Stream* again, const char* rule) {
  const Memory memory(context, 0, 4096);
  const Bytes before = pattern(4096, 1);
  const Bytes after = pattern(4096, 2);
  memory.upload(before);
  Bytes result(4096, 0);
  const Stream writer(context);
  const Stream reader(context);
  const Event event(context);
  Gate gate(context, 0, writer);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), after.data(), 4096, writer);
  context.must<&D::event_record>(event, 0, writer);
  gate.require_holding();
  context.must<&D::event_wait>(event, 0, reader);
  if (again != nullptr) context.must<&D::event_record>(event, 0, *again);  // done at once
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), 4096, reader);
  if (again != nullptr) context.synchronize(0, *again);
  wait_idle(context, reader, 0.03);
  gate.open();
  context.synchronize(0, writer);
  context.synchronize(0, reader);
  expect_bytes(result, after, rule);
}

// The same as hold_a_copy, without luck: the first stream waits until it is allowed to go on.
void hold_a_stream(Context& context) {
  expect_held(context, nullptr,
              "event_wait did not hold the stream back: its copy ran before the event was done");
}

// The record that the wait was given for is not done, whatever the event stands for later.
void wait_for_a_former_record(Context& context) {
  const Stream other(context);
  expect_held(context, &other,
              "event_wait ended with a record of the event that was made after the wait");
}

// Nor does a wait last for a record that was made after it.
void wait_for_no_later_record(Context& context) {
  const Memory memory(context, 0, 4096);
  const Bytes content = pattern(4096, 1);
  memory.upload(content);
  Bytes result(4096, 0);
  const Stream recorder(context);
  const Stream held(context);
  const Stream reader(context);
  const Event event(context);
  const Event copied(context);
  context.must<&D::event_record>(event, 0, recorder);
  context.must<&D::event_wait>(event, 0, reader);
  Gate gate(context, 0, held);
  context.must<&D::event_record>(event, 0, held);
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), 4096, reader);
  context.must<&D::event_record>(copied, 0, reader);
  gate.require_holding();
  context.wait_done(copied, 1);
  gate.require_holding();
  gate.open();
  context.synchronize(0, held);
  context.synchronize(0, reader);
  expect_bytes(result, content, "a copy behind event_wait");
}

void synchronize(Context& context) {
  const size_t bytes = large(context);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 8);
  Bytes result(bytes, 0);
  const Stream stream(context);
  const Event event(context);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), bytes, stream);
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, stream);
  context.must<&D::event_record>(event, 0, stream);
  context.must<&D::event_synchronize>(event);
  expect_bytes(result, content,
               "event_synchronize returned before the work in front of event_record was done");
  context.must_give<&D::event_query>(BRINGUP_OK, event);
  context.synchronize(0, stream);
}

void elapsed(Context& context) {
  const size_t bytes = large(context);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes, 8);
  const Stream stream(context);
  const Event start(context, 0, 1);
  const Event end(context, 0, 1);
  const double begun = now_seconds();
  context.must<&D::event_record>(start, 0, stream);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), bytes, stream);
  context.must<&D::event_record>(end, 0, stream);
  context.synchronize(0, stream);
  const double most = (now_seconds() - begun) * 1e3;
  context.wait_done(end, kPatience);
  double milliseconds = -1;
  context.must<&D::event_elapsed>(start, end, &milliseconds);
  char text[48];
  std::snprintf(text, sizeof text, "%g ms", milliseconds);
  char wanted[64];
  std::snprintf(wanted, sizeof wanted, "from 0 to the %g ms that the host saw", most);
  // The clocks of device and host may differ a little.
  expect(milliseconds >= 0 && milliseconds <= most * 1.1 + 1,
         concat("event_elapsed says ", text, " for work that the host waited ", most, " ms for"),
         wanted, text);
}

}  // namespace

std::vector<Check> event_checks() {
  return {
      {"events.never_recorded", "event_query", "An event that was never recorded counts as done.",
       never_recorded},
      {"events.follow_a_function", "event_query",
       "event_query returns BRINGUP_NOT_READY while work is pending.", follow_a_function,
       "host_func"},
      {"events.follow_a_copy", "event_query",
       "An event is done when the work before event_record is, and not before.", follow_a_copy},
      {"events.recorded_again", "event_record",
       "An event that is recorded again stands for its last record.", recorded_again, "host_func"},
      {"events.hold_a_stream", "event_wait",
       "The stream waits: what it is given behind event_wait runs when the event is done.",
       hold_a_stream, "host_func"},
      {"events.hold_a_copy", "event_wait",
       "The stream waits: what it is given behind event_wait runs when the event is done.",
       hold_a_copy},
      {"events.wait_keeps_its_record", "event_wait",
       "The stream waits for the record that was the last when event_wait was called: one that is "
       "made later does not end the wait.",
       wait_for_a_former_record, "host_func"},
      {"events.wait_ignores_later_records", "event_wait",
       "The stream waits for the record that was the last when event_wait was called, and for none "
       "that is made later.",
       wait_for_no_later_record, "host_func"},
      {"events.synchronize", "event_synchronize", "Returns when the event is done.", synchronize,
       "event_synchronize"},
      {"events.elapsed", "event_elapsed",
       "The milliseconds between two events that have timing and are done.", elapsed,
       "event_elapsed"},
  };
}

}  // namespace bringup::driver_check
