#include "sim/faults.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <thread>

#include "engine/util/forever.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

// One of 2^64 numbers for each (seed, stream, task): the finaliser of MurmurHash3, applied twice.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccdu;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53u;
  return value ^ (value >> 33);
}

constexpr uint64_t kLongestRandomDelay = 200;  // microseconds

std::string device_text(int32_t device) {
  return device < 0 ? "the device" : "device " + std::to_string(device);
}

}  // namespace

std::string injected_text(Function function, const char* operator_name) {
  std::string text = "injected failure of " + std::string(name_of(function));
  if (*operator_name != '\0') text += " of operator '" + std::string(operator_name) + "'";
  return text;
}

FaultSet::~FaultSet() {
  for (const LostEvent& lost : lost_events_) lost.record->complete();
}

void FaultSet::enter(const DriverCall& call, Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  if (call.device >= 0 && !concerns(call.device)) return;
  ++counts_[call.function].calls;
  ++calls_;
  check_lost(call);
  check_memory(call);
  if (call.function == Function::event_record && ++records_ == plan_.lost_event) {
    ++counts_[call.function].injected;
    verdict.loses_event = true;
  }
  if (!fails(call)) return;
  ++counts_[call.function].injected;
  if (!plan_.fail_async) {
    throw SimError(plan_.fail_status, injected_text(call.function, call.operator_name));
  }
  verdict.fails_later = true;
}

// What was given out can be given back all the same: else it were lost with the device.
void FaultSet::check_lost(const DriverCall& call) {
  if (plan_.lost_after != FaultPlan::kNone && calls_ > plan_.lost_after) losing_ = true;
  if (is_release(call.function) || !is_lost(call.device)) return;
  ++counts_[call.function].injected;
  refuse(BRINGUP_DEVICE_LOST, device_text(call.device), " is lost (injected) until it is reset");
}

bool FaultSet::is_lost(int32_t device) const {
  if (!losing_ || (device >= 0 && !concerns(device))) return false;
  return device < 0 ? recovered_.empty() : !recovered_.contains(device);
}

void FaultSet::check_memory(const DriverCall& call) {
  if (call.function != Function::mem_alloc) return;
  const bool too_many = ++allocations_ > plan_.oom_after;
  const bool too_much = plan_.oom_after_bytes != FaultPlan::kNone &&
                        allocated_bytes_ + call.bytes > plan_.oom_after_bytes;
  if (!too_many && !too_much) {
    allocated_bytes_ += call.bytes;
    return;
  }
  ++counts_[call.function].injected;
  refuse(BRINGUP_OUT_OF_MEMORY, device_text(call.device), " has no range of ", call.bytes,
         " bytes free (injected: out of memory)");
}

bool FaultSet::fails(const DriverCall& call) {
  if (!plan_.fail.test(static_cast<size_t>(call.function))) return false;
  if (!plan_.operator_name.empty() && plan_.operator_name != call.operator_name) return false;
  ++matching_;
  if (matching_ <= plan_.fail_after) return false;
  if ((matching_ - plan_.fail_after) % plan_.fail_every != 0) return false;
  if (plan_.fail_count != 0 && failed_ == plan_.fail_count) return false;
  ++failed_;
  return true;
}

void FaultSet::keep_lost(std::shared_ptr<EventRecord> record, int32_t device) {
  const std::lock_guard lock(mutex_);
  lost_events_.push_back({std::move(record), device});
}

bool FaultSet::lost(int32_t device) const {
  const std::lock_guard lock(mutex_);
  return is_lost(device);
}

void FaultSet::reset(int32_t device) {
  const std::lock_guard lock(mutex_);
  if (losing_) recovered_.insert(device);
  std::erase_if(lost_events_, [&](const LostEvent& lost) {
    if (lost.device != device) return false;
    lost.record->complete();
    return true;
  });
}

std::map<Function, FaultCount> FaultSet::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::atomic<bool> Faults::active_{false};
std::atomic<bool> Faults::late_{false};

