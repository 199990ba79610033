// Tensors of the two memories: a stretch of the device's memory, and a piece of the core's own.
#ifndef BRINGUP_ASCENDC_TENSOR_H_
#define BRINGUP_ASCENDC_TENSOR_H_

#include "bringup/ascendc/core.h"

namespace AscendC {

// `Element` elements in the device's memory, from SetGlobalBuffer on. Its size is known where the
// kernel says it; then what lies outside is refused.
template <class Element>
class GlobalTensor {
 public:
  using PrimType = Element;

  void SetGlobalBuffer(Element* address, uint64_t size) {
    address_ = address;
    size_ = size;
    bounded_ = true;
  }
  void SetGlobalBuffer(Element* address) {
    address_ = address;
    size_ = 0;
    bounded_ = false;
  }

  GlobalTensor operator[](uint64_t offset) const {
    check(offset, 0);
    GlobalTensor rest = *this;
    rest.address_ += offset;
    rest.size_ -= bounded_ ? offset : 0;
    return rest;
  }

  Element GetValue(uint64_t index) const {
    check(index, 1);
    return address_[index];
  }
  void SetValue(uint64_t index, Element value) {
    check(index, 1);
    address_[index] = value;
  }
  Element& operator()(uint64_t index) const {
    check(index, 1);
    return address_[index];
  }

  uint64_t GetSize() const { return size_; }
  Element* GetPhyAddr() const { return address_; }
  Element* GetPhyAddr(uint64_t offset) const { return address_ + offset; }

  // Refuses `count` elements from `offset` on that are not all in the tensor.
  void check(uint64_t offset, uint64_t count) const {
    if (address_ == nullptr && !bounded_) {
      bringup::ascendc::refuse("a GlobalTensor without SetGlobalBuffer");
    }
    if (bounded_ && (offset > size_ || count > size_ - offset)) {
      bringup::ascendc::refuse("elements %llu to %llu of a GlobalTensor of %llu",
                               static_cast<unsigned long long>(offset),
                               static_cast<unsigned long long>(offset + count),
                               static_cast<unsigned long long>(size_));
    }
  }

 private:
  Element* address_ = nullptr;
  uint64_t size_ = 0;
  bool bounded_ = false;
};

// `Element` elements on the chip: (part of) a buffer of a queue or a TBuf, which owns the memory.
template <class Element>
class LocalTensor {
 public:
  using PrimType = Element;

  LocalTensor() = default;
  LocalTensor(void* address, uint64_t bytes)
      : address_(static_cast<Element*>(address)), size_(bytes / sizeof(Element)) {}

  LocalTensor operator[](uint64_t offset) const {
    check(offset, 0);
    return LocalTensor(address_ + offset, (size_ - offset) * sizeof(Element));
  }

  Element GetValue(uint64_t index) const {
    check(index, 1);
    return address_[index];
  }
  void SetValue(uint64_t index, Element value) {
    check(index, 1);
    address_[index] = value;
  }
  Element& operator()(uint64_t index) const {
    check(index, 1);
    return address_[index];
  }

  template <class Other>
  LocalTensor<Other> ReinterpretCast() const {
    return LocalTensor<Other>(address_, size_ * sizeof(Element));
  }

  uint64_t GetSize() const { return size_; }
  Element* GetPhyAddr() const { return address_; }

  // Refuses `count` elements from `offset` on that are not all in the tensor.
  void check(uint64_t offset, uint64_t count) const {
    if (address_ == nullptr) bringup::ascendc::refuse("a LocalTensor that no queue or TBuf gave");
    if (offset > size_ || count > size_ - offset) {
      bringup::ascendc::refuse(
          "elements %llu to %llu of a LocalTensor of %llu", static_cast<unsigned long long>(offset),
          static_cast<unsigned long long>(offset + count), static_cast<unsigned long long>(size_));
    }
  }

 private:
  Element* address_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace AscendC

#endif  // BRINGUP_ASCENDC_TENSOR_H_
