// The simulated NPU's fills with wide patterns and copies of rows, and the stream of a copy between
// devices.
#include <array>
#include <cstring>

#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

std::vector<int64_t> zeros(Memory& memory, size_t count) {
  driver().fill_async(0, memory.get(), 0, count * sizeof(int64_t), nullptr);
  return std::vector<int64_t>(count);
}

TEST(a_pattern_of_every_size_is_repeated_exactly) {
  std::array<uint8_t, 16> pattern;
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<uint8_t>(0xf0 + i);
  for (const uint32_t size : {1u, 2u, 4u, 8u, 16u}) {
    for (const size_t count : {1u, 2u, 3u, 7u, 64u}) {
      const Memory memory(2048);
      driver().fill_async(0, memory.get(), 0x11, 2048, nullptr);
      auto* dst = static_cast<uint8_t*>(memory.get()) + size;
      REQUIRE(driver().fill_wide_async(0, dst, pattern.data(), size, count, nullptr) == BRINGUP_OK);
      std::vector<uint8_t> host(2048);
      driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, host.data(), 0, memory.get(), host.size(),
                          nullptr);
      REQUIRE(driver().stream_synchronize(0, nullptr) == BRINGUP_OK);
      bool right = true;
      for (size_t i = 0; i < host.size(); ++i) {
        const bool inside = i >= size && i < size + size * count;
        right &= host[i] == (inside ? pattern[i % size] : 0x11);
      }
      CHECK(right);
    }
  }
}

TEST(the_pattern_is_read_before_the_call_returns) {
  Memory memory(64);
  const Stream stream;
  Gate gate;
  driver().host_func(0, stream.get(), &Gate::wait, &gate);
  int64_t value = 7;
  driver().fill_wide_async(0, memory.get(), &value, 8, 8, stream.get());
  value = 9;
  gate.release();
  CHECK(read(memory, 8, stream.get()) == std::vector<int64_t>(8, 7));
}

TEST(a_wrong_fill_is_refused) {
  const Memory memory(64);
  auto* dst = static_cast<std::byte*>(memory.get());
  const int64_t value = 1;
  CHECK_EQ(driver().fill_wide_async(0, dst, &value, 3, 1, nullptr), BRINGUP_INVALID);
  CHECK_EQ(driver().fill_wide_async(0, dst, &value, 0, 1, nullptr), BRINGUP_INVALID);
  CHECK_EQ(driver().fill_wide_async(0, dst, &value, 32, 1, nullptr), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "a fill with a pattern of another size than 1, 2, 4, 8 or 16 bytes");
  CHECK_EQ(driver().fill_wide_async(0, dst + 4, &value, 8, 1, nullptr), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "a fill of memory that is not aligned to the pattern");
  CHECK_EQ(driver().fill_wide_async(0, dst, &value, 8, 1 << 20, nullptr), BRINGUP_INVALID);
  CHECK_EQ(last_error(),
           "the target of a fill of 8388608 bytes is not within one allocation of device memory");
}

TEST(rows_are_copied_and_what_lies_between_them_stays) {
  Memory memory(12 * sizeof(int64_t));
  zeros(memory, 12);
  const std::vector<int64_t> host = {1, 2, 3, 4, 5, 6, 7, 8};
  constexpr size_t kItem = sizeof(int64_t);
  REQUIRE(driver().copy_2d_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 4 * kItem, 0, host.data(),
                                 3 * kItem, 2 * kItem, 2, nullptr) == BRINGUP_OK);
  CHECK(read(memory, 12) == (std::vector<int64_t>{1, 2, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0}));
  std::vector<int64_t> back(4, -1);
  REQUIRE(driver().copy_2d_async(BRINGUP_DEVICE_TO_HOST, 0, back.data(), 2 * kItem, 0, memory.get(),
                                 4 * kItem, kItem, 2, nullptr) == BRINGUP_OK);
  REQUIRE(driver().stream_synchronize(0, nullptr) == BRINGUP_OK);
  CHECK(back == (std::vector<int64_t>{1, -1, 4, -1}));
}

TEST(rows_that_leave_an_allocation_are_refused) {
  const Memory memory(64);
  std::vector<std::byte> host(1 << 16);
  CHECK_EQ(driver().copy_2d_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 1 << 14, 0, host.data(),
                                  8, 8, 4, nullptr),
           BRINGUP_INVALID);
  CHECK_EQ(last_error(),
           "the target of a copy of 49160 bytes is not within one allocation of device memory");
  CHECK_EQ(driver().copy_2d_async(BRINGUP_DEVICE_TO_HOST, 0, host.data(), 8, 0, memory.get(),
                                  1 << 14, 8, 4, nullptr),
           BRINGUP_INVALID);
  CHECK_EQ(driver().copy_2d_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 4, 0, host.data(), 8, 8,
                                  2, nullptr),
           BRINGUP_INVALID);
  CHECK_EQ(last_error(), "a copy of rows that overlap each other");
  CHECK_EQ(driver().copy_2d_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 8, 0, host.data(), 8, 8,
                                  0, nullptr),
           BRINGUP_OK);
}

TEST(a_copy_between_devices_runs_in_the_default_stream_of_its_source) {
  const Memory source(64, 0);
  const Memory target(64, 1);
  Gate gate;
  driver().host_func(0, nullptr, &Gate::wait, &gate);
  driver().fill_async(0, source.get(), 3, 64, nullptr);
  driver().copy_async(BRINGUP_DEVICE_TO_DEVICE, 1, target.get(), 0, source.get(), 64, nullptr);
  CHECK_EQ(driver().stream_query(0, nullptr), BRINGUP_NOT_READY);
  CHECK_EQ(driver().stream_query(1, nullptr), BRINGUP_OK);
  gate.release();
  REQUIRE(driver().stream_synchronize(0, nullptr) == BRINGUP_OK);
  std::array<uint8_t, 64> host{};
  driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, host.data(), 1, target.get(), 64, nullptr);
  REQUIRE(driver().stream_synchronize(1, nullptr) == BRINGUP_OK);
  CHECK_EQ(static_cast<int>(host[63]), 3);
}

}  // namespace
