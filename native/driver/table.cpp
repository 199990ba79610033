#include "driver/table.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "driver/functions.h"

namespace bringup::driver {
namespace {

#define BRINGUP_END(name) offsetof(bringup_driver, name) + sizeof(bringup_driver::name)

// What follows event_query is not required.
constexpr size_t kSmallestTable = BRINGUP_END(event_query);

void check_required(const bringup_driver& table) {
  const auto need = [](bool is_there, const char* name) {
    if (is_there) return;
    throw Refused("its required function '" + std::string(name) +
                  "' is NULL (bringup/driver.h says which functions are required)");
  };
#define BRINGUP_NEED(name, ...) need(table.name != nullptr, #name);
  BRINGUP_DRIVER_REQUIRED(BRINGUP_NEED)
#undef BRINGUP_NEED
}

// Keeps of the announced groups those that lie within the driver's table and are complete there.
void check_groups(bringup_driver& table, size_t given_bytes) {
  const uint64_t announced = table.capabilities;
  uint64_t known = 0;
  uint64_t beyond = 0;  // groups that the driver's header did not have
#define BRINGUP_WITHIN(name, parameters, group) \
  known |= BRINGUP_HAS_##group;                 \
  if (given_bytes < BRINGUP_END(name)) beyond |= BRINGUP_HAS_##group;
  BRINGUP_DRIVER_GROUPED(BRINGUP_WITHIN)
#undef BRINGUP_WITHIN
  table.capabilities = announced & known & ~beyond;
#define BRINGUP_GROUP(name, parameters, group)                                                 \
  if ((table.capabilities & BRINGUP_HAS_##group) == 0) {                                       \
    table.name = nullptr;                                                                      \
  } else if (table.name == nullptr) {                                                          \
    throw Refused("its capabilities announce BRINGUP_HAS_" #group ", but its function '" #name \
                  "' is NULL");                                                                \
  }
  BRINGUP_DRIVER_GROUPED(BRINGUP_GROUP)
#undef BRINGUP_GROUP
}

std::string read_text(const char* text, const char* what) {
  constexpr size_t kMost = 1024;
  if (text == nullptr) return "";
  const size_t length = strnlen(text, kMost);
  if (length == kMost) throw Refused(std::string("its ") + what + " does not end");
  return {text, length};
}

// What the driver knows beyond its words, or nothing.
std::string detail_text(const bringup_driver& table, const std::string& words) {
  if (table.error_detail == nullptr) return "";
  bringup_error_detail detail{};
  detail.struct_size = sizeof detail;
  detail.device = -1;
  if (table.error_detail(&detail) != BRINGUP_OK) {
    const char* why = table.last_error != nullptr ? table.last_error() : nullptr;
    return " [no detail: " + std::string(why != nullptr ? why : "error_detail failed") + "]";
  }
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (detail.code != 0) add("code " + std::to_string(detail.code));
  const std::string device = "device " + std::to_string(detail.device);
  const auto is_new = [&](const std::string& part) {
    return words.find(part) == std::string::npos;
  };
  if (detail.device >= 0 && is_new(device)) add(device);
  if (detail.kernel[0] != '\0' && is_new(detail.kernel))
    add("in '" + std::string(detail.kernel) + "'");
  if (detail.text[0] != '\0' && is_new(detail.text)) add(detail.text);
  return text.empty() ? "" : " [driver's detail: " + text + "]";
}

}  // namespace

bringup_driver read_table(bringup_driver_get_fn get) {
  if (get == nullptr) throw Refused("it exports no function 'bringup_driver_get'");
  return read_table(get(BRINGUP_DRIVER_ABI));
}

bringup_driver read_table(const bringup_driver* given) {
  if (given == nullptr) {
    throw Refused("it does not speak driver ABI " + std::to_string(BRINGUP_DRIVER_ABI));
  }
  if (given->struct_size < kSmallestTable) {
    throw Refused("its function table is too small: " + std::to_string(given->struct_size) +
                  " bytes, at least " + std::to_string(kSmallestTable) + " are needed");
  }
  if (given->abi_version != BRINGUP_DRIVER_ABI) {
    throw Refused("it is written for driver ABI " + std::to_string(given->abi_version) +
                  ", this is driver ABI " + std::to_string(BRINGUP_DRIVER_ABI));
  }
  bringup_driver table{};
  const size_t bytes = std::min<size_t>(given->struct_size, sizeof table);
  std::memcpy(&table, given, bytes);
  table.struct_size = sizeof table;
  check_required(table);
  check_groups(table, bytes);
  return table;
}

namespace {

void must(const bringup_driver& table, int32_t status, const char* what) {
  if (status != BRINGUP_OK) throw Refused(std::string(what) + ": " + error_text(table, status));
}

std::vector<bringup_device_props> ask_devices(const bringup_driver& table, int32_t most_devices) {
  int32_t count = 0;
  must(table, table.device_count(&count), "device_count");
  if (count < 1) throw Refused("it has no device");
  if (count > most_devices) {
    throw Refused("it has " + std::to_string(count) + " devices, at most " +
                  std::to_string(most_devices) + " are supported");
  }
  std::vector<bringup_device_props> devices(static_cast<size_t>(count));
  for (int32_t device = 0; device < count; ++device) {
    bringup_device_props& props = devices[static_cast<size_t>(device)];
    props.struct_size = sizeof props;
    must(table, table.device_props(device, &props), "device_props");
  }
  return devices;
}

}  // namespace

Description start(const bringup_driver& table, int32_t most_devices) {
  Description found;
  found.device_name = read_text(table.device_name, "device_name");
  found.description = read_text(table.description, "description");
  if (table.init != nullptr) must(table, table.init(), "init");
  try {
    found.devices = ask_devices(table, most_devices);
  } catch (...) {
    if (table.shutdown != nullptr) table.shutdown();
    throw;
  }
  return found;
}

std::string function_names(const bringup_driver& table) {
  std::string names;
#define BRINGUP_NAMED(function, ...) \
  if (table.function != nullptr) names += (names.empty() ? "" : " ") + std::string(#function);
  BRINGUP_DRIVER_FUNCTIONS(BRINGUP_NAMED)
#undef BRINGUP_NAMED
  return names;
}

const char* status_name(int32_t status) noexcept {
  constexpr const char* kNames[] = {"ok",          "invalid argument", "out of memory", "not ready",
                                    "unsupported", "device lost",      "kernel failed", "error",
                                    "timeout"};
  static_assert(std::size(kNames) == BRINGUP_TIMEOUT + 1);
  return status >= 0 && status <= BRINGUP_TIMEOUT ? kNames[status] : "unknown status";
}

std::string error_text(const bringup_driver& table, int32_t status) {
  // Copied before the next call: the driver's text is valid until then.
  const char* said = table.last_error != nullptr ? table.last_error() : nullptr;
  std::string text = said != nullptr ? said : "";
  if (text.empty()) {
    text = std::string(status_name(status)) + " (status " + std::to_string(status) + ")";
  }
  return text + detail_text(table, text);
}

}  // namespace bringup::driver
