// The dtypes that a driver's properties have a bit for, as torch has them.
#pragma once

#include <c10/core/ScalarType.h>

#include <utility>

#include "driver/dtypes.h"

namespace bringup::torch_ext {

inline constexpr std::pair<uint64_t, c10::ScalarType> kDtypeBits[] = {
#define BRINGUP_DTYPE(bit, name, dtype, code, bits) {BRINGUP_DTYPE_##bit, c10::ScalarType::dtype},
    BRINGUP_DTYPES(BRINGUP_DTYPE)
#undef BRINGUP_DTYPE
};

}  // namespace bringup::torch_ext
