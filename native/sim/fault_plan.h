// What shall go wrong: the text of BRINGUP_SIM_FAULTS, or of bringup_sim_add_faults, read strictly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bringup/driver.h"
#include "sim/functions.h"

namespace bringup::sim {

// How the work of different streams is interleaved. Within one stream it stays in order.
enum class Order {
  kEager,   // as soon as possible
  kRandom,  // after delays that the seed decides
  kLate,    // only when a caller waits for the stream or asks for it
};

// docs/devices/faults.md describes each key; a key is called like its member.
struct FaultPlan {
  static constexpr uint64_t kNone = UINT64_MAX;

  int32_t device = -1;  // -1: all

  uint64_t oom_after = kNone;        // allocations that still succeed
  uint64_t oom_after_bytes = kNone;  // bytes that still succeed
  uint64_t memory = kNone;           // bytes of each device

  FunctionSet fail;
  std::string operator_name;  // "operator": only launches of it
  uint64_t fail_after = 0;
  uint64_t fail_every = 1;
  uint64_t fail_count = 1;  // 0: no limit
  bringup_status fail_status = BRINGUP_ERROR;
  bool fail_async = false;

  uint64_t lost_after = kNone;  // calls that still succeed
  uint64_t lost_event = kNone;  // which event_record from now, counted from 1

  uint64_t launch_latency_us = 0;
  uint64_t copy_latency_us = 0;
  uint64_t copy_bandwidth = 0;  // bytes a second; 0: no limit

  Order reorder = Order::kEager;
  uint64_t seed = 0;

  uint64_t hidden_dtypes = 0;  // BRINGUP_DTYPE_* bits

  // Throws SimError that names the part of `text` that cannot be read. `from_start`: nothing has
  // asked for the device's properties yet.
  static FaultPlan parse(std::string_view text, bool from_start);
};

}  // namespace bringup::sim
