// Numbers as the simulator's settings write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace bringup::sim {

// Digits and nothing else.
std::optional<uint64_t> whole_number(std::string_view text);

// A number of bytes from 1 to 16 TiB, with an optional K, M or G behind it.
std::optional<uint64_t> byte_count(std::string_view text);

}  // namespace bringup::sim
