// bringup-driver-check: loads a driver in processes of its own and finds out whether it keeps what
// include/bringup/driver.h asks of it. One line of JSON for the driver, one for each check.
//
//   bringup-driver-check [--list] [--only=NAMES] [--probe] [--describe] [--kernels=FILE]
//                        [--device-kernels=FILE] [--start-limit=S] [--check-limit=S]
//                        [--emulator=PROGRAM,ARGUMENT...] LIBRARY
//
// Exit code 0: the checks were made, whatever they found; 2: they could not be.
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "driver/trace_line.h"
#include "driver_check/child.h"
#include "driver_check/other_process.h"
#include "driver_check/parent.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

struct Options {
  Launch launch;
  std::vector<std::string> only;  // names, groups; empty: all
  Limits limits;
  bool list = false;
  bool probe = false;
  bool describe = false;  // no checks: a line for each device instead
  int child = -1;         // the shared memory of a child
};

std::vector<std::string> split(const std::string& text, char separator = ',') {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool take(const std::string& word, const std::string& option, std::string& value) {
  if (word.rfind(option + "=", 0) != 0) return false;
  value = word.substr(option.size() + 1);
  return true;
}

Options read(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    std::string value;
    if (word == "--list") {
      options.list = true;
    } else if (word == "--probe") {
      options.probe = true;
    } else if (word == "--describe") {
      options.describe = true;
    } else if (word == "--child" && i + 1 < count) {
      options.child = std::atoi(words[++i]);
    } else if (take(word, "--only", value)) {
      options.only = split(value);
    } else if (take(word, "--kernels", value)) {
      options.launch.kernels.host = value;
    } else if (take(word, "--device-kernels", value)) {
      options.launch.kernels.device = value;
    } else if (take(word, "--emulator", value)) {
      options.launch.emulator = split(value);
    } else if (take(word, "--start-limit", value)) {
      options.limits.start_seconds = std::atof(value.c_str());
    } else if (take(word, "--check-limit", value)) {
      options.limits.check_seconds = std::atof(value.c_str());
    } else if (options.launch.library.empty() && word.rfind("--", 0) != 0) {
      options.launch.library = word;
    } else {
      throw std::runtime_error("'" + word + "' is no option");
    }
  }
  if (options.launch.library.empty() && !options.list)
    throw std::runtime_error("no library was named");
  return options;
}

bool wanted(const Check& check, const std::vector<std::string>& only) {
  if (only.empty()) return true;
  const std::string name = check.name;
  for (const std::string& one : only) {
    if (name == one || name.rfind(one + ".", 0) == 0 || one == check.function) return true;
  }
  return false;
}

std::vector<std::string> chosen(const Options& options) {
  if (options.probe) return probe();
  for (const std::string& one : options.only) {
    bool known = false;
    for (const Check& check : suite()) known = known || wanted(check, {one});
    if (!known) throw std::runtime_error("there is no check, group or function '" + one + "'");
  }
  std::vector<std::string> names;
  for (const Check& check : suite()) {
    if (wanted(check, options.only)) names.emplace_back(check.name);
  }
  return names;
}

