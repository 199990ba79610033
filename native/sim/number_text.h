// Numbers as the simulator's settings write them.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bringup::sim {

// Digits and nothing else.
inline std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// A number of bytes from 1 to 16 TiB, with an optional K, M or G behind it.
inline std::optional<uint64_t> byte_count(std::string_view text) {
  constexpr std::string_view kUnits = "KMG";
  constexpr uint64_t kLargest = uint64_t{1} << 44;
  const size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  const unsigned shift = unit == kUnits.npos ? 0 : 10 * (static_cast<unsigned>(unit) + 1);
  if (shift > 0) text.remove_suffix(1);
  const auto number = whole_number(text);
  if (!number || *number == 0 || *number > kLargest >> shift) return std::nullopt;
  return *number << shift;
}

}  // namespace bringup::sim
