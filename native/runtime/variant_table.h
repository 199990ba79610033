// The variant table: which binary runs for a call, by a packed 128-bit key, whose bits are all of
// it. A hit takes no lock, makes no system call and allocates nothing; hits of other keys go on
// while one is inserted, or a bigger table is built.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/export.h"

namespace bringup::runtime {

struct Key128 {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Key128& a, const Key128& b) {
    return a.low == b.low && a.high == b.high;
  }
};

// Puts values side by side into a key, first into the lowest bits. Nothing is hashed, so keys with
// the same fields are equal only when every field is.
class KeyPacker {
 public:
  static constexpr int kBits = 128;

  // `value` fits into `bits`, 1 to 63, and all fields into kBits: their declaration sees to it.
  void put(uint64_t value, int bits) {
    if (used_ >= 64) {
      key_.high |= value << (used_ - 64);
    } else {
      key_.low |= value << used_;
      if (used_ + bits > 64) key_.high |= value >> (64 - used_);
    }
    used_ += bits;
  }
  const Key128& key() const { return key_; }

 private:
  Key128 key_;
  int used_ = 0;
};

// Takes the fields out again, in the order in which they were put.
class KeyReader {
 public:
  explicit KeyReader(const Key128& key) : key_(key) {}

  uint64_t take(int bits) {
    uint64_t value = used_ >= 64 ? key_.high >> (used_ - 64) : key_.low >> used_;
    if (used_ > 0 && used_ < 64 && used_ + bits > 64) value |= key_.high << (64 - used_);
    used_ += bits;
    return value & ((uint64_t{1} << bits) - 1);
  }

 private:
  Key128 key_;
  int used_ = 0;
};

// From keys to values that are never null and never change. Values belong to the code that inserts
// them and must outlive the table's use. Any thread may call anything.
class BRINGUP_API VariantTable {
 public:
  VariantTable();
  ~VariantTable();
  VariantTable& operator=(VariantTable&&) = delete;

  // The value under `key`, or null. Wait-free: the number of steps is bounded by the table's size.
  const void* find(const Key128& key) const noexcept {
    const Slots& slots = *slots_.load(std::memory_order_acquire);
    for (size_t i = home(key);; ++i) {
      const Slot& slot = slots.at(i);
      // Key words are written before the value, and only once.
      const void* value = slot.value.load(std::memory_order_acquire);
      if (value == nullptr) return nullptr;
      if (slot.low.load(std::memory_order_relaxed) == key.low &&
          slot.high.load(std::memory_order_relaxed) == key.high) {
        return value;
      }
    }
  }

  // Puts `value` under `key` unless something is there already; returns what is there now. Writers
  // wait for each other. Throws std::bad_alloc, and nothing has changed then.
  const void* insert(const Key128& key, const void* value);
  size_t size() const;

 private:
  struct Slot {
    std::atomic<uint64_t> low{0};
    std::atomic<uint64_t> high{0};
    std::atomic<const void*> value{nullptr};
  };
  struct Slots {
    explicit Slots(size_t capacity) : mask(capacity - 1), slots(new Slot[capacity]) {}
    const Slot& at(size_t i) const { return slots[i & mask]; }
    Slot& at(size_t i) { return slots[i & mask]; }
    size_t mask;  // the capacity is a power of two, and at least half of it is free
    std::unique_ptr<Slot[]> slots;
  };

  // Fields lie in few of the bits, so all of them have to reach the lowest ones.
  static size_t home(const Key128& key) {
    const uint64_t mixed = (key.low ^ (key.high * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    return static_cast<size_t>(mixed ^ (mixed >> 32));
  }
  static void put(Slots& slots, const Key128& key, const void* value);

  mutable std::mutex writers_;
  size_t size_ = 0;
  // Former tables stay: a thread may be reading them. Together they are smaller than the present.
  std::vector<std::unique_ptr<Slots>> all_;
  std::atomic<const Slots*> slots_;
};

}  // namespace bringup::runtime
