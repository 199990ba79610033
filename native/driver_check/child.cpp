#include "driver_check/child.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "driver/checked.h"
#include "driver/table.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

std::set<std::string> mapped_files() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find(" r-xp ") != std::string::npos) {
      found.insert(line.substr(path));
    }
  }
  return found;
}

template <size_t kSize>
void put(char (&into)[kSize], const char* text) {
  if (text == nullptr) return;
  const size_t length = strnlen(text, kSize - 1);
  std::memcpy(into, text, length);
  into[length] = '\0';
}

struct Tables {
  bringup_driver raw{};
  bringup_driver checked{};
};

Tables start(SharedMemory& memory, const std::string& path) {
  const double begun = now_seconds();
  const std::set<std::string> before = mapped_files();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(dlerror(), "a shared library", "an error of the loader");
  Tables tables;
  try {
    set_activity("bringup_driver_get");
    tables.raw = driver::read_table(
        reinterpret_cast<bringup_driver_get_fn>(dlsym(library, "bringup_driver_get")));
    set_activity(nullptr);
  } catch (const driver::Refused& refused) {
    throw Failure(refused.what(), "a table that driver.h allows", refused.what());
  }
  tables.checked = driver::checked(tables.raw);
  const bringup_driver& raw = tables.raw;
  if (announced(raw, *find_field("init"))) {
    const Kernels none;
    Context context(tables.checked, raw, memory.startup, none);
    context.must<&D::init>();
  }
  DriverSheet& sheet = memory.sheet;
  put(sheet.device_name, raw.device_name);
  put(sheet.description, raw.description);
  sheet.capabilities = raw.capabilities;
  put(sheet.functions, driver::function_names(raw).c_str());
  sheet.start_seconds = now_seconds() - begun;
  std::string libraries;
  for (const std::string& file : mapped_files()) {
    if (before.count(file) == 0) libraries += file + "\n";
  }
  put(sheet.libraries, libraries.c_str());
  return tables;
}

bool answered(int32_t status, const char* function, DriverSheet& sheet) {
  if (status == BRINGUP_OK) return true;
  put(sheet.problem, (std::string(function) + " returned " + std::to_string(status)).c_str());
  return false;
}

bool describe_device(const bringup_driver& table, int32_t device, DriverSheet& sheet) {
  DeviceSheet& found = sheet.each[device];
  found.props.struct_size = sizeof found.props;
  size_t total = 0;
  set_activity("device_props");
  if (!answered(table.device_props(device, &found.props), "device_props", sheet)) return false;
  set_activity("mem_info");
  return answered(table.mem_info(device, &found.free_memory, &total), "mem_info", sheet);
}

// What the devices say of themselves; after the checks, which find what is wrong with asking.
void describe(const bringup_driver& table, DriverSheet& sheet) {
  set_activity("device_count");
  if (!answered(table.device_count(&sheet.devices), "device_count", sheet)) return;
  const int32_t count = std::min(sheet.devices, DriverSheet::kDescribed);
  while (sheet.described < count && describe_device(table, sheet.described, sheet)) {
    ++sheet.described;
  }
  set_activity(nullptr);
  if (sheet.described == 0) return;
  put(sheet.arch, sheet.each[0].props.arch);
  put(sheet.driver_version, sheet.each[0].props.driver_version);
}

// One of a need's functions, "launch|launch_values": which it has, or the last that it lacks.
const Field& chosen_of(const Context& context, const std::string& need) {
  const Field* field = nullptr;
  for (size_t at = 0; at <= need.size();) {
    const size_t end = std::min(need.find('|', at), need.size());
    field = find_field(need.substr(at, end - at).c_str());
    if (announced(context.raw(), *field)) break;
    at = end + 1;
  }
  return *field;
}

std::string unmet(const Context& context, const char* needs) {
  for (const char* names = needs; *names != '\0';) {
    const Field& field = chosen_of(context, next_name(names));
    if (announced(context.raw(), field)) continue;
    if (field.capability == 0) return "not announced: " + std::string(field.name) + " is NULL";
    return "not announced: " + std::string(capability_name(field.capability)) + " is not set";
  }
  return "";
}

void make(const Check& check, Context& context) {
  Journal& journal = context.journal();
  if (const std::string why = unmet(context, check.needs); !why.empty()) {
    journal.end(Outcome::kSkipped, why);
    return;
  }
  try {
    check.run(context);
    journal.end(journal.has_failure() ? Outcome::kFail : Outcome::kPass);
  } catch (const Failure&) {
    journal.end(Outcome::kFail);
  } catch (const Skipped& skipped) {
    journal.end(journal.has_failure() ? Outcome::kFail : Outcome::kSkipped, skipped.reason);
  }
}

}  // namespace

int run_checks(SharedMemory& memory, const std::string& library, const Kernels& kernels,
               const std::vector<std::string>& names) {
  dup2(STDERR_FILENO, STDOUT_FILENO);  // a driver that prints shall not disturb what is read
  install_crash_handlers();
  set_current_journal(&memory.startup);
  memory.startup.begin("dlopen");
  static Tables tables;  // until the end of the process: threads of a check may be late
  try {
    tables = start(memory, library);
  } catch (const Failure&) {
    memory.startup.end(Outcome::kFail);
    return 0;
  }
  memory.startup.end(Outcome::kPass);
  memory.started = 1;
  bool failed = false;
  // Of several checks, those up to the first failure: what comes behind may only follow from it.
  for (size_t i = 0; i < suite().size() && !failed; ++i) {
    const Check& check = suite()[i];
    if (std::find(names.begin(), names.end(), check.name) == names.end()) continue;
    ++memory.progress;
    Journal& journal = memory.journals[i];
    set_current_journal(&journal);
    journal.begin(nullptr);
    Context context(tables.checked, tables.raw, journal, kernels, library);
    make(check, context);
    ++memory.progress;
    failed = journal.has_failure();
  }
  if (!failed) describe(tables.checked, memory.sheet);
  return 0;
}

}  // namespace bringup::driver_check
