#include "sim/fault_plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "driver/dtypes.h"
#include "sim/number_text.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

using Value = std::string_view;

[[noreturn]] void expected(const std::string& what) { throw SimError(BRINGUP_INVALID, what); }

std::string in_quotes(Value value) {
  std::string text("'");
  text.append(value);
  return text.append("'");
}

void read_number(Value value, uint64_t& number) {
  const auto found = whole_number(value);
  if (!found || *found == FaultPlan::kNone) expected("expected a whole number from 0");
  number = *found;
}

void read_positive(Value value, uint64_t& number) {
  read_number(value, number);
  if (number == 0) expected("expected a whole number from 1");
}

void read_bytes(Value value, uint64_t& bytes) {
  const auto found = byte_count(value);
  if (!found) expected("expected a number of bytes from 1 to 16384G, such as 512M or 4G");
  bytes = *found;
}

void read_device(Value value, int32_t& device) {
  uint64_t number = 0;
  read_number(value, number);
  device = static_cast<int32_t>(std::min<uint64_t>(number, INT32_MAX));
}

// Calls visit(part) for each of "a|b|c".
template <class Visit>
void for_each_part(Value value, Visit visit) {
  for (;;) {
    const size_t end = value.find('|');
    visit(value.substr(0, end));
    if (end == value.npos) return;
    value.remove_prefix(end + 1);
  }
}

template <class Table>
std::string names_in(const Table& table) {
  std::string names;
  for (const auto& entry : table) {
    names += (names.empty() ? "" : ", ") + std::string(entry.first);
  }
  return names;
}

template <class Table>
auto read_choice(Value value, const Table& table) {
  const auto found = std::ranges::find(table, value, [](const auto& entry) { return entry.first; });
  if (found == table.end()) expected("expected one of " + names_in(table));
  return found->second;
}

void read_functions(Value value, FunctionSet& functions) {
  for_each_part(value, [&](Value name) {
    if (name == "any") {
      for (size_t i = kReleaseCount; i < kFunctionCount; ++i) functions.set(i);
      functions.reset(static_cast<size_t>(Function::graph_kernel));
      return;
    }
    const auto found = std::ranges::find(kFunctionNames, name);
    if (found == kFunctionNames.end()) {
      expected(
          in_quotes(name) +
          " is no function of driver.h that can fail: expected any, graph_kernel or names such "
          "as launch, copy_async or mem_alloc, with | between them");
    }
    functions.set(static_cast<size_t>(found - kFunctionNames.begin()));
  });
}

constexpr uint64_t kAlways = BRINGUP_DTYPE_BOOL | BRINGUP_DTYPE_INT64;

