// Texts of parts.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace bringup {

inline void append_part(std::string& text, std::string_view part) { text.append(part); }
template <class Number>
  requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>)
void append_part(std::string& text, Number number) {
  static_assert(!std::is_same_v<Number, char>, "a text of one character is a text");
  text.append(std::to_string(number));
}

// All parts, texts and numbers, one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

}  // namespace bringup
