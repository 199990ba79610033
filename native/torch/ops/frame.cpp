#include "torch/ops/frame.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <bit>

#include "driver/dtypes.h"
#include "runtime/context.h"
#include "torch/common/errors.h"
#include "torch/common/values.h"
#include "torch/devices/generator.h"

namespace bringup::torch_ext {
namespace {

constexpr auto kDtypes = [] {
  std::array<DLDataType, static_cast<size_t>(at::ScalarType::NumOptions)> table{};
#define BRINGUP_PUT(bit, name, dtype, code, bits) \
  if (bits != 0) table[static_cast<size_t>(at::ScalarType::dtype)] = DLDataType{code, bits, 1};
  BRINGUP_DTYPES(BRINGUP_PUT)
#undef BRINGUP_PUT
  return table;
}();

constexpr int32_t kDlOthers = 1 << 8;  // no kernel runs there, but devices stay distinguishable

void look_at(const at::Tensor& tensor, DLTensor& descriptor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const at::IntArrayRef sizes = impl.sizes();
  descriptor.device = dlpack_device(impl.device());
  descriptor.ndim = static_cast<int32_t>(sizes.size());
  descriptor.dtype = dlpack_dtype(c10::typeMetaToScalarType(impl.dtype()));
  descriptor.shape = const_cast<int64_t*>(sizes.data());
  descriptor.strides = const_cast<int64_t*>(impl.strides().data());
  descriptor.byte_offset = 0;
}

runtime::TensorDesc as_desc(const DLTensor& tensor) {
  const auto rank = static_cast<size_t>(tensor.ndim);
  return {tensor.data, tensor.device, tensor.dtype, {tensor.shape, rank}, {tensor.strides, rank}};
}

}  // namespace

DLDataType dlpack_dtype(at::ScalarType dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

DLDevice dlpack_device(c10::Device device) {
  if (C10_LIKELY(device.is_cpu())) return {runtime::kDlCpu, 0};
  if (device.is_privateuseone()) return {runtime::kDlExtDev, device.index()};
  if (device.is_cuda()) return {runtime::kDlCuda, device.index()};
  return {kDlOthers + static_cast<int32_t>(device.type()), device.index()};
}

bringup_scalar scalar_of(const at::Scalar& number) {
  if (number.isComplex()) {
    const auto value = number.toComplexDouble();
    return {value.real(), value.imag(), 0, dlpack_dtype(at::kComplexDouble)};
  }
  if (number.isFloatingPoint()) return {number.toDouble(), 0, 0, dlpack_dtype(at::kDouble)};
  if (number.type() == at::kUInt64) {  // beyond an int64
    const uint64_t wide = number.toUInt64();
    return {static_cast<double>(wide), 0, static_cast<int64_t>(wide), dlpack_dtype(at::kUInt64)};
  }
  const int64_t integer = number.toLong();
  return {static_cast<double>(integer), 0, integer,
          dlpack_dtype(number.isBoolean() ? at::kBool : at::kLong)};
}

CallFrame::CallFrame(const KernelOp& op)
    : op_(op), num_inputs_(static_cast<int32_t>(op.arguments.size())) {
  std::fill_n(elements_, num_inputs_, nullptr);
}

void* CallFrame::take(size_t bytes) {
  constexpr size_t kAlignment = 16;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ + rounded <= sizeof(memory_)) {
    used_ += rounded;
    return memory_ + used_ - rounded;
  }
  return overflow_.emplace_front(std::make_unique<std::byte[]>(rounded)).get();
}

at::Tensor* CallFrame::set_tensor_list(int i, int64_t size) {
  // At least one element, so that an empty list still differs from a tensor.
  const auto room = static_cast<size_t>(std::max<int64_t>(size, 1));
  at::Tensor* tensors = lists_.emplace_front(static_cast<size_t>(size)).data();
  elements_[i] = static_cast<const at::Tensor**>(take(room * sizeof(void*)));
  for (int64_t k = 0; k < size; ++k) elements_[i][k] = &tensors[k];
  values_[i].list = {nullptr, size};
  args_[i] = &values_[i];
  return tensors;
}

void CallFrame::load(c10::ArrayRef<c10::IValue> inputs) {
  for (int i = 0; i < num_inputs_; ++i) load(i, inputs[i]);
}

void CallFrame::set_device(int i, c10::Device device) {
  values_[i].device = {dlpack_device(device), device.type(), device.index()};
  args_[i] = &values_[i];
}

void CallFrame::load(int i, const c10::IValue& value) {
  const ArgumentKind kind = op_.arguments[i].kind;
  if (kind == ArgumentKind::kGenerator) {
    return set_generator(i, value.isNone() ? at::Generator() : value.toGenerator());
  }
  if (value.isNone()) return set_none(i);
  switch (kind) {
    case ArgumentKind::kTensor:
      return load_tensor(i, value.toTensor());
    // torch keeps defaults as they are written: "float? a=1", "int a=True", "int a=1e3".
    case ArgumentKind::kInt:
    case ArgumentKind::kDtype:
    case ArgumentKind::kLayout:
    case ArgumentKind::kMemoryFormat:
      return set_int(i, value.toScalar().toLong());
    case ArgumentKind::kNumber:
      return set_scalar(i, value.toScalar());
    case ArgumentKind::kComplex:
      return set_scalar(i, value.toScalar().toComplexDouble());
    case ArgumentKind::kDevice:
      return set_device(i, value.toDevice());
    case ArgumentKind::kBool:
      return set_int(i, value.toBool() ? 1 : 0);
    case ArgumentKind::kFloat:
      return set_float(i, value.toScalar().toDouble());
    case ArgumentKind::kString:
      return load_string(i, value.toStringRef());
    default:
      load_list(i, value);
  }
}

void CallFrame::load_tensor(int i, const at::Tensor& tensor) {
  if (tensor.defined()) {
    set_tensor(i, tensor);
  } else if (op_.arguments[i].optional) {
    set_none(i);
  } else {
    raise_error(ErrorClass::kContract, op_.name, ": ", op_.arguments[i].name,
                " is None, expected a tensor");
  }
}

void CallFrame::load_string(int i, const std::string& text) {
  if (const size_t end = text.find('\0'); end != std::string::npos) {
    raise_error(ErrorClass::kContract, op_.name, ": ", op_.arguments[i].name, " has a NUL at byte ",
                end, " of ", text.size(), ", where a kernel would take its text to end; remove it");
  }
  set_string(i, text.c_str());
}

void CallFrame::load_list(int i, const c10::IValue& value) {
  const c10::ArrayRef<c10::IValue> items = value.toListRef();
  const auto size = static_cast<int64_t>(items.size());
  switch (op_.arguments[i].kind) {
    case ArgumentKind::kTensorList: {
      at::Tensor* data = set_tensor_list(i, size);
      for (const c10::IValue& item : items) *data++ = item.toTensor();
      break;
    }
    case ArgumentKind::kOptionalTensorList: {
      at::Tensor* data = set_tensor_list(i, size);
      for (int64_t k = 0; k < size; ++k) {
        if (items[k].isTensor()) data[k] = items[k].toTensor();
        if (!data[k].defined()) set_none_of(i, k);
      }
      break;
    }
    case ArgumentKind::kFloatList: {
      double* data = set_list<double>(i, size);
      for (const c10::IValue& item : items) *data++ = item.toDouble();
      break;
    }
    default: {
      int64_t* data = set_list<int64_t>(i, size);
      for (const c10::IValue& item : items) *data++ = item.isBool() ? item.toBool() : item.toInt();
    }
  }
}

c10::ArrayRef<int64_t> CallFrame::int_list(int i) const {
  const bringup_list& list = values_[i].list;
  return {static_cast<const int64_t*>(list.data), static_cast<size_t>(list.size)};
}

c10::IValue CallFrame::value(int i) const {
  if (is_none(i)) return {};
  switch (op_.arguments[i].kind) {
    case ArgumentKind::kTensor:
      return *tensors_[i];
    case ArgumentKind::kInt:
    case ArgumentKind::kDtype:
    case ArgumentKind::kLayout:
    case ArgumentKind::kMemoryFormat:
      return values_[i].integer;
    case ArgumentKind::kNumber:
    case ArgumentKind::kComplex:
      return scalar(i);
    case ArgumentKind::kDevice:
      return c10::Device(values_[i].device.type, values_[i].device.index);
    case ArgumentKind::kGenerator:
      return generator_.defined() ? c10::IValue(generator_) : c10::IValue();
    case ArgumentKind::kBool:
      return values_[i].integer != 0;
    case ArgumentKind::kFloat:
      return values_[i].real;
    case ArgumentKind::kString:
      return std::string(static_cast<const char*>(args_[i]));
    case ArgumentKind::kIntList:
      return int_list(i);
    case ArgumentKind::kBoolList: {
      c10::List<bool> items;
      for (const int64_t item : int_list(i)) items.push_back(item != 0);
      return items;
    }
    case ArgumentKind::kFloatList: {
      const bringup_list& list = values_[i].list;
      return c10::ArrayRef<double>(static_cast<const double*>(list.data),
                                   static_cast<size_t>(list.size));
    }
    case ArgumentKind::kTensorList: {
      c10::List<at::Tensor> items;
      for_each_tensor(i, [&items](int, const at::Tensor& tensor) { items.push_back(tensor); });
      return items;
    }
    case ArgumentKind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> items;
      for (int64_t k = 0; k < list_size(i); ++k) {
        items.push_back(elements_[i][k] == nullptr ? std::nullopt
                                                   : std::optional(*elements_[i][k]));
      }
      return items;
    }
    default:  // no kernel operator has it
      return {};
  }
}

