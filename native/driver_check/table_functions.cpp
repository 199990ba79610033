#include "driver_check/table_functions.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "driver/functions.h"
#include "driver/trace_parameters.h"

namespace bringup::driver_check {
namespace {

#define BRINGUP_FIELD(name, capability) \
  Field{#name, offsetof(bringup_driver, name), driver::parameters::name.data(), capability},
#define BRINGUP_FIELD_UNGROUPED(name) BRINGUP_FIELD(name, 0)
#define BRINGUP_FIELD_GROUPED(group, name) BRINGUP_FIELD(name, BRINGUP_HAS_##group)
constexpr Field kFields[] = {
    BRINGUP_DRIVER_UNGROUPED(BRINGUP_FIELD_UNGROUPED) BRINGUP_DRIVER_GROUPED(BRINGUP_FIELD_GROUPED)
        Field{"last_error", offsetof(bringup_driver, last_error), "", 0}};
#undef BRINGUP_FIELD_GROUPED
#undef BRINGUP_FIELD_UNGROUPED
#undef BRINGUP_FIELD

}  // namespace

const Field* find_field(size_t offset) {
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const Field& field) { return field.offset == offset; });
  return found != std::end(kFields) ? found : nullptr;
}

const Field* find_field(const char* name) {
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& field) {
    return std::strcmp(field.name, name) == 0;
  });
  return found != std::end(kFields) ? found : nullptr;
}

bool is_null(const bringup_driver& table, const Field& field) {
  void* function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + field.offset, sizeof function);
  return function == nullptr;
}

bool announced(const bringup_driver& table, const Field& field) {
  const bool has_bit = field.capability == 0 || (table.capabilities & field.capability) != 0;
  return has_bit && !is_null(table, field);
}

const char* capability_name(uint64_t bit) {
#define BRINGUP_NAME(group) \
  if (bit == BRINGUP_HAS_##group) return "BRINGUP_HAS_" #group;
  BRINGUP_DRIVER_GROUPS(BRINGUP_NAME)
#undef BRINGUP_NAME
  return "an unknown bit";
}

}  // namespace bringup::driver_check
