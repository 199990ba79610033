// What is never destroyed: calls come until the very end of the process.
#pragma once

#include <utility>

namespace bringup {

// The one object of its type, made by the first call.
template <class T, class... Arguments>
T& forever(Arguments&&... arguments) {
  static T* const one = new T(std::forward<Arguments>(arguments)...);
  return *one;
}

}  // namespace bringup
