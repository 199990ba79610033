// What a kernel with plain values says of a call that it cannot compute, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bringup::runtime {

// The rule of fault() in args= whose number a kernel wrote, "{}" replaced by the value it wrote.
inline std::string broken_rule(const std::vector<std::string>& rules, int32_t number,
                               const int64_t* value = nullptr) {
  const bool is_known = number >= 1 && static_cast<size_t>(number) <= rules.size();
  if (is_known) {
    std::string rule = rules[static_cast<size_t>(number) - 1];
    const size_t place = value == nullptr ? std::string::npos : rule.find("{}");
    if (place != std::string::npos) rule.replace(place, 2, std::to_string(*value));
    return rule;
  }
  return "it wrote " + std::to_string(number) + " into its fault word, and has " +
         std::to_string(rules.size()) + " rules";
}

}  // namespace bringup::runtime
