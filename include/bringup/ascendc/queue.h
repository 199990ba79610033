// On-chip memory: a TPipe gives it to queues and buffers, queues hand it from one step of a kernel
// to the next.
#ifndef BRINGUP_ASCENDC_QUEUE_H_
#define BRINGUP_ASCENDC_QUEUE_H_

#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "bringup/ascendc/tensor.h"

namespace bringup {
namespace ascendc {

struct FreeBytes {
  void operator()(void* memory) const { std::free(memory); }
};
using Bytes = std::unique_ptr<uint8_t, FreeBytes>;

constexpr uint64_t rounded(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// Memory that holds no values yet: bytes of ones, which are NaN in every float format, so that a
// kernel that reads what it has not written shows it.
inline Bytes unwritten(uint64_t bytes) {
  Bytes memory(static_cast<uint8_t*>(std::aligned_alloc(kUnit, bytes)));
  if (memory == nullptr)
    refuse("the host has no %llu bytes for a buffer", static_cast<unsigned long long>(bytes));
  __builtin_memset(memory.get(), 0xff, bytes);
  return memory;
}

}  // namespace ascendc
}  // namespace bringup

namespace AscendC {

// A queue between two steps: AllocTensor, EnQue, DeQue, FreeTensor, in this order for each buffer.
template <TPosition source, TPosition target, int32_t depth, auto... mask>
class TQueBind {
 public:
  template <class Element>
  LocalTensor<Element> AllocTensor() {
    if (free_.empty()) {
      bringup::ascendc::refuse(
          "AllocTensor: all %zu buffers of the queue are in use; FreeTensor one", buffers_.size());
    }
    uint8_t* buffer = free_.back();
    free_.pop_back();
    return LocalTensor<Element>(buffer, bytes_);
  }

  template <class Element>
  bool EnQue(const LocalTensor<Element>& tensor) {
    uint8_t* buffer = owned(tensor, "EnQue");
    if (waiting_.size() >= buffers_.size()) {
      bringup::ascendc::refuse("EnQue: %zu tensors wait in a queue of as many buffers",
                               waiting_.size());
    }
    waiting_.push_back(buffer);
    return true;
  }

  template <class Element>
  LocalTensor<Element> DeQue() {
    if (waiting_.empty()) bringup::ascendc::refuse("DeQue: the queue is empty; EnQue comes first");
    uint8_t* buffer = waiting_.front();
    waiting_.pop_front();
    return LocalTensor<Element>(buffer, bytes_);
  }

  template <class Element>
  void FreeTensor(const LocalTensor<Element>& tensor) {
    uint8_t* buffer = owned(tensor, "FreeTensor");
    for (uint8_t* other : free_) {
      if (other == buffer) bringup::ascendc::refuse("FreeTensor: the tensor is free already");
    }
    free_.push_back(buffer);
  }

  bool VacantInQue() const { return !free_.empty(); }
  bool HasTensorInQue() const { return !waiting_.empty(); }
  int32_t GetTensorCountInQue() const { return static_cast<int32_t>(waiting_.size()); }

 private:
  friend class TPipe;

  template <class Element>
  uint8_t* owned(const LocalTensor<Element>& tensor, const char* verb) const {
    auto* address = reinterpret_cast<uint8_t*>(tensor.GetPhyAddr());
    for (const auto& buffer : buffers_) {
      if (buffer.get() == address) return address;
    }
    bringup::ascendc::refuse("%s: the tensor is not one of this queue's", verb);
  }

  std::vector<bringup::ascendc::Bytes> buffers_;
  std::vector<uint8_t*> free_;
  std::deque<uint8_t*> waiting_;
  uint64_t bytes_ = 0;
};

template <TPosition position, int32_t depth, auto... mask>
using TQue = TQueBind<position, position, depth, mask...>;

// A buffer for a step's own use.
template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <class Element>
  LocalTensor<Element> Get() const {
    return LocalTensor<Element>(buffer_.get(), bytes_);
  }
  template <class Element>
  LocalTensor<Element> Get(uint32_t size) const {
    if (size * sizeof(Element) > bytes_) {
      bringup::ascendc::refuse("Get: %zu bytes of a TBuf of %llu", size * sizeof(Element),
                               static_cast<unsigned long long>(bytes_));
    }
    return LocalTensor<Element>(buffer_.get(), size * sizeof(Element));
  }

 private:
  friend class TPipe;
  bringup::ascendc::Bytes buffer_;
  uint64_t bytes_ = 0;
};

// Gives out the on-chip memory of one core.
class TPipe {
 public:
  // `count` buffers of `bytes` each.
  template <TPosition source, TPosition target, int32_t depth, auto... mask>
  bool InitBuffer(TQueBind<source, target, depth, mask...>& queue, uint8_t count, uint32_t bytes) {
    queue.bytes_ = take(count, bytes);
    for (uint8_t i = 0; i < count; ++i) {
      queue.buffers_.push_back(bringup::ascendc::unwritten(queue.bytes_));
      queue.free_.insert(queue.free_.begin(), queue.buffers_.back().get());
    }
    return true;
  }

  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    buffer.bytes_ = take(1, bytes);
    buffer.buffer_ = bringup::ascendc::unwritten(buffer.bytes_);
    return true;
  }

 private:
  // What one of `count` buffers gets, rounded up.
  uint64_t take(uint64_t count, uint64_t bytes) {
    using namespace bringup::ascendc;
    if (count == 0 || bytes == 0)
      refuse("InitBuffer: %llu buffers of %llu bytes", static_cast<unsigned long long>(count),
             static_cast<unsigned long long>(bytes));
    const uint64_t wanted = count * rounded(bytes);
    if (wanted > kOnChipBytes - used_) {
      refuse("InitBuffer: %llu bytes more on the chip, %llu of %llu are in use",
             static_cast<unsigned long long>(wanted), static_cast<unsigned long long>(used_),
             static_cast<unsigned long long>(kOnChipBytes));
    }
    used_ += wanted;
    return rounded(bytes);
  }

  uint64_t used_ = 0;
};

}  // namespace AscendC

#endif  // BRINGUP_ASCENDC_QUEUE_H_
