// A trace of a driver's calls: what its lines say, and that it survives what a process can do.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "driver/trace_copies.h"
#include "driver/trace_file.h"
#include "driver/traced.h"
#include "engine/util/sha256.h"
#include "sim_driver.h"

namespace {

namespace driver = bringup::driver;

struct Folder {
  char path[64] = "/tmp/bringup-trace-XXXXXX";
  Folder() {
    if (mkdtemp(path) == nullptr) throw std::runtime_error("mkdtemp");
  }
  ~Folder() {
    for (const char* name : {"/t", "/t.payload"}) unlink((std::string(path) + name).c_str());
    unlink((file() + "." + std::to_string(getpid())).c_str());
    rmdir(path);
  }
  std::string file() const { return std::string(path) + "/t"; }
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str();
}

std::vector<std::string> lines(const std::string& path) {
  std::vector<std::string> found;
  std::istringstream all(content(path));
  for (std::string line; std::getline(all, line);) found.push_back(line);
  return found;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string digest(const void* bytes, size_t size) {
  bringup::engine::Sha256 hash;
  hash.update({static_cast<const std::byte*>(bytes), size});
  return hash.finish();
}

bringup_driver traced_sim(const Folder& folder, bool payload = false, uint64_t limit = 0) {
  return driver::traced(sim_test::driver(), SIM_DRIVER, {folder.file(), payload, limit});
}

// The only line that has all of these.
std::string line_with(const Folder& folder, const std::vector<std::string>& parts) {
  std::string found;
  int count = 0;
  for (const std::string& line : lines(folder.file())) {
    bool all = true;
    for (const std::string& part : parts) all = all && contains(line, part);
    if (all) found = line, ++count;
  }
  if (count != 1) found = std::to_string(count) + " lines";
  return found;
}

TEST(a_call_is_a_line_before_it_and_a_line_after_it) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  void* address = nullptr;
  CHECK_EQ(table.mem_alloc(0, 4096, &address), BRINGUP_OK);
  CHECK_EQ(table.mem_free(0, address), BRINGUP_OK);
  const auto all = lines(folder.file());
  REQUIRE(all.size() == 5);
  CHECK(contains(all[0], "{\"bringup_driver_trace\":1,"));
  CHECK(contains(all[0], std::string("\"library\":\"") + SIM_DRIVER + "\""));
  CHECK(contains(all[0], "\"mem_alloc\""));
  CHECK(contains(all[1], "{\"call\":1,"));
  CHECK(
      contains(all[1], "\"function\":\"mem_alloc\",\"arguments\":{\"device\":0,\"bytes\":4096}}"));
  char expected[96];
  std::snprintf(expected, sizeof expected, "\"outputs\":{\"address\":\"%p\"}}", address);
  CHECK(contains(all[2], "{\"call\":1,\"status\":0,\"took\":"));
  CHECK(contains(all[2], expected));
  CHECK(contains(all[3], "\"function\":\"mem_free\""));
  CHECK(contains(all[4], "{\"call\":2,\"status\":0,"));
}

TEST(a_failed_call_has_its_status_and_no_outputs) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  void* address = nullptr;
  CHECK_EQ(table.mem_alloc(99, 64, &address), BRINGUP_INVALID);
  const std::string words = table.last_error();
  CHECK(contains(line_with(folder, {"\"call\":1,\"status\":1,"}), "\"status\":1,\"took\":"));
  CHECK(!contains(line_with(folder, {"\"call\":1,\"status\":1,"}), "outputs"));
  CHECK(contains(line_with(folder, {"last_error"}), words));
}

TEST(copies_have_digests_to_the_device_before_the_call_to_the_host_once_they_are_done) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  sim_test::Memory memory(8);
  const char there[8] = "payload", back[8] = {};
  CHECK_EQ(table.copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, there, 8, nullptr), 0);
  CHECK_EQ(table.copy_async(BRINGUP_DEVICE_TO_HOST, 0, const_cast<char*>(back), 0, memory.get(), 8,
                            nullptr),
           0);
  CHECK(!contains(content(folder.file()), "\"done\""));
  CHECK_EQ(table.stream_synchronize(0, nullptr), BRINGUP_OK);
  const std::string expected = "\"sha256\":\"" + digest(there, 8) + "\"";
  CHECK(contains(line_with(folder, {"\"call\":1,\"at\""}), expected));
  CHECK(contains(line_with(folder, {"\"call\":3,\"status\""}),
                 "\"done\":[{\"copy\":1},{\"copy\":2," + expected + "}]"));
}

