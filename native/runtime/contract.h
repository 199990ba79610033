// The only source of the numbers of contracts, variants and gradients, for Python and libtorch.
#pragma once

#include <cstdint>

#include "runtime/variant_table.h"

namespace bringup::runtime {

// What a check of an input contract compares. kKernel: what the kernel itself looks at.
enum class CheckKind : uint8_t { kSameShape, kSameDtype, kShape, kDtype, kLength, kRank, kKernel };

// What a field of a variant's key holds.
enum class KeyFieldKind : uint8_t { kDtype, kLayout, kChoice, kBucket };

// Where an argument of a backward operator comes from.
enum class SourceKind : uint8_t { kGrad, kInput, kOutput, kConstant, kMask };

// How the last two dimensions of a tensor lie in memory; the numbers are those of params.h.
enum class Layout : uint8_t { kRow = 0, kColumn = 1, kStrided = 2, kNz = 3 };

// The widths of what every key holds, of two kinds of fields, and what is left for all fields.
inline constexpr int kOperatorBits = 20;
inline constexpr int kDeviceTypeBits = 5;
inline constexpr int kDeviceModelBits = 6;  // of devices of one type that need code of their own
inline constexpr int kDtypeBits = 7;
inline constexpr int kLayoutBits = 2;
inline constexpr int kFieldBits =
    KeyPacker::kBits - kOperatorBits - kDeviceTypeBits - kDeviceModelBits;

}  // namespace bringup::runtime
