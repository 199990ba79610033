// The words of the language, the block that runs, and how a kernel's misuse becomes an error.
#ifndef BRINGUP_ASCENDC_CORE_H_
#define BRINGUP_ASCENDC_CORE_H_

#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "bringup/kernel.h"

#define __global__
#define __aicore__
#define __vector__
#define __gm__
#define __ubuf__
#define GM_ADDR uint8_t*

#define KERNEL_TASK_TYPE_DEFAULT(type)  // every core is of one kind

// One core of a simulated NPU computes everything: it is a vector core.
#define ASCEND_IS_AIV true
#define ASCEND_IS_AIC false

using half = bringup::half;
using bfloat16_t = bringup::bfloat16;

namespace AscendC {

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };

enum class HardEvent : uint8_t {
  MTE2_V,
  V_MTE2,
  MTE3_V,
  V_MTE3,
  MTE2_MTE3,
  MTE3_MTE2,
  V_V,
  S_V,
  V_S
};

}  // namespace AscendC

namespace bringup {
namespace ascendc {

// The on-chip memory of one core: 192 KiB, as on the vendor's 910B.
#ifndef BRINGUP_ASCENDC_ON_CHIP_BYTES
#define BRINGUP_ASCENDC_ON_CHIP_BYTES (192 * 1024)
#endif
constexpr uint64_t kOnChipBytes = BRINGUP_ASCENDC_ON_CHIP_BYTES;
constexpr uint64_t kUnit = 32;  // bytes that a copy moves at least, and the alignment on chip

// What a kernel did that the hardware does not allow.
struct Misuse {
  char words[256];
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void refuse(const char* format, ...) {
  Misuse misuse;
  va_list values;
  va_start(values, format);
  std::vsnprintf(misuse.words, sizeof misuse.words, format, values);
  va_end(values);
  throw misuse;
}

// The block that this thread runs.
struct Block {
  int64_t index = 0;
  int64_t count = 1;
};

inline Block& block() {
  thread_local Block running;
  return running;
}

}  // namespace ascendc
}  // namespace bringup

namespace AscendC {

inline int64_t GetBlockIdx() { return bringup::ascendc::block().index; }
inline int64_t GetBlockNum() { return bringup::ascendc::block().count; }
inline int64_t GetSubBlockIdx() { return 0; }
inline int64_t GetSubBlockNum() { return 1; }

using ::printf;

template <pipe_t>
inline void PipeBarrier() {}
template <HardEvent>
inline void SetFlag(int32_t) {}
template <HardEvent>
inline void WaitFlag(int32_t) {}

}  // namespace AscendC

inline void pipe_barrier(AscendC::pipe_t) {}

#endif  // BRINGUP_ASCENDC_CORE_H_
