#include "driver_check/table_functions.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "driver/functions.h"

namespace bringup::driver_check {
namespace {

#define BRINGUP_FIELD(name, parameters, ...) \
  Field{#name, offsetof(bringup_driver, name), parameters __VA_OPT__(, BRINGUP_HAS_##__VA_ARGS__)},
constexpr Field kFields[] = {BRINGUP_DRIVER_FUNCTIONS(BRINGUP_FIELD)
                                 Field{"last_error", offsetof(bringup_driver, last_error), ""}};
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
#define BRINGUP_NAME(name, parameters, group) \
  if (bit == BRINGUP_HAS_##group) return "BRINGUP_HAS_" #group;
  BRINGUP_DRIVER_GROUPED(BRINGUP_NAME)
#undef BRINGUP_NAME
  return "an unknown bit";
}

}  // namespace bringup::driver_check