TEST(a_copy_that_is_waited_for_through_an_event_and_another_stream_is_done) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  sim_test::Memory memory(8);
  const sim_test::Stream first, second;
  const sim_test::Event event;
  char back[8];
  table.copy_async(BRINGUP_DEVICE_TO_HOST, 0, back, 0, memory.get(), 8, first.get());
  table.event_record(event.get(), 0, first.get());
  table.event_wait(event.get(), 0, second.get());
  CHECK_EQ(table.stream_synchronize(0, second.get()), BRINGUP_OK);
  CHECK(contains(line_with(folder, {"\"call\":4,\"status\""}), "\"done\":[{\"copy\":1,"));
}

TEST(a_copy_that_is_captured_is_not_done_with_its_stream) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  sim_test::Memory memory(8);
  const sim_test::Stream stream;
  char back[8];
  bringup_graph graph = nullptr;
  table.graph_create(0, &graph);
  CHECK_EQ(table.stream_capture_begin(0, stream.get()), BRINGUP_OK);
  table.copy_async(BRINGUP_DEVICE_TO_HOST, 0, back, 0, memory.get(), 8, stream.get());
  CHECK_EQ(table.stream_capture_end(0, stream.get(), graph), BRINGUP_OK);
  CHECK_EQ(table.stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK(!contains(content(folder.file()), "\"done\""));
  table.copy_async(BRINGUP_DEVICE_TO_HOST, 0, back, 0, memory.get(), 8, stream.get());
  CHECK_EQ(table.stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK(contains(content(folder.file()), "\"done\":[{\"copy\":6,"));
  table.graph_destroy(graph);
}

TEST(a_copy_given_after_the_event_is_not_done_with_it) {
  driver::PendingCopies copies;
  const driver::PendingCopies::Stream stream{0, nullptr};
  const auto event = reinterpret_cast<bringup_event>(1);
  std::byte host[2];
  copies.add({1, BRINGUP_DEVICE_TO_HOST, &host[0], 1, 1, 1}, stream);
  copies.record(event, stream);
  copies.add({2, BRINGUP_DEVICE_TO_HOST, &host[1], 1, 1, 1}, stream);
  std::vector<uint64_t> done;
  const auto take = [&](const driver::TracedCopy& copy) { done.push_back(copy.call); };
  copies.take(copies.after(event), take);
  CHECK(done == std::vector<uint64_t>{1});
  CHECK(!copies.is_being_written(&host[0], 1));
  CHECK(copies.is_being_written(&host[1], 1));
  copies.take(copies.after_device(1), take);
  CHECK_EQ(done.size(), 1);
  copies.take(copies.after_device(0), take);
  CHECK((done == std::vector<uint64_t>{1, 2}));
}

TEST(a_copy_into_memory_that_a_later_one_overwrites_has_no_digest) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  sim_test::Memory memory(8);
  char back[8];
  for (int i = 0; i < 2; ++i) {
    table.copy_async(BRINGUP_DEVICE_TO_HOST, 0, back, 0, memory.get(), 8, nullptr);
  }
  table.stream_synchronize(0, nullptr);
  CHECK(contains(line_with(folder, {"\"call\":3,\"status\""}),
                 "\"done\":[{\"copy\":1,\"overwritten\":true},{\"copy\":2,\"sha256\""));
}

TEST(payload_is_kept_once_for_equal_bytes_and_without_a_host_view) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder, true);
  CHECK(table.host_view == nullptr);
  CHECK(sim_test::driver().host_view != nullptr);
  sim_test::Memory memory(8);
  for (const char* bytes : {"abcdefg", "ABCDEFG", "abcdefg"}) {
    table.copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, bytes, 8, nullptr);
  }
  table.stream_synchronize(0, nullptr);
  CHECK(content(folder.file() + ".payload") == std::string("abcdefg\0ABCDEFG\0", 16));
  CHECK(contains(line_with(folder, {"\"call\":2,\"at\""}), "\"payload\":8"));
  CHECK(contains(line_with(folder, {"\"call\":3,\"at\""}), "\"payload\":0"));
}

