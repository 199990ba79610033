// Strings as numbers: names, operator types and symbolic expressions are compared by id.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace bringup::engine {

using StringId = uint32_t;
inline constexpr StringId kEmptyString = 0;
inline constexpr StringId kNoString = UINT32_MAX;

// Process-wide and append-only: an id's text never moves. Any thread; `text` takes no lock.
class Strings {
 public:
  // The id of `text`; the same for equal texts. Throws std::bad_alloc.
  static StringId intern(std::string_view text);
  // The id of `text` if it was interned.
  static std::optional<StringId> find(std::string_view text);
  // The text of an id that `intern` gave out (of kNoString: ""). A NUL follows it.
  static std::string_view text(StringId id) noexcept;
};

}  // namespace bringup::engine
