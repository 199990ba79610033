// Device code with plain arguments: what one call of it is for a driver's launch_values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "grid/c_call.h"
#include "runtime/c_parameter.h"
#include "runtime/export.h"

namespace bringup::runtime {

// How many blocks of how many threads, in x, y and z, and the shared memory of a block in bytes.
struct LaunchSize {
  std::array<Expression, 3> grid;  // independent threads, where `free_blocks`
  std::array<Expression, 3> block;
  Expression shared;
  bool free_blocks = false;  // the device divides the threads into blocks: work_items=
  // What only some devices have, as bringup_launch_values_args says it.
  bringup_dim3 cluster{};
  uint64_t flags = 0;
};

// A call's arguments and size.
struct ValuesLaunch {
  bringup_dim3 grid{1, 1, 1};
  bringup_dim3 block{1, 1, 1};
  uint32_t shared_bytes = 0;
  bringup_dim3 work_items{};
  bringup_dim3 cluster{};
  uint64_t flags = 0;
  std::vector<bringup_value> values;
  void* fault = nullptr;  // set before: what fault() in args= is, an int32_t that is 0

  // For the driver, which keeps nothing of it; valid as long as this and `name`.
  BRINGUP_API bringup_launch_values_args arguments(bringup_kernel_fn fn, const char* name) const;
};

class BRINGUP_API ValuesCode {
 public:
  // Throws std::runtime_error for a parameter that no plain value is, and what check_program does.
  static std::shared_ptr<const ValuesCode> make(std::vector<CParameter> parameters,
                                                std::vector<std::string> names, LaunchSize size);

  // What the arguments of kernel.h's form are in plain values. Null, or the reason why there is no
  // such launch, which lives until the next one on this thread; `launch` is undefined then.
  const char* lower(void* const* args, const bringup_ctx* ctx, ValuesLaunch& launch) const;

  // How many blocks in x its size says: 0 for no work, less for a call not taken, else 1.
  int64_t blocks(void* const* args, const bringup_ctx* ctx) const;

  // What a call can break, as fault() in args= says: a kernel writes the rule's number, from 1.
  const std::vector<std::string>& rules() const { return rules_; }

 private:
  struct Private {};

 public:
  ValuesCode(Private, std::vector<CParameter> parameters, std::vector<std::string> names,
             LaunchSize size);

 private:
  // One of LaunchSize: a number, or what is evaluated in each call.
  struct Count {
    const Expression* expression;
    int64_t lowest;
    uint32_t fixed;    // 0: evaluated
    const char* what;  // for messages
  };
  const char* read(const Count& count, void* const* args, const bringup_ctx* ctx,
                   uint32_t& number) const;

  std::vector<CParameter> parameters_;
  std::vector<std::string> names_;
  LaunchSize size_;
  std::array<Count, 7> counts_;  // the grid, the block, the shared memory
  std::vector<std::string> rules_;
};

// A value as a function of the host takes it.
inline void put_value(grid::Places& places, const bringup_value& value) {
  if (value.kind == BRINGUP_VALUE_ADDRESS) return places.put(value.value.address);
  if (value.kind == BRINGUP_VALUE_INT) return places.put(value.value.integer);
  if (value.size == sizeof(float)) return places.put(value.value.single);
  places.put(value.value.number);
}

}  // namespace bringup::runtime
