// The registry of kernel operators, and what the graph recorder asks about them.
#include "torch/ops/kernel_op.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/DynamicTypes.h>

#include <array>
#include <mutex>

#include "runtime/context.h"
#include "torch/common/errors.h"
#include "torch/common/torch_private.h"
#include "torch/ops/frame.h"
#include "torch/ops/record.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

// Operators by their dispatcher entry: an open-addressing table of atomics, so that the recorder
// looks up without a lock. A table that grew is kept, because somebody may be reading it.
class Registry {
 public:
  const KernelOp* find(const c10::impl::OperatorEntry* entry) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    for (size_t i = table.home(entry);; ++i) {
      const Slot& slot = table.slot(i);
      const auto* key = slot.entry.load(std::memory_order_acquire);
      if (key == entry) return slot.op.load(std::memory_order_acquire);
      if (key == nullptr) return nullptr;
    }
  }

  KernelOp& add(std::unique_ptr<KernelOp> op) {
    std::lock_guard lock(mutex_);
    KernelOp& record = *records_.emplace_back(std::move(op));
    make_room();
    put(*tables_.back(), record.entry, record);
    return record;
  }

  void add_without_returns(KernelOp& op, const c10::impl::OperatorEntry& entry) {
    std::lock_guard lock(mutex_);
    op.without_returns = &entry;
    ++others_;
    make_room();
    put(*tables_.back(), entry, op);
  }

  // Forgets `op` unless another operator took its dispatcher entry meanwhile.
  void remove(const KernelOp& op) {
    std::lock_guard lock(mutex_);
    for (const auto* entry : {&op.entry, op.without_returns}) {
      if (entry == nullptr) continue;
      const KernelOp* expected = &op;
      tables_.back()->locate(entry).op.compare_exchange_strong(expected, nullptr);
    }
  }

 private:
  struct Slot {
    std::atomic<const c10::impl::OperatorEntry*> entry{nullptr};
    std::atomic<const KernelOp*> op{nullptr};
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

  static void put(Table& table, const c10::impl::OperatorEntry& entry, KernelOp& op) {
    Slot& slot = table.locate(&entry);
    slot.op.store(&op, std::memory_order_release);
    slot.entry.store(&entry, std::memory_order_release);
  }

  void make_room() {
    if (2 * (records_.size() + others_) <= tables_.back()->slots.size()) return;
    auto bigger = std::make_unique<Table>(2 * tables_.back()->slots.size());
    for (const auto& record : records_) {
      if (record->closed.load()) continue;
      put(*bigger, record->entry, *record);
      if (record->without_returns != nullptr) put(*bigger, *record->without_returns, *record);
    }
    table_.store(bigger.get(), std::memory_order_release);
    tables_.push_back(std::move(bigger));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<KernelOp>> records_;
  size_t others_ = 0;  // entries of operators without returns
  std::vector<std::unique_ptr<Table>> tables_ = first_table();
  std::atomic<const Table*> table_{tables_.back().get()};

  static std::vector<std::unique_ptr<Table>> first_table() {
    constexpr size_t kFirstCapacity = 64;
    std::vector<std::unique_ptr<Table>> tables;
    tables.push_back(std::make_unique<Table>(kFirstCapacity));
    return tables;
  }
};

// Never destroyed: operators may be called until the very end of the process.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

KernelOp::KernelOp(c10::OperatorHandle op)
    : number(next_operator_number()), handle(op), entry(operator_entry(op)) {}

KernelOp& publish(std::unique_ptr<KernelOp> op) { return registry().add(std::move(op)); }

void publish_without_returns(KernelOp& op, const c10::OperatorHandle& other) {
  registry().add_without_returns(op, operator_entry(other));
}

void close(KernelOp& op) {
  op.closed.store(true);
  registry().remove(op);
  op.registrations.clear();
}

const KernelOp* find_kernel_op(const c10::OperatorHandle& op) {
  return registry().find(&operator_entry(op));
}

bool takes_layout(const KernelOp& op, size_t argument, const at::Tensor& tensor) {
  return takes_layout_inline(op, argument, tensor);
}

std::shared_ptr<const runtime::Kernel> kernel_for(const KernelOp& op,
                                                  c10::ArrayRef<c10::IValue> inputs) {
  CallFrame frame(op);
  frame.load(inputs);
  frame.look();
  return variant_for(op, frame).kernel;
}

int64_t grid_for(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
  if (op.grid.program.empty()) return 1;
  CallFrame frame(op);
  frame.load(inputs);
  frame.look();
  return grid_of(frame);
}

runtime::LaunchBlock pack_launch_block(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                                       c10::ArrayRef<at::Tensor> outputs) {
  CallFrame frame(op);
  frame.load(inputs);
  for (const at::Tensor& output : outputs) frame.add_output(output);
  frame.look();
  frame.describe();
  return frame.pack();
}

void check_captured_call(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                         c10::ArrayRef<at::Tensor> outputs, int64_t grid,
                         const runtime::Kernel& kernel) {
  CallFrame frame(op);
  frame.load(inputs);
  check_contract(frame);
  const Variant* variant = find_variant(op, frame);
  if (variant == nullptr || variant->kernel.get() != &kernel) {
    raise_error(ErrorClass::kContract,
                op.name +
                    ": it would run another binary than in the captured graph: a "
                    "value that chooses the binary (a macro) has changed; capture it again");
  }
  const at::Tensor* output = outputs.begin();
  for (size_t i = 0; i < op.outputs.size() && output != outputs.end(); ++i) {
    const at::Tensor& captured = *output;
    output += frame.output_size(static_cast<int>(i));
    if (op.outputs[i].list) continue;  // the tensors of a list are not updated
    Sizes computed;
    const at::IntArrayRef sizes = op.outputs[i].sizes_for(frame, static_cast<int>(i), computed);
    if (captured.sizes() == sizes) continue;
    raise_error(ErrorClass::kContract, op.name + ": its output would have shape " +
                                           sizes_text(sizes) + ", and has " +
                                           sizes_text(captured.sizes()) + " in the captured graph");
  }
  for (const at::Tensor& output : outputs) frame.add_output(output);
  frame.describe();
  const runtime::HostContext context(dlpack_device(frame.device()));
  check_can_implement(frame, kernel, context.get());
  const int64_t blocks = grid_of(frame);
  if (blocks == grid) return;
  raise_error(ErrorClass::kContract, op.name + ": it would run on " + std::to_string(blocks) +
                                         " blocks, and runs on " + std::to_string(grid) +
                                         " in the captured graph");
}

}  // namespace bringup::torch_ext
