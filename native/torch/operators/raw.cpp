// Raw kernels: the operator's arguments by its schema, then its results, which torch's own Meta
// kernel describes.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "torch/common/written.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {
namespace {

constexpr size_t kMostShapes = 4096;  // that are remembered

void note_tensor(const at::Tensor& tensor, std::vector<int64_t>& key) {
  if (!tensor.defined()) return key.push_back(-2);
  key.push_back(tensor.dim());
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

// Everything that the results' shapes can depend on, and nothing else.
void note(const c10::IValue& value, std::vector<int64_t>& key) {
  if (value.isNone()) return key.push_back(-1);
  if (value.isTensor()) return note_tensor(value.toTensor(), key);
  if (value.isInt()) return key.push_back(value.toInt());
  if (value.isBool()) return key.push_back(value.toBool());
  if (value.isDouble()) {
    int64_t bits = 0;
    const double number = value.toDouble();
    std::memcpy(&bits, &number, sizeof bits);
    return key.push_back(bits);
  }
  if (value.isString()) {
    key.push_back(static_cast<int64_t>(value.toStringRef().size()));
    for (const char letter : value.toStringRef()) key.push_back(letter);
    return;
  }
  if (value.isList()) {
    const auto items = value.toListRef();
    key.push_back(static_cast<int64_t>(items.size()));
    for (const c10::IValue& item : items) note(item, key);
    return;
  }
  key.push_back(static_cast<int64_t>(value.hash().toInt()));
}

c10::IValue without_memory(const c10::IValue& value) {
  const auto meta = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                tensor.options().device(at::kMeta))
                            : tensor;
  };
  if (value.isTensor()) return meta(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(meta(tensor));
    return tensors;
  }
  return value;
}

std::vector<ResultShape> shapes_of(const OperatorKernel& kernel,
                                   c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int64_t> key;
  for (const c10::IValue& value : arguments) note(value, key);
  {
    const std::lock_guard lock(kernel.mutex);
    const auto found = kernel.shapes.find(key);
    if (found != kernel.shapes.end()) return found->second;
  }
  c10::Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(without_memory(value));
  kernel.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  std::vector<ResultShape> shapes;
  for (const c10::IValue& result : stack) {
    TORCH_CHECK(result.isTensor(), kernel.name, ": a kernel of kind \"raw\" gives tensors, not ",
                result.tagKind());
    const at::Tensor& tensor = result.toTensor();
    if (!tensor.defined()) {  // a gradient that nobody wants
      shapes.push_back({{}, {}, at::ScalarType::Undefined});
      continue;
    }
    shapes.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
  }
  const std::lock_guard lock(kernel.mutex);
  if (kernel.shapes.size() >= kMostShapes) kernel.shapes.clear();
  kernel.shapes.emplace(std::move(key), shapes);
  return shapes;
}

bool written(const OperatorKernel& kernel, size_t i) {
  return writes(kernel.handle.schema().arguments()[i]);
}

void check_written(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                   const at::Tensor& tensor) {
  at::assert_no_internal_overlap(tensor);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.roles[i] == ArgumentRole::kOut || !arguments[i].isTensor()) continue;
    const at::Tensor& other = arguments[i].toTensor();
    if (other.defined() && !other.is_same(tensor)) at::assert_no_partial_overlap(tensor, other);
  }
}

}  // namespace

bool takes_any_layout(const OperatorKernel& kernel, size_t i) {
  const c10::FunctionSchema& schema = kernel.handle.schema();
  return kernel.kind != OperatorKernelKind::kRaw || may_write(schema, schema.arguments()[i]) ||
         (kernel.strided >> i & 1) != 0;
}

void prepare_raw(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                 c10::ArrayRef<at::Tensor> given, OperatorLaunch& launch) {
  const std::vector<ResultShape> shapes = shapes_of(kernel, arguments);
  const c10::Device device(kDriverDevice, launch.device);
  // A kernel of numbers that are not integers cannot tell the bits of one from those of the other.
  const bool is_floating = !shapes.empty() && at::isFloatingType(shapes.front().dtype);
  const auto add = [&](const at::Tensor& tensor, bool any_layout) {
    TORCH_CHECK(tensor.device() == device, "Expected all tensors to be on the same device, but ",
                kernel.name, " got ", tensor.device(), " and ", device);
    const at::Tensor passed = any_layout ? tensor : tensor.contiguous();
    if (!passed.is_same(tensor)) launch.held.push_back(passed);
    launch.block.add_tensor(describe(passed, passed.sizes(), passed.strides()));
  };
  c10::SmallVector<at::Tensor, 2> written_tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!written(kernel, i)) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (kernel.roles[i] == ArgumentRole::kOut && !launch.fixed) {
      at::native::resize_output(tensor, shapes[written_tensors.size()].sizes);
    }
    check_written(kernel, arguments, tensor);
    written_tensors.push_back(tensor);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentRole role = kernel.roles[i];
    if (role == ArgumentRole::kOut) continue;
    const bool any_layout = takes_any_layout(kernel, i);
    if (role == ArgumentRole::kTensorList) {
      std::vector<at::Tensor> tensors;
      std::vector<runtime::TensorDesc> descs;
      for (const at::Tensor& tensor : arguments[i].toTensorList()) {
        tensors.push_back(any_layout ? tensor : tensor.contiguous());
        launch.held.push_back(tensors.back());
        descs.push_back(describe(tensors.back(), tensors.back().sizes(), tensors.back().strides()));
      }
      launch.block.add_tensor_list(descs);
    } else if (role == ArgumentRole::kTensor && arguments[i].isTensor() &&
               arguments[i].toTensor().defined() && !is_host_number(arguments[i])) {
      add(arguments[i].toTensor(), any_layout);
    } else if (is_floating && arguments[i].isScalar() && role == ArgumentRole::kScalar) {
      launch.block.add_float(arguments[i].toScalar().toDouble());
    } else {
      add_value(launch.block, arguments[i], role);
    }
  }
  size_t next_given = 0;  // only those that are wanted are given
  for (size_t r = 0; r < shapes.size(); ++r) {
    const ResultShape& shape = shapes[r];
    const bool fresh = r >= written_tensors.size();
    if (fresh && shape.dtype == at::ScalarType::Undefined) {
      launch.block.add_none();
      launch.results.emplace_back();
      continue;
    }
    at::Tensor result =
        !fresh ? written_tensors[r]
        : next_given < given.size()
            ? given[next_given++]
            : at::empty_strided(shape.sizes, shape.strides,
                                at::TensorOptions().dtype(shape.dtype).device(device));
    if (launch.fixed) check_fits(kernel, result, shape.sizes);
    if (fresh || !kernel.in_place) add(result, true);
    launch.results.push_back(std::move(result));
  }
}

}  // namespace bringup::torch_ext
