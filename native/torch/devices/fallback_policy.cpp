#include "torch/devices/fallback_policy.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/util/forever.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

struct Policy {
  std::mutex mutex;
  FallbackAction otherwise = FallbackAction::kAllow;
  FallbackExceptions exceptions;
  std::unordered_map<c10::OperatorName, std::unique_ptr<FallbackRecord>> records;

  FallbackAction action_for(const c10::OperatorName& name) const {
    const std::string exact =
        name.name + "." + (name.overload_name.empty() ? "default" : name.overload_name);
    const auto of = [&](const std::string& text) {
      return std::find_if(exceptions.begin(), exceptions.end(),
                          [&](const auto& exception) { return exception.first == text; });
    };
    auto found = of(exact);
    if (found == exceptions.end()) found = of(name.name);
    return found == exceptions.end() ? otherwise : found->second;
  }
};

Policy& policy() { return forever<Policy>(); }

}  // namespace

FallbackRecord& fallback_record(const c10::OperatorName& name) {
  Policy& all = policy();
  const std::lock_guard lock(all.mutex);
  auto& record = all.records[name];
  if (record == nullptr) {
    record = std::make_unique<FallbackRecord>(name);
    record->action = all.action_for(name);
  }
  return *record;
}

void set_fallback_policy(FallbackAction otherwise, FallbackExceptions exceptions) {
  Policy& all = policy();
  const std::lock_guard lock(all.mutex);
  all.otherwise = otherwise;
  all.exceptions = std::move(exceptions);
  for (auto& [name, record] : all.records) {
    record->action = all.action_for(name);
    record->warned = false;
  }
}

std::vector<FallbackCount> fallback_counts(bool reset) {
  Policy& all = policy();
  const std::lock_guard lock(all.mutex);
  std::vector<FallbackCount> counts;
  for (auto& [name, record] : all.records) {
    const auto take = [&](std::atomic<uint64_t>& of) { return reset ? of.exchange(0) : of.load(); };
    const FallbackCount count{c10::toString(name), take(record->calls), take(record->nanoseconds),
                              take(record->bytes_to_host), take(record->bytes_to_device)};
    if (count.calls != 0) counts.push_back(count);
  }
  return counts;
}

std::vector<std::pair<std::string, uint64_t>> native_counts(bool reset) {
  Policy& all = policy();
  const std::lock_guard lock(all.mutex);
  std::vector<std::pair<std::string, uint64_t>> counts;
  for (auto& [name, record] : all.records) {
    auto& of = record->native_calls;
    const uint64_t calls = reset ? of.exchange(0) : of.load();
    if (calls != 0) counts.emplace_back(c10::toString(name), calls);
  }
  return counts;
}

void FallbackCall::apply(FallbackAction action) {
  const std::string what = "operator '" + c10::toString(record_.name) +
                           "' has no kernel for device '" + driver_facts().device_name + "'";
  TORCH_CHECK_NOT_IMPLEMENTED(action != FallbackAction::kForbid, what,
                              ", and the fallback policy forbids to run it on the host "
                              "(devices.set_fallback_policy, BRINGUP_FALLBACK)");
  if (record_.warned.exchange(true)) return;
  TORCH_WARN(what,
             " and runs on the host (told once an operator: devices.set_fallback_policy, "
             "BRINGUP_FALLBACK)");
}

}  // namespace bringup::torch_ext