void CallFrame::copy_refused_layouts() {
  for (const int32_t i : op_.tensor_arguments) {
    if (is_none(i)) continue;
    const bool is_list = elements_[i] != nullptr;
    for (int64_t k = 0; k < (is_list ? list_size(i) : 1); ++k) {
      const at::Tensor*& slot = is_list ? elements_[i][k] : tensors_[i];
      if (slot == nullptr) continue;
      if (C10_LIKELY(takes_layout_inline(op_, static_cast<size_t>(i), *slot))) continue;
      if (op_.arguments[i].mutated) {
        raise_error(ErrorClass::kContract, op_.name, ": ", op_.arguments[i].name,
                    " is written and must be contiguous, got strides ", sizes_text(slot->strides()),
                    " for sizes ", sizes_text(slot->sizes()),
                    "; pass a contiguous tensor or name it in strided=");
      }
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      slot = &held_.emplace_front(slot->contiguous());
      look_at(*slot, is_list ? *static_cast<DLTensor* const*>(values_[i].list.data)[k]
                             : values_[i].tensor);
    }
  }
}

void CallFrame::look() {
  for (const int32_t i : op_.tensor_arguments) {
    if (is_none(i)) continue;
    if (C10_LIKELY(elements_[i] == nullptr)) {
      look_at(*tensors_[i], values_[i].tensor);
    } else {
      look_at_list(i, list_size(i),
                   [&](int64_t k) -> const at::Tensor* { return elements_[i][k]; });
    }
  }
}

