// The registry of kernel operators, their variants, and what the graph recorder asks about them.
#include "torch/ops/kernel_op.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/DynamicTypes.h>

#include <array>
#include <mutex>

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
    if (2 * records_.size() > tables_.back()->slots.size()) grow();
    put(*tables_.back(), record);
    return record;
  }

  // Forgets `op` unless another operator took its dispatcher entry meanwhile.
  void remove(const KernelOp& op) {
    std::lock_guard lock(mutex_);
    Slot& slot = tables_.back()->locate(&op.entry);
    const KernelOp* expected = &op;
    slot.op.compare_exchange_strong(expected, nullptr);
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

  static void put(Table& table, KernelOp& op) {
    Slot& slot = table.locate(&op.entry);
    slot.op.store(&op, std::memory_order_release);
    slot.entry.store(&op.entry, std::memory_order_release);
  }

  void grow() {
    auto bigger = std::make_unique<Table>(2 * tables_.back()->slots.size());
    for (const auto& record : records_) {
      if (!record->closed.load()) put(*bigger, *record);
    }
    table_.store(bigger.get(), std::memory_order_release);
    tables_.push_back(std::move(bigger));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<KernelOp>> records_;
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

// Device type in the low byte, one byte for each dtype that chooses the binary.
template <class TensorAt>
uint64_t variant_key(const KernelOp& op, c10::DeviceType device, TensorAt tensor_at) {
  auto key = static_cast<uint64_t>(static_cast<uint8_t>(device));
  int shift = 8;
  for (const int32_t argument : op.dtype_arguments) {
    key |= static_cast<uint64_t>(static_cast<uint8_t>(tensor_at(argument).scalar_type())) << shift;
    shift += 8;
  }
  return key;
}

uint64_t frame_key(const KernelOp& op, const Frame& frame) {
  return variant_key(op, frame.device().type(), [&frame](int32_t argument) -> const at::Tensor& {
    return frame.tensor(argument);
  });
}

const Variant* find_by_key(const KernelOp& op, uint64_t key) {
  const Variant* variant = op.variants.load(std::memory_order_acquire);
  while (variant != nullptr && variant->key != key) variant = variant->next;
  return variant;
}

// Asks the operator's Python definition for the kernel. No lock is held meanwhile: other keys and
// hits go on.
runtime::KernelId compile(const KernelOp& op, uint64_t key) {
  const nb::gil_scoped_acquire gil;
  const auto device = static_cast<c10::DeviceType>(static_cast<uint8_t>(key));
  nb::list dtypes;
  for (size_t i = 1; i <= op.dtype_arguments.size(); ++i) {
    const auto dtype = static_cast<at::ScalarType>(static_cast<uint8_t>(key >> (8 * i)));
    dtypes.append(nb::handle(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))));
  }
  PyObject* result = PyObject_CallFunction(
      op.compile, "sO", c10::DeviceTypeName(device, /*lower_case=*/true).c_str(), dtypes.ptr());
  if (result == nullptr) raise_current_python_error();
  const auto id = PyLong_AsUnsignedLongLong(result);
  Py_DECREF(result);
  if (PyErr_Occurred() != nullptr) raise_current_python_error();
  return id;
}

const Variant& publish_variant(const KernelOp& op, uint64_t key,
                               std::shared_ptr<const runtime::Kernel> kernel) {
  // Shared by all operators: held for a few instructions, once for each variant.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (const Variant* variant = find_by_key(op, key)) return *variant;
  const auto* variant = new Variant{key, std::move(kernel), op.variants.load()};
  op.variants.store(variant, std::memory_order_release);
  return *variant;
}

const Variant& variant_for_key(const KernelOp& op, uint64_t key) {
  if (const Variant* variant = find_by_key(op, key)) return *variant;
  for (;;) {
    // Null when somebody has unloaded what nobody held just now: then it is loaded again.
    if (auto kernel = runtime::KernelTable::instance().find(compile(op, key))) {
      return publish_variant(op, key, std::move(kernel));
    }
  }
}

}  // namespace

KernelOp::KernelOp(c10::OperatorHandle op) : handle(op), entry(operator_entry(op)) {}

KernelOp& publish(std::unique_ptr<KernelOp> op) { return registry().add(std::move(op)); }

void close(KernelOp& op) {
  op.closed.store(true);
  registry().remove(op);
  op.registrations.clear();
}

const Variant& variant_for(const KernelOp& op, const Frame& frame) {
  return variant_for_key(op, frame_key(op, frame));
}

const KernelOp* find_kernel_op(const c10::OperatorHandle& op) {
  return registry().find(&operator_entry(op));
}

bool wants_contiguous_inputs(const KernelOp& op) { return op.contiguous_inputs; }

std::shared_ptr<const runtime::Kernel> kernel_for(const KernelOp& op,
                                                  c10::ArrayRef<c10::IValue> inputs) {
  Frame frame(op);
  frame.load(inputs);
  return variant_for(op, frame).kernel;
}

int64_t grid_for(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
  if (op.grid.program.empty()) return 1;
  Frame frame(op);
  frame.load(inputs);
  return grid_of(frame);
}

runtime::LaunchBlock pack_launch_block(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                                       c10::ArrayRef<at::Tensor> outputs) {
  Frame frame(op);
  frame.load(inputs);
  for (const at::Tensor& output : outputs) frame.add_output(output);
  frame.describe();
  return frame.pack();
}

void check_captured_call(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                         c10::ArrayRef<at::Tensor> outputs, int64_t grid) {
  Frame frame(op);
  frame.load(inputs);
  check_contract(frame);
  for (size_t i = 0; i < outputs.size() && i < op.outputs.size(); ++i) {
    if (op.outputs[i].like >= 0) continue;  // tensor arguments keep their shapes
    Sizes sizes;
    evaluate_shape(op.outputs[i].shape, frame, sizes);
    if (outputs[i].sizes() == sizes) continue;
    raise_error("ContractError", op.name + ": its output would have shape " + sizes_text(sizes) +
                                     ", and has " + sizes_text(outputs[i].sizes()) +
                                     " in the captured graph");
  }
  const int64_t blocks = grid_of(frame);
  if (blocks == grid) return;
  raise_error("ContractError", op.name + ": it would run on " + std::to_string(blocks) +
                                   " blocks, and runs on " + std::to_string(grid) +
                                   " in the captured graph");
}

}  // namespace bringup::torch_ext
