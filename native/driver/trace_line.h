// One line of a trace: JSON, written from left to right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bringup/driver.h"

namespace bringup::driver {

class TraceLine {
 public:
  explicit TraceLine(std::string& text) : text_(text) { text_.assign(1, '{'); }

  void open(std::string_view name, char bracket) {  // { or [
    key(name);
    text_ += bracket;
  }
  void open(char bracket) {
    comma();
    text_ += bracket;
  }
  void close(char bracket) { text_ += bracket; }
  std::string_view finish() {
    text_ += "}\n";
    return text_;
  }

  template <class T>
  void field(std::string_view name, const T& value) {
    key(name);
    put(value);
  }
  template <class T>
  void element(const T& value) {
    comma();
    put(value);
  }

 private:
  void comma() {
    const char last = text_.back();
    if (last != '{' && last != '[') text_ += ',';
  }
  void key(std::string_view name) {
    comma();
    put(name);
    text_ += ':';
  }
  void put(std::string_view text);
  void put(const std::string& text) { put(std::string_view(text)); }
  void put(const char* text) { put(std::string_view(text != nullptr ? text : "")); }
  void put(double number);
  void put(bool value) { text_ += value ? "true" : "false"; }
  template <class Integer>
    requires std::is_integral_v<Integer>
  void put(Integer number) {
    text_ += std::to_string(number);
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void put(Enum value) {
    text_ += std::to_string(static_cast<int64_t>(value));
  }
  // Addresses, handles and functions.
  template <class T>
  void put(T* address) {
    put_address(reinterpret_cast<uintptr_t>(address));
  }
  void put_address(uintptr_t address);

  std::string& text_;
};

// What structures hold, as fields of the line's open object.
void put_fields(TraceLine& line, const bringup_device_props& props);
void put_fields(TraceLine& line, const bringup_error_detail& detail);
void put_fields(TraceLine& line, const bringup_pointer_info& info);
void put_fields(TraceLine& line, const bringup_launch& launch);
void put_fields(TraceLine& line, const bringup_launch_values_args& launch);

std::string hex_of(const void* bytes, size_t size);

}  // namespace bringup::driver
