// One line of JSON, printed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace bringup::driver_check {

class JsonLine {
 public:
  JsonLine& add(const char* key, const std::string& value) {
    begin(key);
    text_ += quoted(value);
    return *this;
  }
  JsonLine& add(const char* key, double value) {
    char number[48];
    std::snprintf(number, sizeof number, "%.9g", value);
    begin(key);
    text_ += number;
    return *this;
  }
  JsonLine& add_integer(const char* key, uint64_t value) {
    begin(key);
    text_ += std::to_string(value);
    return *this;
  }
  JsonLine& add(const char* key, const std::vector<std::string>& values) {
    begin(key);
    text_ += '[';
    for (size_t i = 0; i < values.size(); ++i) text_ += (i > 0 ? ", " : "") + quoted(values[i]);
    text_ += ']';
    return *this;
  }
  void print() const {
    std::printf("{%s}\n", text_.c_str());
    std::fflush(stdout);
  }

 private:
  void begin(const char* key) {
    if (!text_.empty()) text_ += ", ";
    text_ += quoted(key) + ": ";
  }
  // Bytes that are no ASCII, as a driver's text may have them, become "?": what is printed is valid
  // in any case.
  static std::string quoted(const std::string& value) {
    std::string text = "\"";
    for (const char raw : value) {
      const auto byte = static_cast<unsigned char>(raw);
      if (raw == '"' || raw == '\\') {
        text += '\\';
        text += raw;
      } else if (byte < 0x20) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        text += escaped;
      } else {
        text += byte < 0x7f ? raw : '?';
      }
    }
    return text + "\"";
  }

  std::string text_;
};

}  // namespace bringup::driver_check
