// What may fall back to the host, and what it costs: one record for each operator that did.
#pragma once

#include <ATen/core/operator_name.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bringup::torch_ext {

enum class FallbackAction : uint8_t { kAllow, kWarn, kForbid };

// Of one overload. Lives for ever; every thread counts in it.
struct FallbackRecord {
  const c10::OperatorName name;
  std::atomic<FallbackAction> action{FallbackAction::kAllow};
  std::atomic<bool> warned{false};
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> native_calls{0};  // of a kernel for the device, which did not fall back
  std::atomic<uint64_t> nanoseconds{0};
  std::atomic<uint64_t> bytes_to_host{0};
  std::atomic<uint64_t> bytes_to_device{0};
};

FallbackRecord& fallback_record(const c10::OperatorName& name);

// Actions by "ns::op" (all overloads) or "ns::op.overload" ("ns::op.default" for the one without a
// name); the more exact one counts.
using FallbackExceptions = std::vector<std::pair<std::string, FallbackAction>>;
void set_fallback_policy(FallbackAction otherwise, FallbackExceptions exceptions);

struct FallbackCount {
  std::string name;
  uint64_t calls;
  uint64_t nanoseconds;
  uint64_t bytes_to_host;
  uint64_t bytes_to_device;
};
// Of every operator that fell back since the last time, which starts anew where `reset`.
std::vector<FallbackCount> fallback_counts(bool reset);
// The calls that kernels of devices.kernel ran on the device, likewise.
std::vector<std::pair<std::string, uint64_t>> native_counts(bool reset);

// One call that falls back: refused or told where the policy says so, counted when it ends.
class FallbackCall {
 public:
  explicit FallbackCall(FallbackRecord& record) : record_(record) {
    const FallbackAction action = record.action.load(std::memory_order_relaxed);
    if (action != FallbackAction::kAllow) apply(action);
  }
  FallbackCall& operator=(FallbackCall&&) = delete;
  ~FallbackCall() {
    const auto spent = Clock::now() - begin_;
    add(record_.calls, 1);
    add(record_.nanoseconds,
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
  }
  void copied(uint64_t to_host, uint64_t to_device) {
    if (to_host != 0) add(record_.bytes_to_host, to_host);
    if (to_device != 0) add(record_.bytes_to_device, to_device);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static void add(std::atomic<uint64_t>& to, uint64_t n) {
    to.fetch_add(n, std::memory_order_relaxed);
  }
  void apply(FallbackAction action);

  FallbackRecord& record_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace bringup::torch_ext
