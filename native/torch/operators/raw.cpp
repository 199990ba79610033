// Raw kernels: the operator's arguments by its schema, then its results, which torch's own Meta
// kernel describes.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <bit>

#include "runtime/context.h"
#include "runtime/values_code.h"
#include "torch/common/errors.h"
#include "torch/common/values.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"
#include "torch/operators/random_call.h"

namespace bringup::torch_ext {
namespace {

constexpr size_t kMostShapes = 4096;  // that are remembered

// What stands in a key before a value, so that 0, 0.0, false and None differ: below every rank.
enum Tag : int64_t {
  kNone = -1,
  kUndefined = -2,
  kInt = -3,
  kBool = -4,
  kDouble = -5,
  kText = -6,
  kList = -7,
  kOther = -8
};

void note_tensor(const at::Tensor& tensor, std::vector<int64_t>& key) {
  if (!tensor.defined()) return key.push_back(kUndefined);
  key.push_back(tensor.dim());
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

// Everything that the results' shapes can depend on, and nothing else.
void note(const c10::IValue& value, std::vector<int64_t>& key) {
  if (value.isNone()) return key.push_back(kNone);
  if (value.isTensor()) return note_tensor(value.toTensor(), key);
  if (value.isInt()) {
    key.insert(key.end(), {kInt, value.toInt()});
  } else if (value.isBool()) {
    key.insert(key.end(), {kBool, value.toBool()});
  } else if (value.isDouble()) {
    key.insert(key.end(), {kDouble, std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isString()) {
    key.insert(key.end(), {kText, static_cast<int64_t>(value.toStringRef().size())});
    for (const char letter : value.toStringRef()) key.push_back(letter);
  } else if (value.isList()) {
    const auto items = value.toListRef();
    key.insert(key.end(), {kList, static_cast<int64_t>(items.size())});
    for (const c10::IValue& item : items) note(item, key);
  } else {
    key.insert(key.end(), {kOther, static_cast<int64_t>(value.hash().toInt())});
  }
}

c10::IValue without_memory(const c10::IValue& value) {
  const auto meta = [](const at::Tensor& tensor) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  };
  return map_tensors(value, meta);
}

int64_t rank_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().dim();
    if (value.isTensorList() && value.toListRef().size() != 0) {
      return value.toListRef().front().toTensor().dim();
    }
  }
  return 0;
}

// Raises where the first tensor has no dim that the call names: not all Meta kernels look
// (_softmax), and a kernel that goes along another dim reads memory of no tensor.
void check_dims(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const int64_t rank = rank_of(arguments);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = kernel.arguments[i].name;
    if (name != "dim" && name != "dims") continue;
    if (arguments[i].isInt()) at::maybe_wrap_dim(arguments[i].toInt(), rank);
    if (!arguments[i].isIntList()) continue;
    for (const int64_t dim : arguments[i].toIntVector()) at::maybe_wrap_dim(dim, rank);
  }
}

// False for a call that is refused and left to the CPU.
bool ask_meta(const OperatorKernel& kernel, c10::Stack& stack) {
  try {
    check_dims(kernel, stack);
    kernel.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    return true;
  } catch (const std::exception&) {
    if (!leaves_to_cpu(kernel)) throw;
    clear_python_error();
  }
  return false;
}

std::optional<std::vector<ResultShape>> shapes_of(const OperatorKernel& kernel,
                                                  c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int64_t> key{
      static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype()))};
  for (const c10::IValue& value : arguments) note(value, key);
  {
    const std::lock_guard lock(kernel.mutex);
    const auto found = kernel.shapes.find(key);
    if (found != kernel.shapes.end()) return found->second;
  }
  c10::Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(without_memory(value));
  if (!ask_meta(kernel, stack)) return std::nullopt;
  std::vector<ResultShape> shapes;
  for (const c10::IValue& result : stack) {
    TORCH_CHECK(result.isTensor(), kernel.name, ": a kernel of kind \"raw\" gives tensors, not ",
                result.tagKind());
    const at::Tensor& tensor = result.toTensor();
    if (!tensor.defined()) {  // a gradient that nothing wants
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

// Whether written argument number `w` lies on top of another argument. Raises where it is one that
// overlaps in part, as pointwise operators do.
bool lies_on_another(c10::ArrayRef<c10::IValue> arguments, size_t w) {
  const at::Tensor& tensor = arguments[w].toTensor();
  at::assert_no_internal_overlap(tensor);
  bool found = false;
  const auto look = [&](const at::Tensor& other) {
    if (!overlap(tensor, other)) return;
    if (!other.is_same(tensor)) at::assert_no_partial_overlap(tensor, other);
    found = true;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == w) continue;
    for_each_tensor(arguments[i], look);
  }
  return found;
}

// What a list's element has in memory.
struct Extent {
  const char* begin;
  const char* end;
  bool written;
};

// Whether the elements of all lists that belong together, which a kernel takes as rows of numbers,
// lie alike and without holes, or are single numbers, and nothing that is written lies on another.
bool lie_alike(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const auto first = arguments[static_cast<size_t>(kernel.out)].toListRef();
  std::vector<Extent> extents;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensorList()) continue;
    const auto list = arguments[i].toListRef();
    for (size_t k = 0; k < list.size(); ++k) {
      if (list.size() != first.size()) return false;
      const at::Tensor& tensor = list[k].toTensor();
      const at::Tensor& like = first[k].toTensor();
      const bool alike = tensor.sizes() == like.sizes() && tensor.strides() == like.strides() &&
                         tensor.is_non_overlapping_and_dense();
      if (!alike && (tensor.numel() != 1 || kernel.arguments[i].mutated)) return false;
      const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
      if (tensor.numel() != 0) {
        extents.push_back({begin, begin + tensor.nbytes(), kernel.arguments[i].mutated});
      }
    }
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  for (size_t i = 1; i < extents.size(); ++i) {
    Extent& former = extents[i - 1];
    Extent& next = extents[i];
    if (next.begin >= former.end) continue;
    if (former.written || next.written) return false;
    next.end = std::max(former.end, next.end);
  }
  return true;
}

