// Memory of the simulator that is opened: here by the same process, which the mapping does not see.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

constexpr size_t kBytes = 10'000;

bringup_ipc_handle handle_of(const Memory& memory) {
  bringup_ipc_handle handle{};
  CHECK_EQ(driver().ipc_export(0, memory.get(), &handle), BRINGUP_OK);
  return handle;
}

std::vector<uint8_t> content(const void* address) {
  std::vector<uint8_t> bytes(kBytes);
  CHECK_EQ(
      driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, bytes.data(), 0, address, kBytes, nullptr),
      BRINGUP_OK);
  driver().stream_synchronize(0, nullptr);
  return bytes;
}

void fill(void* address, uint8_t value) {
  CHECK_EQ(driver().fill_async(0, address, value, kBytes, nullptr), BRINGUP_OK);
  driver().stream_synchronize(0, nullptr);
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  driver().mem_info(0, &free, &total);
  return free;
}

}  // namespace

TEST(what_is_opened_is_the_exporters_memory_and_goes_back_whole) {
  const size_t before = free_bytes();
  {
    const Memory small(256);  // so that the other begins within a page
    const Memory memory(kBytes);
    fill(memory.get(), 1);
    const bringup_ipc_handle handle = handle_of(memory);
    void* opened = nullptr;
    REQUIRE(driver().ipc_open(0, &handle, &opened) == BRINGUP_OK);
    CHECK(opened != memory.get());
    CHECK(content(opened) == std::vector<uint8_t>(kBytes, 1));
    fill(opened, 2);
    CHECK(content(memory.get()) == std::vector<uint8_t>(kBytes, 2));
    CHECK_EQ(driver().mem_free(0, opened), BRINGUP_INVALID);
    bringup_ipc_handle again{};
    CHECK_EQ(driver().ipc_export(0, opened, &again), BRINGUP_INVALID);
    bringup_pointer_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(driver().pointer_info(static_cast<char*>(opened) + 5, &info), BRINGUP_OK);
    CHECK(info.base == opened);
    CHECK_EQ(driver().ipc_close(0, opened), BRINGUP_OK);
    CHECK_EQ(driver().ipc_close(0, opened), BRINGUP_INVALID);
    CHECK(content(memory.get()) == std::vector<uint8_t>(kBytes, 2));
  }
  CHECK_EQ(free_bytes(), before);
}

TEST(what_was_mapped_is_this_devices_own_memory_again) {
  const Memory memory(kBytes);
  fill(memory.get(), 1);
  const bringup_ipc_handle handle = handle_of(memory);
  void* opened = nullptr;
  REQUIRE(driver().ipc_open(0, &handle, &opened) == BRINGUP_OK);
  CHECK_EQ(driver().ipc_close(0, opened), BRINGUP_OK);
  const Memory after(4 * kBytes);
  for (size_t at = 0; at + kBytes <= 4 * kBytes; at += kBytes) {
    fill(static_cast<char*>(after.get()) + at, 9);
  }
  CHECK(content(memory.get()) == std::vector<uint8_t>(kBytes, 1));
}

TEST(a_handle_of_a_process_that_ended_is_refused) {
  bringup_ipc_handle handle{};
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Memory memory(64);
  handle = handle_of(memory);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  constexpr size_t kProcess = 64;  // where the handle has it
  std::memcpy(handle.bytes + kProcess, &child, sizeof child);
  void* opened = nullptr;
  CHECK_EQ(driver().ipc_open(0, &handle, &opened), BRINGUP_INVALID);
  const pid_t parent = getppid();  // it has other files of these numbers, or none that may be read
  std::memcpy(handle.bytes + kProcess, &parent, sizeof parent);
  CHECK_EQ(driver().ipc_open(0, &handle, &opened), BRINGUP_INVALID);
}
