#include "engine/util/handle_number.h"

#include <atomic>

namespace bringup::engine {

uint64_t next_handle() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace bringup::engine
