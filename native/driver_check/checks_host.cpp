// What host and device share: pinned memory, views of device memory, host functions.
#include <algorithm>
#include <atomic>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

void pinned_memory(Context& context) {
  const uint64_t total = context.props(0).total_memory;
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, (size_t{1} << 20) + 1}) {
    if (bytes > total / 8) continue;
    void* address = nullptr;
    context.must<&D::host_alloc>(bytes, &address);
    auto* pinned = static_cast<uint8_t*>(address);
    const Bytes content = pattern(bytes, 3);
    set_activity("the memory that host_alloc gave");
    std::copy(content.begin(), content.end(), pinned);
    set_activity(nullptr);
    const Memory memory(context, 0, bytes);
    const Stream stream(context);
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), pinned, bytes, stream);
    context.synchronize(0, stream);
    std::fill_n(pinned, bytes, uint8_t{0});
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, pinned, memory.data(), bytes, stream);
    context.synchronize(0, stream);
    expect_bytes(pinned, content.data(), bytes, "copies from and to the memory of host_alloc");
    context.must<&D::host_free>(address);
  }
}

uint8_t* view_of(Context& context, const uint8_t* address) {
  void* view = nullptr;
  context.must<&D::host_view>(0, static_cast<const void*>(address), &view);
  return static_cast<uint8_t*>(view);
}

void view(Context& context) {
  if (context.props(0).host_visible_memory == 0) {
    throw Skipped{"not announced: host_visible_memory is 0"};
  }
  constexpr size_t kBytes = 8192;
  const Memory other(context, 0, kBytes);
  const Memory memory(context, 0, kBytes);
  const Bytes before = pattern(kBytes, 1);
  const Bytes after = pattern(kBytes, 2);
  memory.upload(before);
  uint8_t* seen = view_of(context, memory.data());
  set_activity("the memory that host_view gave");
  expect_bytes(seen, before.data(), kBytes,
               "host_view does not show what was copied to the device");
  std::copy(after.begin(), after.end(), seen);
  set_activity(nullptr);
  memory.expect(after, "the device does not see what was written through host_view");
  for (const size_t offset : {1, 64, 4095}) {
    const uint8_t* inner = view_of(context, memory.data() + offset);
    set_activity("the memory that host_view gave");
    expect_bytes(inner, after.data() + offset, kBytes - offset,
                 concat("host_view of an address ", offset, " bytes within an allocation"));
    set_activity(nullptr);
  }
  memory.upload(before);
  set_activity("the memory that host_view gave");
  expect_bytes(seen, before.data(), kBytes, "host_view does not show what was copied later");
  set_activity(nullptr);
}

struct Sequence {
  std::atomic<int> next{0};
  std::atomic<int> wrong{0};
  struct Turn {
    Sequence* all = nullptr;
    int number = 0;
    const Bytes* result = nullptr;  // of a copy before it
    uint8_t expected = 0;
  };
  static void take(void* user) {
    const Turn& turn = *static_cast<Turn*>(user);
    const bool is_next = turn.all->next.fetch_add(1) == turn.number;
    const bool is_there =
        turn.result->front() == turn.expected && turn.result->back() == turn.expected;
    if (!is_next || !is_there) ++turn.all->wrong;
  }
};

void functions_in_order(Context& context) {
  constexpr int kTurns = 40;
  const size_t bytes = context.at_most(256 << 10);
  const Memory memory(context, 0, bytes);
  Sequence sequence;
  std::vector<Bytes> sources;
  std::vector<Bytes> results(kTurns, Bytes(bytes, 0));
  std::vector<Sequence::Turn> turns(kTurns);
  for (int i = 0; i < kTurns; ++i) sources.emplace_back(bytes, static_cast<uint8_t>(i + 1));
  const Stream stream(context);
  for (int i = 0; i < kTurns; ++i) {
    const auto at = static_cast<size_t>(i);
    turns[at] = {&sequence, i, &results[at], static_cast<uint8_t>(i + 1)};
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), sources[at].data(), bytes, stream);
    context.copy(BRINGUP_DEVICE_TO_HOST, 0, results[at].data(), memory.data(), bytes, stream);
    context.must<&D::host_func>(0, stream, &Sequence::take, static_cast<void*>(&turns[at]));
  }
  context.synchronize(0, stream);
  expect(sequence.next == kTurns,
         "stream_synchronize returned before every host_func of the stream had run",
         concat(kTurns, " functions"), sequence.next.load());
  expect(sequence.wrong == 0,
         concat("host_func ran ", sequence.wrong.load(), " of ", kTurns,
                " functions out of order, or before the copy in front of them was done"),
         "in stream order", concat(sequence.wrong.load(), " out of order"));
}

}  // namespace

std::vector<Check> host_checks() {
  return {
      {"host.pinned_memory", "host_alloc",
       "Memory of host_alloc is the host's to read and write, and copies take it.", pinned_memory,
       "host_alloc host_free"},
      {"host.view", "host_view",
       "Gives the host address of a device address, for reading and writing while no work that "
       "touches it is pending.",
       view, "host_view"},
      {"host.functions_in_order", "host_func", "Host functions run in stream order.",
       functions_in_order, "host_func"},
  };
}

}  // namespace bringup::driver_check
