// The candidate that came closest to a match, and the one thing that was wrong with it.
#pragma once

#include <cstdint>
#include <string>

namespace bringup::engine {

struct NearMiss {
  std::string pattern;
  std::string node;  // the target node that did not fit; empty: the graph has no candidate at all
  std::string reason;
  std::string expected;  // what the pattern wants there, and what stands there; may be empty
  std::string got;
  uint32_t matched = 0;  // how many of the pattern's `size` nodes had been found by then
  uint32_t size = 0;

  std::string text() const;
};

}  // namespace bringup::engine
