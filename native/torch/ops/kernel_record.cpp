// The registry of kernels of operators, and the table of their variants.
#include "torch/ops/kernel_record.h"

#include <algorithm>
#include <mutex>

#include "engine/util/forever.h"
#include "runtime/contract.h"
#include "torch/common/errors.h"
#include "torch/common/torch_private.h"

namespace bringup::torch_ext {
namespace {

// Operators by their dispatcher entry: an open-addressing table of atomics, so that the recorder
// looks up without a lock. A table that grew is kept, because other threads may be reading it.
class Registry {
 public:
  const KernelRecord* find(const c10::impl::OperatorEntry* entry) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    for (size_t i = table.home(entry);; ++i) {
      const Slot& slot = table.slot(i);
      const auto* key = slot.entry.load(std::memory_order_acquire);
      if (key == entry) return slot.record.load(std::memory_order_acquire);
      if (key == nullptr) return nullptr;
    }
  }

  void add(std::unique_ptr<KernelRecord> record) {
    const std::lock_guard lock(mutex_);
    KernelRecord& added = *records_.emplace_back(std::move(record));
    put(added.entry, added);
  }

  void add_without_returns(const KernelRecord& record, const c10::impl::OperatorEntry& entry) {
    const std::lock_guard lock(mutex_);
    put(entry, record);
  }

  // Forgets `record` unless another one has taken its dispatcher entries.
  void remove(const KernelRecord& record) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : tables_.back()->slots) {
      const KernelRecord* expected = &record;
      slot.record.compare_exchange_strong(expected, nullptr);
    }
  }

  bool any(const std::function<bool(const KernelRecord&)>& holds) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        records_, [&](const auto& record) { return record->enabled.load() && holds(*record); });
  }

 private:
  struct Slot {
    std::atomic<const c10::impl::OperatorEntry*> entry{nullptr};
    std::atomic<const KernelRecord*> record{nullptr};
  };
  struct Table {
    explicit Table(size_t capacity) : slots(capacity) {}
    size_t home(const void* entry) const { return std::hash<const void*>()(entry) >> 4; }
    const Slot& slot(size_t i) const { return slots[i & (slots.size() - 1)]; }
    Slot& locate(const c10::impl::OperatorEntry* entry) {
      for (size_t i = home(entry);; ++i) {
        Slot& candidate = slots[i & (slots.size() - 1)];
        const auto* key = candidate.entry.load(std::memory_order_relaxed);
        if (key == entry || key == nullptr) return candidate;
      }
    }
    std::vector<Slot> slots;
  };

  static void put(Table& table, const c10::impl::OperatorEntry& entry, const KernelRecord& record) {
    Slot& slot = table.locate(&entry);
    slot.record.store(&record, std::memory_order_release);
    slot.entry.store(&entry, std::memory_order_release);
  }

  void put(const c10::impl::OperatorEntry& entry, const KernelRecord& record) {
    if (2 * ++used_ > tables_.back()->slots.size()) grow();
    put(*tables_.back(), entry, record);
  }

  void grow() {
    const Table& former = *tables_.back();
    auto bigger = std::make_unique<Table>(2 * former.slots.size());
    for (const Slot& slot : former.slots) {
      const KernelRecord* record = slot.record.load();
      if (record != nullptr) put(*bigger, *slot.entry.load(), *record);
    }
    table_.store(bigger.get(), std::memory_order_release);
    tables_.push_back(std::move(bigger));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<KernelRecord>> records_;
  size_t used_ = 0;  // how often something was put
  static constexpr size_t kFirstCapacity = 64;
  std::vector<std::unique_ptr<Table>> tables_;
  std::atomic<const Table*> table_{
      tables_.emplace_back(std::make_unique<Table>(kFirstCapacity)).get()};
};

Registry& registry() { return forever<Registry>(); }

uint32_t next_number() {
  static std::atomic<uint32_t> next{0};
  const uint32_t number = next.fetch_add(1);
  if (number >> runtime::kOperatorBits == 0) return number;
  raise_error(ErrorClass::kSchema, "this process has defined ", number,
              " kernels of operators, more than keys can number; define them once and keep them");
}

// Of all operators.
runtime::VariantTable& variants() { return forever<runtime::VariantTable>(); }

}  // namespace

KernelRecord::KernelRecord(c10::OperatorHandle op)
    : handle(op),
      entry(operator_entry(op)),
      name(c10::toString(op.operator_name())),
      arguments(arguments_of(op.schema())),
      number(next_number()) {}

void publish(std::unique_ptr<KernelRecord> record) { registry().add(std::move(record)); }

void publish_without_returns(const KernelRecord& record, const c10::OperatorHandle& other) {
  registry().add_without_returns(record, operator_entry(other));
}

bool close(KernelRecord& record) {
  record.enabled.store(false);
  registry().remove(record);
  return !std::exchange(record.registrations, {}).empty();
}

const KernelRecord* find_kernel(const c10::OperatorHandle& op) {
  const KernelRecord* record = registry().find(&operator_entry(op));
  return record != nullptr && record->enabled.load() ? record : nullptr;
}

bool any_kernel(const std::function<bool(const KernelRecord&)>& holds) {
  return registry().any(holds);
}

const Variant* find_variant(const runtime::Key128& key) {
  return static_cast<const Variant*>(variants().find(key));
}

const Variant& publish_variant(const KernelRecord& record, const runtime::Key128& key,
                               std::unique_ptr<Variant> variant) {
  const void* present = variants().insert(key, variant.get());
  if (present == variant.get()) {
    variant.release();
    record.variant_count.fetch_add(1);
  }
  return *static_cast<const Variant*>(present);
}

}  // namespace bringup::torch_ext
