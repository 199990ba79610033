// Reading a driver's function table, and refusing one that cannot be used. No torch: the kit and
// the programs that look at a driver before or without torch read it alike.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "bringup/driver.h"

namespace bringup::driver {

// Why a driver cannot be used, to be read after "the driver X cannot be used: ".
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What `get` gives, completed with NULL to the size that this build knows. A table that is too
// small, of another version, without a required function, or without a function of a group that its
// capabilities announce throws Refused. Of the capabilities those remain whose functions are all
// there; functions of other groups are NULL. `get` NULL: the library exports no such function.
bringup_driver read_table(bringup_driver_get_fn get);
bringup_driver read_table(const bringup_driver* given);

// What a driver says of itself and of its devices, and what can be seen in the table.
struct Description {
  std::string device_name;
  std::string description;
  std::vector<bringup_device_props> devices;
};

// Asks a table that checked() made; calls init first where the driver has one, and shutdown where
// it is refused afterwards. Throws Refused with the driver's words.
Description start(const bringup_driver& table, int32_t most_devices);

// Those that the table has, separated by spaces.
std::string function_names(const bringup_driver& table);

const char* status_name(int32_t status) noexcept;  // "out of memory"

// The driver's words for the last failure on this thread, with its error detail; without any, what
// the status means.
std::string error_text(const bringup_driver& table, int32_t status);

}  // namespace bringup::driver
