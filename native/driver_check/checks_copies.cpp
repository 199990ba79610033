// Copies and fills: every byte at its place, and nothing beside it.
#include <algorithm>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kMargin = 256;  // device memory around a copy that must stay as it is
const size_t kSizes[] = {1, 63, 64, 4096, kMiB + 1};
const size_t kOffsets[] = {0, 1, 3, 64, 100};

// Sizes that the device has memory for.
std::vector<size_t> sizes(Context& context) {
  const uint64_t most = context.props(0).total_memory / 8;
  std::vector<size_t> found;
  for (const size_t bytes : kSizes) {
    if (bytes + 2 * kMargin <= most) found.push_back(bytes);
  }
  return found;
}

std::string copied(size_t bytes, size_t offset) {
  return " of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset);
}

void put(Bytes& into, size_t offset, const Bytes& content) {
  std::copy(content.begin(), content.end(), into.begin() + static_cast<ptrdiff_t>(offset));
}

void both_ways(Context& context) {
  for (const size_t bytes : sizes(context)) {
    const Memory memory(context, 0, bytes + 2 * kMargin);
    const Stream stream(context);
    for (const size_t offset : kOffsets) {
      Bytes expected = pattern(memory.bytes(), bytes);
      memory.upload(expected, stream);
      const Bytes content = pattern(bytes, offset + 1);
      context.upload(0, memory.data() + offset, content, stream);
      put(expected, offset, content);
      memory.expect(expected, "copy_async to the device" + copied(bytes, offset), stream);
      // From an odd place to an odd place of the host, between bytes that must stay.
      Bytes host(bytes + 2 * kMargin, 0x77);
      Bytes wanted = host;
      put(wanted, offset, content);
      context.copy(BRINGUP_DEVICE_TO_HOST, 0, host.data() + offset, memory.data() + offset, bytes,
                   stream);
      context.synchronize(0, stream);
      expect_bytes(host, wanted, "copy_async to the host" + copied(bytes, offset));
    }
  }
}

void on_the_device(Context& context) {
  for (const size_t bytes : sizes(context)) {
    const Memory from(context, 0, bytes + 2 * kMargin);
    const Memory to(context, 0, bytes + 2 * kMargin);
    const Stream stream(context);
    for (const size_t offset : kOffsets) {
      const size_t other = (offset * 5 + 2) % kMargin;
      const Bytes source = pattern(from.bytes(), bytes + offset);
      Bytes expected = pattern(to.bytes(), bytes + 7);
      from.upload(source, stream);
      to.upload(expected, stream);
      context.copy(BRINGUP_DEVICE_TO_DEVICE, 0, to.data() + other, from.data() + offset, bytes,
                   stream);
      std::copy_n(source.begin() + static_cast<ptrdiff_t>(offset), bytes,
                  expected.begin() + static_cast<ptrdiff_t>(other));
      to.expect(expected, "copy_async on the device" + copied(bytes, other), stream);
      from.expect(source, "the source of copy_async on the device", stream);
    }
  }
}

void default_stream(Context& context) {
  const Memory memory(context, 0, 4096);
  const Bytes content = pattern(4096, 3);
  memory.upload(content, nullptr);
  memory.expect(content, "copy_async in the default stream");
}

void in_order(Context& context) {
  const size_t bytes = context.at_most(kMiB);
  const Memory memory(context, 0, bytes);
  std::vector<Bytes> contents;
  for (uint64_t seed = 0; seed < 6; ++seed) contents.push_back(pattern(bytes - seed * 100, seed));
  Bytes expected = contents[0];
  Bytes result(bytes);
  const Stream stream(context);
  for (const Bytes& content : contents) {
    context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), content.size(), stream);
    put(expected, 0, content);
  }
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, stream);
  context.synchronize(0, stream);
  expect_bytes(result, expected, "copy_async six times to one place in one stream");
}

void between_devices(Context& context) {
  if (context.device_count() < 2) throw Skipped{"there is one device"};
  const size_t bytes = context.at_most(kMiB + 1);
  const Memory here(context, 0, bytes);
  const Memory there(context, 1, bytes);
  const Bytes content = pattern(bytes, 9);
  here.upload(content);
  const Stream stream(context, 0);
  context.must<&D::copy_async>(BRINGUP_DEVICE_TO_DEVICE, 1, there.data(), 0, here.data(), bytes,
                               stream);
  context.synchronize(0, stream);
  there.expect(content, "copy_async between two devices");
}

void fill(Context& context) {
  for (const size_t bytes : sizes(context)) {
    const Memory memory(context, 0, bytes + 2 * kMargin);
    const Stream stream(context);
    for (const size_t offset : kOffsets) {
      Bytes expected = pattern(memory.bytes(), offset);
      memory.upload(expected, stream);
      const auto value = static_cast<uint8_t>(0xa5 ^ offset);
      context.must<&D::fill_async>(0, memory.data() + offset, value, bytes, stream);
      std::fill_n(expected.begin() + static_cast<ptrdiff_t>(offset), bytes, value);
      memory.expect(expected, "fill_async" + copied(bytes, offset), stream);
    }
  }
}

void fill_in_order(Context& context) {
  const size_t bytes = context.at_most(kMiB);
  const Memory memory(context, 0, bytes);
  const Bytes content = pattern(bytes / 2, 4);
  Bytes result(bytes);
  const Stream stream(context);
  context.must<&D::fill_async>(0, memory.data(), uint8_t{1}, bytes, stream);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), content.data(), content.size(), stream);
  context.must<&D::fill_async>(0, memory.data(), uint8_t{2}, bytes / 4, stream);
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), memory.data(), bytes, stream);
  context.synchronize(0, stream);
  Bytes expected(bytes, 1);
  put(expected, 0, content);
  std::fill_n(expected.begin(), bytes / 4, uint8_t{2});
  expect_bytes(result, expected, "fill_async between copies in one stream");
}

}  // namespace

std::vector<Check> copy_checks() {
  return {
      {"copies.both_ways", "copy_async",
       "A copy moves its bytes, all of them and no others, between any addresses.", both_ways},
      {"copies.on_the_device", "copy_async",
       "A copy on the device moves its bytes, and its source stays as it is.", on_the_device},
      {"copies.default_stream", "copy_async", "A NULL stream is the device's default stream.",
       default_stream},
      {"copies.in_order", "copy_async", "Work given to one stream runs in the order given.",
       in_order},
      {"copies.between_devices", "copy_async",
       "A copy between two devices runs in a stream of the source.", between_devices},
      {"fills.bytes", "fill_async", "Every byte becomes `value`, and no other.", fill,
       "fill_async"},
      {"fills.in_order", "fill_async", "Work given to one stream runs in the order given.",
       fill_in_order, "fill_async"},
  };
}

}  // namespace bringup::driver_check
