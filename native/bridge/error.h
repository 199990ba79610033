// Why the bridge cannot do what it was asked for.
#pragma once

#include <string>

namespace bringup::bridge {

struct BridgeError {
  std::string text;
};

}  // namespace bringup::bridge