template <class At>
DLTensor** CallFrame::look_at_list(int i, int64_t size, At tensor_at) {
  auto* descriptors = static_cast<DLTensor*>(take(static_cast<size_t>(size) * sizeof(DLTensor)));
  auto** pointers = static_cast<DLTensor**>(take(static_cast<size_t>(size) * sizeof(void*)));
  for (int64_t k = 0; k < size; ++k) {
    const at::Tensor* tensor = tensor_at(k);
    pointers[k] = tensor == nullptr ? nullptr : &descriptors[k];
    if (tensor != nullptr) look_at(*tensor, descriptors[k]);
  }
  values_[i].list = {pointers, size};
  return pointers;
}

void CallFrame::read_data(const at::Tensor& tensor, bool written, int i, DLTensor& descriptor) {
  if (C10_UNLIKELY(descriptor.dtype.lanes == 0)) {
    const std::string what =
        i < num_inputs_ ? op_.arguments[i].name : "output " + std::to_string(i - num_inputs_);
    raise_error(ErrorClass::kContract, op_.name, ": kernels cannot take ",
                dtype_text(tensor.scalar_type()), ", the dtype of ", what, "; cast it with .to()");
  }
  // A written tensor that shares memory lazily gets memory of its own here.
  descriptor.data =
      written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
}

at::Scalar CallFrame::scalar(int i) const {
  const auto& number = *static_cast<const bringup_scalar*>(values_[i].list.data);
  switch (number.dtype.code) {
    case 0:
      return number.integer;
    case 1:
      return static_cast<uint64_t>(number.integer);
    case 2:
      return number.real;
    case 5:
      return c10::complex<double>(number.real, number.imaginary);
    default:
      return number.integer != 0;
  }
}

