#include "torch/ops/variant.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <cstring>

#include "torch/common/errors.h"
#include "torch/devices/state.h"
#include "torch/ops/frame.h"
#include "torch/ops/record.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

using runtime::kDeviceModelBits;
using runtime::kDeviceTypeBits;
using runtime::kOperatorBits;

constexpr uint64_t kNoDtype = (1 << runtime::kDtypeBits) - 1;  // of an argument that is None
constexpr int64_t kBlock = 16;                                 // the sides of a block of NZ

static_assert(static_cast<size_t>(at::ScalarType::NumOptions) < kNoDtype);

bool is_nz(at::IntArrayRef sizes, const at::Tensor& tensor) {
  const size_t rank = sizes.size();
  return rank >= 4 && sizes[rank - 1] == kBlock && sizes[rank - 2] == kBlock &&
         tensor.is_contiguous();
}

Layout plain_layout(at::IntArrayRef sizes, at::IntArrayRef strides) {
  const size_t rank = sizes.size();
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (rank == 0 || empty || sizes[rank - 1] == 1 || strides[rank - 1] == 1) return Layout::kRow;
  if (rank > 1 && (sizes[rank - 2] == 1 || strides[rank - 2] == 1)) return Layout::kColumn;
  return Layout::kStrided;
}

uint64_t dtype_code(const KernelOp& op, const CallFrame& frame, int32_t argument) {
  const auto inputs = static_cast<int32_t>(op.arguments.size());
  if (argument >= inputs) {
    return static_cast<uint64_t>(op.outputs[argument - inputs].dtype_for(frame));
  }
  if (frame.is_none(argument)) return kNoDtype;
  if (op.arguments[argument].kind == ArgumentKind::kDtype) {
    return static_cast<uint64_t>(frame.integer(argument));
  }
  return static_cast<uint64_t>(frame.tensor(argument).scalar_type());
}

// A tensor whose layout is not allowed is copied to rows before it reaches the kernel.
uint64_t layout_code(const CallFrame& frame, const KeyField& field) {
  Layout layout = Layout::kRow;
  if (frame.is_none(field.argument)) return static_cast<uint64_t>(layout);
  if (!layout_among(frame.tensor(field.argument), field.layouts, layout)) layout = Layout::kRow;
  return static_cast<uint64_t>(layout);
}

[[noreturn]] void raise_bad_choice(const KernelOp& op, const KeyField& field,
                                   const std::string& got) {
  std::string allowed;
  for (const std::string& word : field.choices) {
    allowed += (allowed.empty() ? "'" : ", '") + word + "'";
  }
  for (const int64_t number : field.numbers) {
    allowed += (allowed.empty() ? "" : ", ") + std::to_string(number);
  }
  raise_error(ErrorClass::kContract, op.name, ": ", op.arguments[field.argument].name,
              " must be one of ", allowed, ", got ", got);
}

uint64_t text_choice_code(const KernelOp& op, const CallFrame& frame, const KeyField& field) {
  const char* word = frame.is_none(field.argument) ? "none" : frame.string(field.argument);
  for (size_t i = 0; i < field.choices.size(); ++i) {
    if (std::strcmp(field.choices[i].c_str(), word) == 0) return i;
  }
  raise_bad_choice(op, field, "'" + std::string(word) + "'");
}

uint64_t choice_code(const KernelOp& op, const CallFrame& frame, const KeyField& field) {
  if (!field.choices.empty()) return text_choice_code(op, frame, field);
  const int64_t value = frame.integer(field.argument);
  for (size_t i = 0; i < field.numbers.size(); ++i) {
    if (field.numbers[i] == value) return i;
  }
  raise_bad_choice(op, field, std::to_string(value));
}

uint64_t field_code(const KernelOp& op, const CallFrame& frame, const KeyField& field) {
  switch (field.kind) {
    case KeyFieldKind::kDtype:
      return dtype_code(op, frame, field.argument);
    case KeyFieldKind::kLayout:
      return layout_code(frame, field);
    case KeyFieldKind::kChoice:
      return choice_code(op, frame, field);
    case KeyFieldKind::kBucket:
      return evaluate(field.predicate, frame) != 0 ? 1 : 0;
  }
  return 0;
}

nb::object field_value(const KeyField& field, uint64_t code) {
  if (field.kind != KeyFieldKind::kDtype) return nb::int_(code);
  if (code == kNoDtype) return nb::none();
  auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(code)));
  return nb::borrow(dtype);
}

// Asks the operator's Python definition for the kernel. No lock is held: other keys and
// hits go on.
runtime::KernelId compile(const KernelOp& op, const runtime::Key128& key) {
  const nb::gil_scoped_acquire gil;
  runtime::KeyReader reader(key);
  reader.take(kOperatorBits);
  const auto type = static_cast<c10::DeviceType>(reader.take(kDeviceTypeBits));
  const auto model = static_cast<c10::DeviceIndex>(reader.take(kDeviceModelBits));
  nb::list values;
  for (const KeyField& field : op.key_fields) {
    values.append(field_value(field, reader.take(field.bits)));
  }
  PyObject* result = PyObject_CallFunction(
      op.compile, "sO",
      c10::Device(type, type == c10::kCUDA || (active_driver() != nullptr && type == kDriverDevice)
                            ? model
                            : -1)
          .str()
          .c_str(),
      values.ptr());
  if (result == nullptr) raise_current_python_error();
  const auto id = PyLong_AsUnsignedLongLong(result);
  Py_DECREF(result);
  if (PyErr_Occurred() != nullptr) raise_current_python_error();
  return id;
}

const Variant& variant_in_table(const KernelOp& op, const CallFrame& frame) {
  const runtime::Key128 key = variant_key(op, frame);
  if (const Variant* found = find_variant(key); C10_LIKELY(found != nullptr)) return *found;
  auto made = std::make_unique<Variant>();
  made->name = op.name.c_str();
  // Null when it was unloaded, held by nothing: then it is loaded again.
  while (made->kernel == nullptr) {
    made->kernel = runtime::KernelTable::instance().find(compile(op, key));
  }
  return publish_variant(op, key, std::move(made));
}

}  // namespace

bool layout_among(const at::Tensor& tensor, LayoutMask allowed, Layout& layout) {
  const auto has = [allowed](Layout one) { return (allowed >> static_cast<int>(one) & 1) != 0; };
  const at::IntArrayRef sizes = tensor.sizes();
  layout = has(Layout::kNz) && is_nz(sizes, tensor) ? Layout::kNz
                                                    : plain_layout(sizes, tensor.strides());
  return has(layout);
}

runtime::Key128 variant_key(const KernelOp& op, const CallFrame& frame) {
  runtime::KeyPacker packer = key_of(op);
  packer.put(static_cast<uint8_t>(frame.device().type()), kDeviceTypeBits);
  packer.put(device_model(frame.device()), kDeviceModelBits);
  for (const KeyField& field : op.key_fields) packer.put(field_code(op, frame, field), field.bits);
  return packer.key();
}

const Variant& variant_for(const KernelOp& op, const CallFrame& frame) {
  const bool only = op.key_fields.empty() && frame.device().is_cpu();
  if (only) {
    const Variant* known = op.only_variant.load(std::memory_order_acquire);
    if (C10_LIKELY(known != nullptr)) return *known;
  }
  const Variant& variant = variant_in_table(op, frame);
  if (only) op.only_variant.store(&variant, std::memory_order_release);
  return variant;
}

}  // namespace bringup::torch_ext
