// Faults on demand: sets of them come and go while the simulator runs, and each counts what it did.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/event.h"
#include "sim/fault_plan.h"
#include "sim/functions.h"
#include "sim/kernel_run.h"

namespace bringup::sim {

// One call of a driver function.
struct DriverCall {
  Function function;
  int32_t device = -1;             // -1: of no device
  const char* operator_name = "";  // of a launch
  size_t bytes = 0;                // of an allocation
};

// What a call shall do, if it is not refused.
struct Verdict {
  bool fails_later = false;  // its work fails in its stream
  bool loses_event = false;  // an event_record that never completes
};

struct FaultCount {
  uint64_t calls = 0;
  uint64_t injected = 0;
};

// One plan at work.
class FaultSet {
 public:
  explicit FaultSet(FaultPlan plan) : plan_(std::move(plan)) {}
  ~FaultSet();
  FaultSet& operator=(FaultSet&&) = delete;

  const FaultPlan& plan() const noexcept { return plan_; }
  bool concerns(int32_t device) const { return plan_.device < 0 || device == plan_.device; }
  // Throws SimError when the call is refused.
  void enter(const DriverCall& call, Verdict& verdict);
  // `record` is not completed before the set ends or its device is reset.
  void keep_lost(std::shared_ptr<EventRecord> record, int32_t device);
  bool lost(int32_t device) const;
  void reset(int32_t device);
  std::map<Function, FaultCount> counts() const;

 private:
  struct LostEvent {
    std::shared_ptr<EventRecord> record;
    int32_t device;
  };
  void check_lost(const DriverCall& call);
  bool is_lost(int32_t device) const;
  void check_memory(const DriverCall& call);
  bool fails(const DriverCall& call);

  const FaultPlan plan_;
  mutable std::mutex mutex_;
  std::map<Function, FaultCount> counts_;
  uint64_t calls_ = 0;
  uint64_t matching_ = 0;
  uint64_t failed_ = 0;
  uint64_t allocations_ = 0;
  uint64_t allocated_bytes_ = 0;
  uint64_t records_ = 0;
  bool losing_ = false;
  std::set<int32_t> recovered_;  // devices that were reset: they are not lost again
  std::vector<LostEvent> lost_events_;
};

// All sets that are at work. Never destroyed: workers may ask until the very end of the process.
class Faults {
 public:
  static Faults& instance();

  // Whether there is any set: what everybody asks first.
  static bool active() noexcept { return active_.load(std::memory_order_relaxed); }
  // Whether streams put their work off until it is waited for.
  static bool late() noexcept { return late_.load(); }

  uint64_t add(FaultPlan plan);
  void remove(uint64_t id);
  // Null: no set of that number is at work.
  std::shared_ptr<FaultSet> find(uint64_t id) const;

  // Throws SimError when a set refuses the call. `lost_by`: where an event that is lost goes.
  Verdict enter(const DriverCall& call, std::shared_ptr<FaultSet>& lost_by) const;
  bool lost(int32_t device) const;
  // The device lost nothing and forgets its loss; events that were lost are done.
  void reset(int32_t device) const;
  // A kernel of a graph: what went wrong, or nothing.
  std::optional<Failure> graph_kernel(const char* operator_name, const Place& place) const;
  // The least that a set leaves of this memory.
  uint64_t memory_limit(int32_t device) const;
  uint64_t hidden_dtypes(int32_t device) const;

  enum class Work { kLaunch, kCopy, kOther };
  // As long as work number `number` of the stream has to wait, or lasts beyond itself.
  void delay(Work work, size_t bytes, const Place& place, uint64_t number) const;

 private:
  std::vector<std::shared_ptr<FaultSet>> sets() const;
  void refresh();

  static std::atomic<bool> active_;
  static std::atomic<bool> late_;
  mutable std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<FaultSet>> sets_;
};

std::string injected_text(Function function, const char* operator_name);

}  // namespace bringup::sim