void CallFrame::draw() {
  if (C10_LIKELY(op_.generator < 0)) return;
  auto* numbers = static_cast<int64_t*>(const_cast<void*>(values_[op_.generator].list.data));
  const RandomPoint point = take_point(generator_, device());
  numbers[0] = static_cast<int64_t>(point.seed);
  numbers[1] = static_cast<int64_t>(point.offset);
}

void CallFrame::describe() {
  for (const int32_t i : op_.tensor_arguments) {
    if (is_none(i)) continue;
    const bool written = op_.arguments[i].mutated;
    if (C10_LIKELY(elements_[i] == nullptr)) {
      read_data(*tensors_[i], written, i, values_[i].tensor);
      continue;
    }
    auto* const* items = static_cast<DLTensor* const*>(values_[i].list.data);
    for (int64_t k = 0; k < list_size(i); ++k) {
      if (items[k] != nullptr) read_data(*elements_[i][k], written, i, *items[k]);
    }
  }
  describe_outputs();
}

int32_t CallFrame::num_outputs() const {
  return static_cast<int32_t>(op_.outputs.size()) + (op_.counts > 0 ? 1 : 0);
}

int64_t CallFrame::output_size(int output) const {
  const OutputRule& rule = op_.outputs[output];
  return rule.list ? list_size(rule.like) : 1;
}

void CallFrame::describe_outputs() {
  const at::Tensor* next = outputs_.data();
  for (int output = 0; output < num_outputs(); ++output) {
    const int i = num_inputs_ + output;
    const bool list = output < static_cast<int>(op_.outputs.size()) && op_.outputs[output].list;
    if (C10_LIKELY(!list)) {
      look_at(*next, values_[i].tensor);
      read_data(*next++, true, i, values_[i].tensor);
    } else {
      const int64_t size = output_size(output);
      auto** items = look_at_list(i, size, [&](int64_t k) { return &next[k]; });
      for (int64_t k = 0; k < size; ++k) read_data(*next++, true, i, *items[k]);
    }
    args_[i] = &values_[i];
  }
}

void CallFrame::pack_argument(ArgumentKind kind, int i, runtime::LaunchBlock& block) {
  const Value& value = values_[i];
  switch (kind) {
    case ArgumentKind::kTensor:
      return block.add_tensor(as_desc(value.tensor));
    case ArgumentKind::kInt:
    case ArgumentKind::kBool:
    case ArgumentKind::kDtype:
    case ArgumentKind::kLayout:
    case ArgumentKind::kMemoryFormat:
      return block.add_int(value.integer);
    case ArgumentKind::kDevice:
      return block.add_int(std::bit_cast<int64_t>(value.device.given));
    case ArgumentKind::kNumber:
    case ArgumentKind::kComplex:
      return block.add_int_list(
          {static_cast<const int64_t*>(value.list.data), sizeof(bringup_scalar) / sizeof(int64_t)});
    case ArgumentKind::kFloat:
      return block.add_float(value.real);
    case ArgumentKind::kString:
      return block.add_string(static_cast<const char*>(args_[i]));
    case ArgumentKind::kIntList:
    case ArgumentKind::kBoolList:
    case ArgumentKind::kGenerator:
      return block.add_int_list({int_list(i).data(), int_list(i).size()});
    case ArgumentKind::kFloatList:
      return block.add_float_list(
          {static_cast<const double*>(value.list.data), static_cast<size_t>(value.list.size)});
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList: {
      std::vector<std::optional<runtime::TensorDesc>> items;
      const auto* pointers = static_cast<DLTensor* const*>(value.list.data);
      for (int64_t k = 0; k < value.list.size; ++k) {
        items.push_back(pointers[k] == nullptr ? std::nullopt
                                               : std::optional(as_desc(*pointers[k])));
      }
      return block.add_tensor_list(items);
    }
    default:  // no kernel operator has it
      return;
  }
}

runtime::LaunchBlock CallFrame::pack() {
  runtime::LaunchBlock block;
  for (int i = 0; i < num_inputs_; ++i) {
    if (is_none(i)) {
      block.add_none();
    } else {
      pack_argument(op_.arguments[i].kind, i, block);
    }
  }
  for (int output = 0; output < num_outputs(); ++output) {
    const bool list = output < static_cast<int>(op_.outputs.size()) && op_.outputs[output].list;
    pack_argument(list ? ArgumentKind::kTensorList : ArgumentKind::kTensor, num_inputs_ + output,
                  block);
  }
  return block;
}

}  // namespace bringup::torch_ext
