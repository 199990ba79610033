// What a child did, shared with its parent: every call of the driver is written before it is made.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "bringup/driver.h"

namespace bringup::driver_check {

double now_seconds();  // of a clock that all processes share

enum class Outcome : uint32_t { kNotRun = 0, kRunning = 1, kPass = 2, kFail = 3, kSkipped = 4 };

// One call. `text` is complete before `state` says so.
struct CallLine {
  enum State : uint32_t { kEmpty = 0, kBegun = 1, kDone = 2, kWritten = 3 /* by call() */ };
  std::atomic<uint32_t> state;
  char function[32];
  char text[288];
};

// Of one check. Plain memory: it is shared between processes.
class Journal {
 public:
  void begin(const char* activity);
  // The first failure stands, whatever becomes of the process.
  void note_failure(const std::string& reason, const std::string& expected, const std::string& got);
  void end(Outcome outcome, const std::string& reason = "");
  bool has_failure() const { return failed_.load() != 0; }

  // A line for a call that begins, and its end; one not kept where no call has ended.
  CallLine* call(const char* function, const std::string& text);
  static void done(CallLine* line, const std::string& result);

  Outcome outcome() const { return static_cast<Outcome>(outcome_.load()); }
  double seconds() const { return seconds_; }
  std::string reason() const { return reason_; }
  std::string expected() const { return expected_; }
  std::string got() const { return got_; }
  // Calls in the order in which they began; says so where it leaves out the middle.
  std::vector<std::string> calls() const;
  // The function of a call that has not returned, or of the last one; "" when there was none.
  std::string last_function() const;
  bool inside_call() const;

  // Signal-safe.
  void crashed(int signal, const char* where);
  int crash_signal() const { return signal_.load(); }
  std::string crash_place() const { return place_; }

 private:
  static constexpr uint32_t kFirst = 48;  // calls kept from the beginning
  static constexpr uint32_t kLast = 96;   // and from the end
  const CallLine& line(uint32_t number) const;

  std::atomic<uint32_t> outcome_;
  std::atomic<uint32_t> failing_;  // a thread writes, or wrote, the failure
  std::atomic<uint32_t> failed_;   // it is written
  std::atomic<uint32_t> count_;
  std::atomic<int32_t> signal_;
  double seconds_;  // that the check took; of one that did not end, when it began
  char place_[160];
  char reason_[2048];
  char expected_[512];
  char got_[512];
  CallLine lines_[kFirst + kLast];
  CallLine after_failure_;  // what goes back then belongs to no sequence
};

// What a driver says of one device.
struct DeviceSheet {
  bringup_device_props props;
  size_t free_memory;
};

// What a driver says of itself, for the report.
struct DriverSheet {
  static constexpr int32_t kDescribed = 16;  // devices, at most
  char device_name[64];
  char description[256];
  char driver_version[32];
  char arch[32];
  int32_t devices;
  uint64_t capabilities;
  double start_seconds;  // loading it, bringup_driver_get and init
  int32_t described;     // how many of `each` are filled
  DeviceSheet each[kDescribed];
  char problem[128];      // why not all devices could be described; ""
  char functions[4096];   // that the table has, separated by spaces
  char libraries[32768];  // files that came with it, a line each
};

// The whole shared memory: a sheet, and one journal for each check of the suite.
struct SharedMemory {
  std::atomic<uint32_t> progress;  // counts what began and what ended
  std::atomic<uint32_t> started;   // 1: the driver is loaded
  DriverSheet sheet;
  Journal startup;
  Journal journals[1];  // as many as there are checks

  static size_t bytes(size_t checks) { return sizeof(SharedMemory) + checks * sizeof(Journal); }
};

// What this thread does now, for a crash: a function of the driver, or in words.
void set_activity(const char* activity);
// Where failures and signals are written from here on.
void set_current_journal(Journal* journal);
Journal* current_journal();
void install_crash_handlers();

}  // namespace bringup::driver_check
