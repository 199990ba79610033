#include "sim/values_launch.h"

#include <exception>

#include "sim/handles.h"

namespace bringup::sim {
namespace {

constexpr const char* kAxes[] = {"x", "y", "z"};

void check_size(const bringup_dim3& given, const uint32_t (&most)[3], const char* what) {
  for (int axis = 0; const uint32_t count : {given.x, given.y, given.z}) {
    if (count < 1 || count > most[axis]) {
      refuse(BRINGUP_INVALID, "a launch with ", count, " ", what, " in ", kAxes[axis],
             ": the device takes 1 to ", most[axis]);
    }
    ++axis;
  }
}

void check(const bringup_launch_values_args& launch) {
  require(launch.struct_size >= sizeof launch, "a launch with a struct_size too small");
  require(launch.fn != nullptr, "a launch without a function");
  check_size(launch.grid, kMaxGrid, "blocks");
  check_size(launch.block, kMaxBlock, "threads a block");
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads > kMaxBlockThreads) {
    refuse(BRINGUP_INVALID, "a launch with ", threads, " threads a block: the device takes up to ",
           kMaxBlockThreads);
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    refuse(BRINGUP_INVALID, "a launch with ", launch.shared_bytes,
           " bytes of shared memory: a block has ", kMaxSharedBytes);
  }
  const bringup_dim3& items = launch.work_items;
  if (items.x != 0) {
    require(items.x == uint64_t{launch.grid.x} * launch.block.x &&
                items.y == uint64_t{launch.grid.y} * launch.block.y &&
                items.z == uint64_t{launch.grid.z} * launch.block.z,
            "a launch with work items that are not its blocks times their threads");
    require(launch.shared_bytes == 0, "a launch with work items and shared memory");
  }
  if (launch.cluster.x != 0 || launch.flags != 0) {
    refuse(BRINGUP_UNSUPPORTED,
           "a launch in clusters, cooperative or in a native queue: the "
           "simulator has none of them");
  }
  if (launch.nvalues < 0 || static_cast<size_t>(launch.nvalues) > grid::kMaxWords) {
    refuse(BRINGUP_INVALID, "a launch with ", launch.nvalues, " values: the device takes 0 to ",
           grid::kMaxWords);
  }
}

// The number in the first `size` bytes, as a function that declares that type reads it.
int64_t integer_of(const bringup_value& value) {
  const int unused = 64 - 8 * static_cast<int>(value.size);
  const auto bits = static_cast<uint64_t>(value.value.integer);
  const auto low = bits << unused;
  return value.value.integer < 0 ? static_cast<int64_t>(low) >> unused
                                 : static_cast<int64_t>(low >> unused);
}

void put(grid::Places& places, const bringup_value& value, int32_t number,
         const DeviceMemory& memory) {
  const uint32_t size = value.size;
  const auto wrong = [&](const char* what) {
    refuse(BRINGUP_INVALID, "value ", number, " of a launch is ", what, " of ", size, " bytes");
  };
  switch (value.kind) {
    case BRINGUP_VALUE_ADDRESS:
      if (size != sizeof(void*)) wrong("an address");
      if (value.value.address == nullptr) return places.put(static_cast<const void*>(nullptr));
      if (!memory.allocation_of(value.value.address)) {
        refuse(BRINGUP_INVALID, "value ", number,
               " of a launch is an address outside this device's "
               "allocations");
      }
      return places.put(memory.worker_address(value.value.address));
    case BRINGUP_VALUE_INT:
      if (size != 1 && size != 2 && size != 4 && size != 8) wrong("an integer");
      return places.put(integer_of(value));
    case BRINGUP_VALUE_FLOAT:
      if (size == sizeof(float)) return places.put(value.value.single);
      if (size != sizeof(double)) wrong("a floating-point number");
      return places.put(value.value.number);
    default:
      refuse(BRINGUP_INVALID, "value ", number, " of a launch is of kind ", value.kind,
             ", which there is not");
  }
}

bringup_index index(const bringup_dim3& dim) { return {dim.x, dim.y, dim.z}; }

}  // namespace

ValuesLaunch::ValuesLaunch(const bringup_launch_values_args& launch, const DeviceMemory& memory)
    : name_(launch.name != nullptr ? launch.name : "?"),
      run_{reinterpret_cast<const void*>(launch.fn),
           index(launch.grid),
           index(launch.block),
           launch.shared_bytes,
           launch.work_items.x != 0,
           {}} {
  check(launch);
  run_.arguments.put(static_cast<const void*>(nullptr));  // the position
  for (int32_t i = 0; i < launch.nvalues; ++i) put(run_.arguments, launch.values[i], i, memory);
}

std::optional<Failure> ValuesLaunch::run(const Place& place) const {
  try {
    grid::run_grid(run_);
    return std::nullopt;
  } catch (const std::exception& error) {
    return failure_of(name_.c_str(), place, std::string("the kernel threw: ") + error.what());
  } catch (...) {
    return failure_of(name_.c_str(), place, "the kernel threw something that is no std::exception");
  }
}

}  // namespace bringup::sim