TEST(a_launch_is_written_with_every_argument) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder);
  sim_test::Memory memory(24);
  sim_test::Launch one(&sim_test::add_number, memory.get(), 3, 5, 2);
  CHECK_EQ(table.launch(0, nullptr, &one.launch), BRINGUP_OK);
  CHECK_EQ(table.device_synchronize(0), BRINGUP_OK);
  const std::string line = line_with(folder, {"\"function\":\"launch\""});
  CHECK(contains(line, "\"name\":\"test::kernel\""));
  CHECK(contains(line, "\"grid\":2,\"work_items\":0,\"args\":[{\"tensor\":{\"data\":"));
  CHECK(contains(line, "\"dtype\":[0,64,1],\"shape\":[3],\"strides\":[1],\"byte_offset\":0}}"));
  CHECK(contains(line, "{\"int\":5}]"));
}

TEST(over_its_limit_a_trace_ends_and_calls_go_on) {
  const Folder folder;
  const uint64_t limit = 8000;
  const bringup_driver table = traced_sim(folder, false, limit);
  for (int i = 0; i < 200; ++i) CHECK_EQ(table.stream_query(0, nullptr), BRINGUP_OK);
  const auto all = lines(folder.file());
  CHECK(all.back() == "{\"end\":\"limit\"}");
  CHECK(content(folder.file()).size() <= limit + 20);
  CHECK(all.size() > 10);
}

TEST(another_trace_of_the_same_name_gets_a_name_of_its_own) {
  const Folder folder;
  const driver::TraceFile first({folder.file(), false, 0});
  const driver::TraceFile second({folder.file(), false, 0});
  CHECK(first.path() == folder.file());
  CHECK(second.path() == folder.file() + "." + std::to_string(getpid()));
}

TEST(the_number_of_the_process_can_be_in_the_name) {
  const Folder folder;
  const driver::TraceFile file({folder.file() + ".%p", false, 0});
  CHECK(file.path() == folder.file() + "." + std::to_string(getpid()));
}

TEST(a_file_that_cannot_be_made_is_an_error_with_its_path) {
  CHECK_THROWS(driver::TraceFile({"/nowhere/t", false, 0}), std::runtime_error,
               "the trace /nowhere/t cannot be written: No such file");
}

TEST(what_was_written_before_a_kill_is_there) {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    driver::TraceFile file({folder.file(), false, 0});
    file.write("{\"first\":1}\n");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(content(folder.file()) == "{\"first\":1}\n");
}

TEST(lines_of_several_threads_do_not_mix) {
  const Folder folder;
  const bringup_driver table = traced_sim(folder, true);
  sim_test::Memory memory(4096);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&table, &memory, i] {
      const sim_test::Stream stream;
      const sim_test::Event event;
      std::vector<char> host(64, static_cast<char>(i));
      for (int round = 0; round < 50; ++round) {
        table.copy_async(BRINGUP_HOST_TO_DEVICE, 0, static_cast<char*>(memory.get()) + 64 * i, 0,
                         host.data(), host.size(), stream.get());
        table.event_record(event.get(), 0, stream.get());
        table.event_synchronize(event.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = lines(folder.file());
  CHECK_EQ(all.size(), 1 + 2 * 4 * 50 * 3);
  for (const std::string& line : all) CHECK(line.front() == '{' && line.back() == '}');
  CHECK_EQ(content(folder.file() + ".payload").size(), 4 * 64);
}

TEST(a_forked_child_writes_nothing) {
  const Folder folder;
  driver::TraceFile file({folder.file(), true, 0});
  file.write("{\"parent\":1}\n");
  const pid_t child = fork();
  if (child == 0) {
    file.write("{\"child\":1}\n");
    const std::byte bytes[2]{};
    file.keep("digest", bytes);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  CHECK(content(folder.file()) == "{\"parent\":1}\n");
  CHECK(content(folder.file() + ".payload").empty());
}

}  // namespace