// The arguments of one call and then its results, into its launch block.
class Packer {
 public:
  Packer(const OperatorKernel& kernel, const std::vector<ResultShape>& shapes,
         OperatorLaunch& launch)
      : kernel_(kernel),
        shapes_(shapes),
        launch_(launch),
        device_(kDriverDevice, launch.device),
        // Of a comparison the operands are what says it.
        is_floating_(at::isFloatingType(launch.variant->computed) ||
                     (!shapes.empty() && at::isFloatingType(shapes.front().dtype))) {}

  // False where a written argument lies on top of another one.
  bool take_written(c10::ArrayRef<c10::IValue> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!kernel_.arguments[i].mutated || kernel_.writes_lists()) continue;
      const at::Tensor& tensor = arguments[i].toTensor();
      if (kernel_.arguments[i].is_out && !launch_.fixed) {
        at::native::resize_output(tensor, shapes_[written_.size()].sizes);
      }
      if (lies_on_another(arguments, i)) return false;
      written_.push_back(tensor);
    }
    return true;
  }

  void add_argument(const c10::IValue& value, size_t i) {
    const ArgumentKind kind = kernel_.arguments[i].kind;
    const bool any_layout = kernel_.takes_any_layout(i);
    if (kind == ArgumentKind::kTensorList || kind == ArgumentKind::kOptionalTensorList) {
      add_list(value, any_layout, kind == ArgumentKind::kOptionalTensorList);
    } else if (kind == ArgumentKind::kTensor && is_host_number(value)) {
      // The kernel cannot tell a number from a tensor.
      launch_.held.push_back(value.toTensor().to(device_));
      add(launch_.held.back(), true);
    } else if (kind == ArgumentKind::kTensor && value.isTensor() && value.toTensor().defined()) {
      add(value.toTensor(), any_layout);
    } else if (value.isScalar() && kind == ArgumentKind::kNumber) {
      add_scalar_as(launch_.block, value.toScalar(), is_floating_);
    } else {
      add_value(launch_.block, value, kind);
    }
  }

  // The written arguments, and fresh ones or, of those that are wanted, what is given for them.
  // False for one that does not lie as the kernel, which gets no strides unasked, takes it.
  bool add_results(c10::ArrayRef<at::Tensor> given) {
    const at::Tensor* next_given = given.begin();
    for (size_t r = 0; r < shapes_.size(); ++r) {
      const ResultShape& shape = shapes_[r];
      const bool fresh = r >= written_.size();
      if (fresh && shape.dtype == at::ScalarType::Undefined) {
        launch_.block.add_none();
        launch_.results.emplace_back();
        continue;
      }
      const bool any_layout = kernel_.takes_any_layout(kernel_.arguments.size() + r);
      at::Tensor result = !fresh                      ? written_[r]
                          : next_given != given.end() ? *next_given++
                                                      : made(shape, any_layout);
      if (launch_.fixed) check_fits(kernel_, result, shape.sizes);
      // Plain values are chosen by name, and a result has one in every form.
      const bool named = launch_.variant->kernel->values != nullptr;
      const bool is_passed = fresh || named || !kernel_.in_place;
      if (is_passed && !any_layout && !result.is_contiguous()) return false;
      if (is_passed) add(result, true);
      launch_.results.push_back(std::move(result));
    }
    return true;
  }

 private:
  // A result as torch lays it out, or contiguous for a kernel that writes no other.
  at::Tensor made(const ResultShape& shape, bool any_layout) const {
    const auto options = at::TensorOptions().dtype(shape.dtype).device(device_);
    return any_layout ? at::empty_strided(shape.sizes, shape.strides, options)
                      : at::empty(shape.sizes, options);
  }

  // What of a tensor the kernel gets: itself, or a copy in rows.
  at::Tensor passed(const at::Tensor& tensor, bool any_layout) {
    TORCH_CHECK(tensor.device() == device_, "Expected all tensors to be on the same device, but ",
                kernel_.name, " got ", tensor.device(), " and ", device_);
    at::Tensor given = any_layout ? tensor : tensor.contiguous();
    if (!given.is_same(tensor)) launch_.held.push_back(given);
    return given;
  }

  void add(const at::Tensor& tensor, bool any_layout) {
    const at::Tensor given = passed(tensor, any_layout);
    launch_.block.add_tensor(describe(given, given.sizes(), given.strides()));
  }

  // Indices come in one shape, and from the device: torch takes those of the host, too.
  void add_list(const c10::IValue& value, bool any_layout, bool of_indices) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& item : value.toListRef()) {
      at::Tensor tensor = item.isTensor() ? item.toTensor() : at::Tensor();
      if (of_indices && tensor.defined() && tensor.is_cpu()) {
        tensor = launch_.held.emplace_back(tensor.to(device_));
      }
      tensors.push_back(std::move(tensor));
    }
    if (of_indices) tensors = at::expand_outplace(tensors);
    std::vector<std::optional<runtime::TensorDesc>> descs(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      tensors[i] = passed(tensors[i], any_layout);
      descs[i] = describe(tensors[i], tensors[i].sizes(), tensors[i].strides());
    }
    launch_.block.add_tensor_list(descs);
  }

  const OperatorKernel& kernel_;
  const std::vector<ResultShape>& shapes_;
  OperatorLaunch& launch_;
  const c10::Device device_;
  const bool is_floating_;
  c10::SmallVector<at::Tensor, 2> written_;
};

