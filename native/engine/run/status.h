// The codes of the engine's errors as the C API gives them.
#pragma once

#include <cstdint>

#include "engine/util/error.h"

namespace bringup::engine {

// A bringup_engine_status.
int32_t status_of(ErrorCode code);

}  // namespace bringup::engine
