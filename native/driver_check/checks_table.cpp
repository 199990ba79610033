// The function table, the number of devices, their properties.
#include <cctype>
#include <cstddef>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

void require_together(const bringup_driver& table, const char* names) {
  std::string present;
  std::string missing;
  for (const char* rest = names; *rest != '\0';) {
    const std::string name = next_name(rest);
    (is_null(table, *find_field(name.c_str())) ? missing : present) = name;
  }
  if (present.empty() || missing.empty()) return;
  throw Failure(missing + " is NULL, and " + present + " is of no use without it",
                "all of: " + std::string(names), missing + " is NULL");
}

void functions(Context& context) {
  const bringup_driver& table = context.raw();
  const char* name = table.device_name;
  expect(name != nullptr && strnlen(name, 64) < 64, "device_name is NULL or does not end",
         "a name of less than 64 characters", name == nullptr ? "NULL" : "no end");
  for (const char* at = name; *at != '\0'; ++at) {
    const bool good = std::islower(static_cast<unsigned char>(*at)) != 0 || *at == '_' ||
                      (at != name && std::isdigit(static_cast<unsigned char>(*at)) != 0);
    expect(good, concat("device_name is '", name, "'"),
           "lower case letters, digits and underscores, beginning with a letter", name);
  }
  expect(std::strncmp(name, "cpu", 3) != 0 && std::strncmp(name, "cuda", 4) != 0,
         concat("device_name is '", name, "'"), "not cpu* or cuda*", name);
  expect(table.description == nullptr || strnlen(table.description, 1024) < 1024,
         "description does not end", "less than 1024 characters", "no end");
  require_together(table, "host_alloc host_free");
  require_together(table, "graph_create graph_destroy graph_launch");
  if (table.launch != nullptr) require_together(table, "launch get_function module_unload");
  expect(
      table.launch == nullptr || table.module_load != nullptr || table.module_load_data != nullptr,
      "launch has no module to take functions from", "module_load, or module_load_data",
      "both are NULL");
  expect(table.graph_update_kernel == nullptr || table.graph_add_kernel != nullptr,
         "graph_update_kernel has no kernels to update", "graph_add_kernel", "NULL");
}

void count(Context& context) {
  const int32_t first = context.device_count();
  expect(first >= 1, "it has no device", "1 to 64", first);
  expect(first <= 64, concat("it has ", first, " devices, at most 64 are supported"), "1 to 64",
         first);
  const int32_t second = context.device_count();
  expect(first == second, "device_count changes from call to call", first, second);
}

void check_dtypes(const std::string& of, uint64_t dtypes) {
  if (dtypes == 0) return;
  const bool good = (dtypes & BRINGUP_DTYPE_INT64) != 0 && (dtypes & BRINGUP_DTYPE_BOOL) != 0;
  expect(good, concat("device_props: the dtypes", of, " lack int64 or bool"), "both bits are set",
         dtypes);
}

void properties(Context& context) {
  const int32_t devices = context.device_count();
  for (int32_t device = 0; device < devices; ++device) {
    const bringup_device_props props = context.props(device);
    const std::string of = " of device " + std::to_string(device);
    const auto flag = [&](const char* name, uint32_t value) {
      expect(value <= 1, concat("device_props: ", name, of, " is ", value), "0 or 1", value);
    };
    flag("supports_float64", props.supports_float64);
    flag("supports_int64", props.supports_int64);
    flag("host_visible_memory", props.host_visible_memory);
    flag("runs_host_code", props.runs_host_code);
    expect(props.host_visible_memory == 0 || context.raw().host_view != nullptr,
           concat("device_props: host_visible_memory", of, " is 1, and host_view is NULL"),
           "host_view", "NULL");
    const uint32_t alignment = props.alignment;
    expect(alignment == 0 || (alignment >= 64 && (alignment & (alignment - 1)) == 0),
           concat("device_props: the alignment", of, " is ", alignment),
           "0, or a power of two that is at least 64", alignment);
    expect(props.greatest_priority <= 0 && props.least_priority >= 0,
           concat("device_props: the priorities", of, " do not hold 0"),
           "greatest_priority <= 0 <= least_priority",
           concat(props.greatest_priority, " to ", props.least_priority));
    expect(strnlen(props.driver_version, sizeof props.driver_version) < sizeof props.driver_version,
           concat("device_props: driver_version", of, " does not end"), "NUL-terminated text",
           "no end");
    check_dtypes(of, props.dtypes);
    bringup_device_props again = context.props(device);
    expect(std::memcmp(again.name, props.name, sizeof props.name) == 0 &&
               again.total_memory == props.total_memory,
           concat("device_props", of, " changes from call to call"), "the same properties",
           "others");
  }
}

// The structure as the first version of the contract had it.
void old_properties(Context& context) {
  struct {
    bringup_device_props props;
    uint8_t behind[64];
  } given;
  std::memset(&given, 0x5a, sizeof given);
  const size_t size = offsetof(bringup_device_props, dtypes);
  given.props.struct_size = static_cast<uint32_t>(size);
  // Not through the kit's table of checks, which gives a structure of its own.
  const int32_t status = recorded_call(context.journal(), *find_field("device_props"),
                                       context.raw().device_props, 0, &given.props);
  expect(status == BRINGUP_OK, concat("device_props returned ", status_name(status)), "BRINGUP_OK",
         status_name(status));
  const auto* bytes = reinterpret_cast<const uint8_t*>(&given);
  for (size_t i = size; i < sizeof given; ++i) {
    expect(bytes[i] == 0x5a, concat("device_props wrote byte ", i, " of a structure of ", size),
           "nothing behind struct_size", bytes[i]);
  }
}

}  // namespace

std::vector<Check> table_checks() {
  return {
      {"table.functions", "bringup_driver_get",
       "Of functions that need each other all are there or none; device_name is lower case, not "
       "cpu* or cuda*.",
       functions},
      {"device.count", "device_count",
       "There is at least one device, and their number is constant.", count},
      {"device.properties", "device_props",
       "Texts end with NUL; flags are 0 or 1; the alignment is a power of two >= 64 or 0; "
       "greatest_priority <= 0 <= least_priority; int64 and bool exist.",
       properties},
      {"device.struct_size", "device_props", "struct_size is set by the caller: write no further.",
       old_properties},
  };
}

}  // namespace bringup::driver_check
