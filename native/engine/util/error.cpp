#include "engine/util/error.h"

namespace bringup::engine {

std::string in_quotes(std::string_view name) {
  std::string shown;
  shown.reserve(name.size() + 2);
  shown.push_back('\'');
  shown.append(name);
  shown.push_back('\'');
  return shown;
}

}  // namespace bringup::engine