Faults& Faults::instance() { return forever<Faults>(); }

uint64_t Faults::add(FaultPlan plan) {
  const std::lock_guard lock(mutex_);
  sets_.emplace(next_id_, std::make_shared<FaultSet>(std::move(plan)));
  refresh();
  return next_id_++;
}

void Faults::remove(uint64_t id) {
  std::shared_ptr<FaultSet> ended;  // completes its events without the lock
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) return;
  ended = std::move(found->second);
  sets_.erase(found);
  refresh();
}

void Faults::refresh() {
  active_ = !sets_.empty();
  late_ = std::ranges::any_of(
      sets_, [](const auto& entry) { return entry.second->plan().reorder == Order::kLate; });
}

std::shared_ptr<FaultSet> Faults::find(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  return found != sets_.end() ? found->second : nullptr;
}

std::vector<std::shared_ptr<FaultSet>> Faults::sets() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<FaultSet>> all;
  for (const auto& [id, set] : sets_) all.push_back(set);
  return all;
}

Verdict Faults::enter(const DriverCall& call, std::shared_ptr<FaultSet>& lost_by) const {
  Verdict verdict;
  for (const auto& set : sets()) {
    const bool lost = verdict.loses_event;
    set->enter(call, verdict);
    if (verdict.loses_event && !lost) lost_by = set;
  }
  return verdict;
}

bool Faults::lost(int32_t device) const {
  return std::ranges::any_of(sets(), [&](const auto& set) { return set->lost(device); });
}

void Faults::reset(int32_t device) const {
  for (const auto& set : sets()) set->reset(device);
}

std::optional<Failure> Faults::graph_kernel(const char* operator_name, const Place& place) const {
  try {
    std::shared_ptr<FaultSet> lost_by;
    const DriverCall call{Function::graph_kernel, place.device, operator_name};
    if (!enter(call, lost_by).fails_later) return std::nullopt;
  } catch (const SimError&) {  // a kernel that runs later can only fail later
  }
  const std::string text = injected_text(Function::graph_kernel, "");
  ErrorDetail detail{0, place.device, place.native_stream, operator_name, text};
  return Failure{"operator '" + std::string(operator_name) + "' failed in stream " +
                     std::to_string(place.stream_number) + " of device " +
                     std::to_string(place.device) + ": " + text,
                 std::move(detail)};
}

uint64_t Faults::memory_limit(int32_t device) const {
  uint64_t limit = FaultPlan::kNone;
  for (const auto& set : sets()) {
    if (set->concerns(device)) limit = std::min(limit, set->plan().memory);
  }
  return limit;
}

uint64_t Faults::hidden_dtypes(int32_t device) const {
  uint64_t hidden = 0;
  for (const auto& set : sets()) {
    if (set->concerns(device)) hidden |= set->plan().hidden_dtypes;
  }
  return hidden;
}

void Faults::delay(Work work, size_t bytes, const Place& place, uint64_t number) const {
  uint64_t microseconds = 0;
  for (const auto& set : sets()) {
    const FaultPlan& plan = set->plan();
    if (!set->concerns(place.device)) continue;
    if (work == Work::kLaunch) microseconds += plan.launch_latency_us;
    if (work == Work::kCopy) microseconds += plan.copy_latency_us;
    if (work == Work::kCopy && plan.copy_bandwidth > 0) {
      microseconds += static_cast<uint64_t>(static_cast<double>(bytes) * 1e6 /
                                            static_cast<double>(plan.copy_bandwidth));
    }
    if (plan.reorder == Order::kRandom) {
      const auto stream =
          static_cast<uint64_t>(place.device) << 32 | static_cast<uint32_t>(place.stream_number);
      const uint64_t random = mixed(mixed(mixed(plan.seed) ^ stream) ^ number);
      if (random % 2 == 0) microseconds += random / 2 % kLongestRandomDelay;
    }
  }
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace bringup::sim
