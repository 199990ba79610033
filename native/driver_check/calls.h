// Calls of a driver that are written down: names, arguments, what came back.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

#include "bringup/driver.h"
#include "driver_check/journal.h"
#include "driver_check/table_functions.h"

namespace bringup::driver_check {

const char* status_name(int32_t status);  // "BRINGUP_OK"; "status 57" of one that there is not
std::string hex(const void* address);

// The value of an argument. Of what a call fills, what is there afterwards.
template <class Value>
std::string argument_text(Value value) {
  if constexpr (std::is_same_v<Value, bringup_copy_kind>) {
    constexpr const char* kNames[] = {"", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE"};
    return value >= 1 && value <= 3 ? kNames[value] : std::to_string(static_cast<int>(value));
  } else if constexpr (std::is_pointer_v<Value>) {
    return hex(reinterpret_cast<const void*>(value));
  } else {
    return std::to_string(value);
  }
}

template <class Value>
constexpr bool is_result =
    std::is_pointer_v<Value> && !std::is_const_v<std::remove_pointer_t<Value>> &&
    (std::is_pointer_v<std::remove_pointer_t<Value>> ||
     std::is_arithmetic_v<std::remove_pointer_t<Value>>);

// The next name of a list that is separated by spaces.
std::string next_name(const char*& names);

template <class Value>
void add_argument(std::string& text, const char*& names, Value value) {
  if (!text.empty()) text += ", ";
  text += next_name(names);
  text += '=';
  text += is_result<Value> ? "&" : argument_text(value);
}

template <class Value>
void add_result(std::string& text, const char*& names, Value value) {
  const std::string name = next_name(names);
  if constexpr (is_result<Value>) {
    if (value == nullptr) return;
    text += ", ";
    text += name;
    text += " ";
    text += argument_text(*value);
  }
}

// Calls `function` and writes it down in `journal`.
template <class... Parameters>
int32_t recorded_call(Journal& journal, const Field& field, int32_t (*function)(Parameters...),
                      std::type_identity_t<Parameters>... arguments) {
  std::string text;
  [[maybe_unused]] const char* names = field.parameters;
  (add_argument<Parameters>(text, names, arguments), ...);
  CallLine* line = journal.call(field.name, std::string(field.name) + "(" + text + ")");
  set_activity(field.name);
  const int32_t status = function(arguments...);
  set_activity(nullptr);
  std::string result = std::string(" -> ") + status_name(status);
  if (status == BRINGUP_OK) {
    names = field.parameters;
    (add_result<Parameters>(result, names, arguments), ...);
  }
  Journal::done(line, result);
  return status;
}

}  // namespace bringup::driver_check