// Prints one line of JSON, with the fields that `put` writes.
template <class Put>
void print_line(Put put) {
  std::string text;
  driver::TraceLine line(text);
  put(line);
  line.finish();
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void put_texts(driver::TraceLine& line, const char* name, const std::vector<std::string>& texts) {
  line.open(name, '[');
  for (const std::string& text : texts) line.element(text);
  line.close(']');
}

void print_list() {
  for (const Check& check : suite()) {
    print_line([&](driver::TraceLine& line) {
      line.field("check", check.name);
      line.field("function", check.function);
      line.field("rule", check.rule);
      line.field("needs", check.needs);
    });
  }
}

// Of all its devices that were described.
bool is_host_visible(const DriverSheet& sheet) {
  return std::all_of(sheet.each, sheet.each + sheet.described,
                     [](const DeviceSheet& one) { return one.props.host_visible_memory != 0; });
}

void print_driver(const Report& report) {
  const DriverSheet& sheet = report.sheet;
  std::vector<std::string> capabilities;
  for (uint64_t bit = 1; bit != 0; bit <<= 1) {
    if ((sheet.capabilities & bit) != 0) capabilities.emplace_back(capability_name(bit));
  }
  print_line([&](driver::TraceLine& line) {
    line.field("device_name", std::string(sheet.device_name));
    line.field("description", std::string(sheet.description));
    line.field("arch", std::string(sheet.arch));
    line.field("driver_version", std::string(sheet.driver_version));
    line.field("devices", sheet.devices);
    line.field("start_seconds", sheet.start_seconds);
    put_texts(line, "capabilities", capabilities);
    put_texts(line, "functions", split(sheet.functions, ' '));
    line.field("host_visible_memory", is_host_visible(sheet));
    put_texts(line, "libraries", split(sheet.libraries, '\n'));
    line.field("failure", report.start_failure);
    line.field("function", report.start_function);
    put_texts(line, "calls", report.start_calls);
  });
}

void print_device(const DeviceSheet& sheet) {
  print_line([&](driver::TraceLine& line) {
    put_fields(line, sheet.props);
    line.field("free_memory", sheet.free_memory);
    line.field("uuid", driver::hex_of(sheet.props.uuid, sizeof sheet.props.uuid));
  });
}

// One child that makes no checks, so that nothing but the description touches the device.
int describe(const Options& options) {
  Report report = run_child(options.launch, {}, options.limits);
  if (report.start_failure.empty()) report.start_failure = report.sheet.problem;
  if (report.start_failure.empty()) report.start_failure = report.end_failure;
  print_driver(report);
  for (int32_t i = 0; i < report.sheet.described; ++i) print_device(report.sheet.each[i]);
  return 0;
}

void print_result(const Result& result) {
  constexpr const char* kOutcomes[] = {"not run", "running", "pass", "fail", "skipped"};
  const Check* check = nullptr;
  for (const Check& one : suite()) {
    if (one.name == result.check) check = &one;
  }
  print_line([&](driver::TraceLine& line) {
    line.field("check", result.check);
    line.field("function", result.function);
    line.field("rule", check != nullptr ? check->rule : "");
    line.field("outcome", kOutcomes[static_cast<size_t>(result.outcome)]);
    line.field("reason", result.reason);
    line.field("expected", result.expected);
    line.field("got", result.got);
    line.field("seconds", result.seconds);
    put_texts(line, "calls", result.calls);
  });
}

int run_as_child(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const size_t bytes = SharedMemory::bytes(suite().size());
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, options.child, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("a child without its shared memory");
  return run_checks(*static_cast<SharedMemory*>(memory), options.launch.library,
                    options.launch.kernels, options.only);
}

// All checks of a probe share a process. Otherwise each has its own, so that a crash costs one.
int run_as_parent(const Options& options) {
  const std::vector<std::string> names = chosen(options);
  std::vector<std::vector<std::string>> children;
  if (options.probe) {
    children.push_back(names);
  } else {
    for (const std::string& name : names) children.push_back({name});
  }
  bool told = false;
  for (const auto& child : children) {
    const Report report = run_child(options.launch, child, options.limits);
    if (!std::exchange(told, true)) print_driver(report);
    for (const Result& result : report.results) print_result(result);
    if (report.start_failure.empty()) continue;
    if (report.results.empty() && children.size() > 1 && &child != &children.front()) {
      for (const std::string& name : child) {  // it started before, and now it does not
        Result result;
        result.check = name;
        result.outcome = Outcome::kFail;
        result.function = report.start_function;
        result.reason = "the driver did not start: " + report.start_failure;
        result.calls = report.start_calls;
        print_result(result);
      }
      continue;
    }
    break;
  }
  return 0;
}

int run(int count, char** words) {
  const Options options = read(count, words);
  if (options.list) {
    print_list();
    return 0;
  }
  if (options.child >= 0) return run_as_child(options);
  return options.describe ? describe(options) : run_as_parent(options);
}

}  // namespace
}  // namespace bringup::driver_check

int main(int count, char** words) {
  try {
    if (count == 3 && std::string(words[1]) == "--open-ipc") {
      return bringup::driver_check::open_for_other_process(words[2]);
    }
    return bringup::driver_check::run(count, words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bringup-driver-check: %s\n", error.what());
    return 2;
  }
}