// Whether the size of a kernel with plain values says so, or the kernel's own library.
bool is_taken(OperatorLaunch& launch) {
  const runtime::Kernel& kernel = *launch.variant->kernel;
  const runtime::HostContext context({runtime::kDlExtDev, launch.device},
                                     current_driver_stream(launch.device));
  if (kernel.values == nullptr) {
    return kernel.can_implement == nullptr ||
           kernel.can_implement(launch.block.args(), launch.block.size(), context.get()) == nullptr;
  }
  const int64_t blocks = kernel.values->blocks(launch.block.args(), context.get());
  launch.empty = blocks == 0;
  return blocks >= 0;
}

}  // namespace

bool prepare_raw(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                 c10::ArrayRef<at::Tensor> given, OperatorLaunch& launch) {
  if (kernel.writes_lists() && !lie_alike(kernel, arguments)) return false;
  const auto shapes = kernel.writes_lists() ? std::optional(std::vector<ResultShape>())
                                            : shapes_of(kernel, arguments);
  if (!shapes) return false;
  Packer packer(kernel, *shapes, launch);
  if (!packer.take_written(arguments)) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (static_cast<int32_t>(i) == kernel.generator) {
      add_random(launch);
    } else if (!kernel.arguments[i].is_out) {
      packer.add_argument(arguments[i], i);
    }
  }
  if (kernel.draws && kernel.generator < 0) add_random(launch);
  return packer.add_results(given) && is_taken(launch);
}

}  // namespace bringup::torch_ext
