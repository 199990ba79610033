// The functions of a driver's table: their names, their parameters' and what announces them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bringup/driver.h"

namespace bringup::driver_check {

struct Field {
  const char* name;
  size_t offset;            // in bringup_driver
  const char* parameters;   // separated by spaces
  uint64_t capability = 0;  // the bit that announces it; 0: it is announced by being there
};

const Field* find_field(size_t offset);
const Field* find_field(const char* name);
// Whether the table has this function, and its capability bit is set where there is one.
bool announced(const bringup_driver& table, const Field& field);
bool is_null(const bringup_driver& table, const Field& field);
// "BRINGUP_HAS_RESET" of its bit.
const char* capability_name(uint64_t bit);

}  // namespace bringup::driver_check
