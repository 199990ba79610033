// What a kernel with plain values says of a call that it cannot compute, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bringup::runtime {

// The rule, of those that fault() in args= lists, whose number a kernel wrote into its fault word.
inline std::string broken_rule(const std::vector<std::string>& rules, int32_t number) {
  const bool is_known = number >= 1 && static_cast<size_t>(number) <= rules.size();
  if (is_known) return rules[static_cast<size_t>(number) - 1];
  return "it wrote " + std::to_string(number) + " into its fault word, and has " +
         std::to_string(rules.size()) + " rules";
}

}  // namespace bringup::runtime