void read_dtypes(Value value, uint64_t& dtypes) {
  // Every dtype but those that every device has.
  static constexpr auto kNames = [] {
    std::array<std::pair<Value, uint64_t>, 20> names{};
    auto to = names.begin();
#define BRINGUP_NAME(bit, name, type, code, bits) \
  if (!(kAlways & BRINGUP_DTYPE_##bit)) *to++ = { #name, BRINGUP_DTYPE_##bit };
    BRINGUP_DTYPES(BRINGUP_NAME)
#undef BRINGUP_NAME
    return names;
  }();
  for_each_part(value, [&](Value name) { dtypes |= read_choice(name, kNames); });
}

constexpr std::array<std::pair<Value, bringup_status>, 6> kStatuses = {{
    {"invalid", BRINGUP_INVALID},
    {"out_of_memory", BRINGUP_OUT_OF_MEMORY},
    {"unsupported", BRINGUP_UNSUPPORTED},
    {"device_lost", BRINGUP_DEVICE_LOST},
    {"kernel_failed", BRINGUP_KERNEL_FAILED},
    {"error", BRINGUP_ERROR},
}};
constexpr std::array<std::pair<Value, Order>, 3> kOrders = {
    {{"eager", Order::kEager}, {"random", Order::kRandom}, {"late", Order::kLate}}};
constexpr std::array<std::pair<Value, bool>, 2> kSwitch = {{{"0", false}, {"1", true}}};

using Read = void (*)(FaultPlan&, Value);
constexpr std::array<std::pair<Value, Read>, 19> kKeys = {{
    {"device", [](FaultPlan& plan, Value value) { read_device(value, plan.device); }},
    {"oom_after", [](FaultPlan& plan, Value value) { read_number(value, plan.oom_after); }},
    {"oom_after_bytes",
     [](FaultPlan& plan, Value value) { read_bytes(value, plan.oom_after_bytes); }},
    {"memory", [](FaultPlan& plan, Value value) { read_bytes(value, plan.memory); }},
    {"fail", [](FaultPlan& plan, Value value) { read_functions(value, plan.fail); }},
    {"operator", [](FaultPlan& plan, Value value) { plan.operator_name = value; }},
    {"fail_after", [](FaultPlan& plan, Value value) { read_number(value, plan.fail_after); }},
    {"fail_every",
     [](FaultPlan& plan, Value value) {
       read_positive(value, plan.fail_every);
       plan.fail_count = 0;
     }},
    {"fail_count", [](FaultPlan& plan, Value value) { read_positive(value, plan.fail_count); }},
    {"fail_status",
     [](FaultPlan& plan, Value value) { plan.fail_status = read_choice(value, kStatuses); }},
    {"fail_async",
     [](FaultPlan& plan, Value value) { plan.fail_async = read_choice(value, kSwitch); }},
    {"lost_after", [](FaultPlan& plan, Value value) { read_number(value, plan.lost_after); }},
    {"lost_event", [](FaultPlan& plan, Value value) { read_positive(value, plan.lost_event); }},
    {"launch_latency_us",
     [](FaultPlan& plan, Value value) { read_number(value, plan.launch_latency_us); }},
    {"copy_latency_us",
     [](FaultPlan& plan, Value value) { read_number(value, plan.copy_latency_us); }},
    {"copy_bandwidth",
     [](FaultPlan& plan, Value value) { read_bytes(value, plan.copy_bandwidth); }},
    {"reorder", [](FaultPlan& plan, Value value) { plan.reorder = read_choice(value, kOrders); }},
    {"seed", [](FaultPlan& plan, Value value) { read_number(value, plan.seed); }},
    {"hidden_dtypes", [](FaultPlan& plan, Value value) { read_dtypes(value, plan.hidden_dtypes); }},
}};

// Keys that mean nothing without another one.
void check_together(const FaultPlan& plan, const std::set<Value>& given) {
  for (const Value key :
       {"operator", "fail_after", "fail_every", "fail_count", "fail_status", "fail_async"}) {
    if (given.contains(key) && plan.fail.none()) {
      expected(std::string(key) + " means nothing without fail=FUNCTION");
    }
  }
  if (given.contains("seed") && plan.reorder != Order::kRandom) {
    expected("seed means nothing without reorder=random");
  }
  for (size_t i = 0; i < kFunctionCount && plan.fail_async; ++i) {
    const auto function = static_cast<Function>(i);
    if (plan.fail.test(i) && !can_fail_later(function)) {
      expected(
          "fail_async=1: " + std::string(name_of(function)) +
          " does no work in a stream, expected launch, copy_async, fill_async, graph_launch or "
          "graph_kernel");
    }
  }
}

void read_setting(FaultPlan& plan, Value setting, std::set<Value>& given, bool from_start) {
  const size_t equals = setting.find('=');
  const Value key = setting.substr(0, equals);
  const auto found = std::ranges::find(kKeys, key, [](const auto& entry) { return entry.first; });
  if (equals == setting.npos || found == kKeys.end()) {
    expected("expected KEY=VALUE with one of " + names_in(kKeys));
  }
  if (!given.insert(key).second) expected("it is given twice");
  if (key == "hidden_dtypes" && !from_start) {
    expected(
        "dtypes are read when the driver is loaded: set BRINGUP_SIM_FAULTS before that instead");
  }
  found->second(plan, setting.substr(equals + 1));
}

}  // namespace

FaultPlan FaultPlan::parse(std::string_view text, bool from_start) {
  FaultPlan plan;
  std::set<Value> given;
  uint64_t fail_count = kNone;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const Value setting = text.substr(0, comma);
    try {
      read_setting(plan, setting, given, from_start);
      if (setting.starts_with("fail_count=")) fail_count = plan.fail_count;
    } catch (const SimError& error) {
      refuse(BRINGUP_INVALID, in_quotes(setting), ": ", error.what());
    }
    text = comma == text.npos ? Value() : text.substr(comma + 1);
  }
  if (fail_count != kNone) plan.fail_count = fail_count;  // whatever the order of the keys
  check_together(plan, given);
  return plan;
}

}  // namespace bringup::sim
