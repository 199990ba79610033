#include "runtime/variant_table.h"

#include <utility>

namespace bringup::runtime {
namespace {

constexpr size_t kFirstCapacity = 64;

}  // namespace

VariantTable::VariantTable() {
  all_.push_back(std::make_unique<Slots>(kFirstCapacity));
  slots_.store(all_.back().get(), std::memory_order_release);
}

VariantTable::~VariantTable() = default;

void VariantTable::put(Slots& slots, const Key128& key, const void* value) {
  size_t i = home(key);
  while (slots.at(i).value.load(std::memory_order_relaxed) != nullptr) ++i;
  Slot& slot = slots.at(i);
  slot.low.store(key.low, std::memory_order_relaxed);
  slot.high.store(key.high, std::memory_order_relaxed);
  slot.value.store(value, std::memory_order_release);
}

const void* VariantTable::insert(const Key128& key, const void* value) {
  std::lock_guard lock(writers_);
  if (const void* present = find(key)) return present;
  Slots& current = *all_.back();
  if (2 * (size_ + 1) > current.mask + 1) {
    auto bigger = std::make_unique<Slots>(2 * (current.mask + 1));
    for (size_t i = 0; i <= current.mask; ++i) {
      const Slot& slot = current.at(i);
      const void* moved = slot.value.load(std::memory_order_relaxed);
      if (moved != nullptr) put(*bigger, {slot.low, slot.high}, moved);
    }
    put(*bigger, key, value);
    all_.push_back(std::move(bigger));
    slots_.store(all_.back().get(), std::memory_order_release);
  } else {
    put(current, key, value);
  }
  ++size_;
  return value;
}

size_t VariantTable::size() const {
  std::lock_guard lock(writers_);
  return size_;
}

}  // namespace bringup::runtime
