// Copies between the device's memory and the chip. DataCopy moves whole units of 32 bytes;
// DataCopyPad moves any number of bytes and pads what remains of a unit.
#ifndef BRINGUP_ASCENDC_DATA_COPY_H_
#define BRINGUP_ASCENDC_DATA_COPY_H_

#include "bringup/ascendc/tensor.h"

namespace AscendC {

// `blockCount` stretches of `blockLen` units; strides are the units between the end of one and the
// beginning of the next.
struct DataCopyParams {
  uint16_t blockCount = 1;
  uint16_t blockLen = 0;
  uint16_t srcStride = 0;
  uint16_t dstStride = 0;
};

// The same in bytes for the device's memory; on the chip strides are units.
struct DataCopyExtParams {
  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;
};

template <class Element>
struct DataCopyPadExtParams {
  bool isPad = false;
  uint8_t leftPadding = 0;  // elements
  uint8_t rightPadding = 0;
  Element paddingValue = Element(0);
};

}  // namespace AscendC

namespace bringup {
namespace ascendc {

template <class Tensor>
void copied_address_is_aligned(const Tensor& tensor, const char* verb) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.GetPhyAddr());
  if (address % kUnit != 0) {
    refuse("%s: on the chip it begins %u bytes behind a multiple of 32", verb,
           static_cast<unsigned>(address % kUnit));
  }
}

// `blocks` stretches of `bytes`; the steps are from one's beginning to the next one's.
template <class Target, class Source>
void move(Target& target, const Source& source, uint64_t blocks, uint64_t bytes,
          uint64_t target_step, uint64_t source_step) {
  constexpr uint64_t kElement = sizeof(typename Target::PrimType);
  if (blocks == 0 || bytes == 0) return;
  const auto elements = [](uint64_t count) { return (count + kElement - 1) / kElement; };
  target.check(0, elements((blocks - 1) * target_step + bytes));
  source.check(0, elements((blocks - 1) * source_step + bytes));
  auto* to = reinterpret_cast<uint8_t*>(target.GetPhyAddr());
  const auto* from = reinterpret_cast<const uint8_t*>(source.GetPhyAddr());
  for (uint64_t i = 0; i < blocks; ++i) {
    __builtin_memmove(to + i * target_step, from + i * source_step, bytes);
  }
}

template <class Target, class Source>
void copy_units(Target& target, const Source& source, const AscendC::DataCopyParams& params) {
  move(target, source, params.blockCount, params.blockLen * kUnit,
       (uint64_t(params.blockLen) + params.dstStride) * kUnit,
       (uint64_t(params.blockLen) + params.srcStride) * kUnit);
}

template <class Element, class Target, class Source>
void copy_elements(Target& target, const Source& source, uint32_t count) {
  const uint64_t bytes = uint64_t(count) * sizeof(Element);
  if (bytes % kUnit != 0) {
    refuse("DataCopy: %u elements are %llu bytes, which is no multiple of 32; use DataCopyPad",
           count, static_cast<unsigned long long>(bytes));
  }
  move(target, source, 1, bytes, bytes, bytes);
}

}  // namespace ascendc
}  // namespace bringup

namespace AscendC {

template <class Element>
void DataCopy(LocalTensor<Element> target, const GlobalTensor<Element>& source, uint32_t count) {
  bringup::ascendc::copied_address_is_aligned(target, "DataCopy");
  bringup::ascendc::copy_elements<Element>(target, source, count);
}
template <class Element>
void DataCopy(GlobalTensor<Element> target, const LocalTensor<Element>& source, uint32_t count) {
  bringup::ascendc::copied_address_is_aligned(source, "DataCopy");
  bringup::ascendc::copy_elements<Element>(target, source, count);
}
template <class Element>
void DataCopy(LocalTensor<Element> target, const LocalTensor<Element>& source, uint32_t count) {
  bringup::ascendc::copied_address_is_aligned(target, "DataCopy");
  bringup::ascendc::copied_address_is_aligned(source, "DataCopy");
  bringup::ascendc::copy_elements<Element>(target, source, count);
}

template <class Element>
void DataCopy(LocalTensor<Element> target, const GlobalTensor<Element>& source,
              const DataCopyParams& params) {
  bringup::ascendc::copied_address_is_aligned(target, "DataCopy");
  bringup::ascendc::copy_units(target, source, params);
}
template <class Element>
void DataCopy(GlobalTensor<Element> target, const LocalTensor<Element>& source,
              const DataCopyParams& params) {
  bringup::ascendc::copied_address_is_aligned(source, "DataCopy");
  bringup::ascendc::copy_units(target, source, params);
}

// Each stretch lands on a unit of its own; the rest of its last unit is padding.
template <class Element>
void DataCopyPad(LocalTensor<Element> target, const GlobalTensor<Element>& source,
                 const DataCopyExtParams& params, const DataCopyPadExtParams<Element>& padding) {
  using namespace bringup::ascendc;
  copied_address_is_aligned(target, "DataCopyPad");
  if (params.blockLen % sizeof(Element) != 0) {
    refuse("DataCopyPad: %u bytes are no whole elements of %zu", params.blockLen, sizeof(Element));
  }
  const uint64_t read = params.blockLen / sizeof(Element);
  const uint64_t left = padding.isPad ? padding.leftPadding : 0;
  const uint64_t right = padding.isPad ? padding.rightPadding : 0;
  const uint64_t unit = kUnit / sizeof(Element);
  const uint64_t row = (left + read + right + unit - 1) / unit * unit;
  for (uint64_t i = 0; i < params.blockCount; ++i) {
    LocalTensor<Element> to = target[i * (row + params.dstStride * unit)];
    const GlobalTensor<Element> from =
        source[i * (params.blockLen + params.srcStride) / sizeof(Element)];
    to.check(0, row);
    from.check(0, read);
    for (uint64_t j = 0; j < row; ++j) {
      const bool inside = left <= j && j < left + read;
      to(j) = inside ? from.GetValue(j - left) : padding.paddingValue;
    }
  }
}

template <class Element>
void DataCopyPad(GlobalTensor<Element> target, const LocalTensor<Element>& source,
                 const DataCopyExtParams& params) {
  using namespace bringup::ascendc;
  copied_address_is_aligned(source, "DataCopyPad");
  const uint64_t row = (params.blockLen + kUnit - 1) / kUnit * kUnit;
  move(target, source, params.blockCount, params.blockLen, params.blockLen + params.dstStride,
       row + params.srcStride * kUnit);
}

}  // namespace AscendC

#endif  // BRINGUP_ASCENDC_DATA_COPY_H_
