#include "torch/ops/rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>

#include "torch/common/allocation.h"
#include "torch/common/errors.h"
#include "torch/common/values.h"
#include "torch/ops/frame.h"
#include "torch/ops/small_memory.h"

namespace bringup::torch_ext {
namespace {

[[noreturn]] void contract_error(const CallFrame& frame, const std::string& what) {
  raise_error(ErrorClass::kContract, frame.op().name, ": ", what);
}

void append_slice(const Dimension& item, const CallFrame& frame, Sizes& sizes) {
  const bool is_tensor = frame.op().arguments[item.sliced_argument].kind == ArgumentKind::kTensor;
  const at::IntArrayRef source =
      is_tensor ? frame.tensor(item.sliced_argument).sizes() : frame.int_list(item.sliced_argument);
  const auto rank = static_cast<int64_t>(source.size());
  const auto clamp = [rank](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? index + rank : index, 0, rank);
  };
  for (int64_t i = clamp(item.start); i < clamp(item.stop); ++i) sizes.push_back(source[i]);
}

std::string names_text(const CallFrame& frame, const std::vector<int32_t>& arguments) {
  std::string text;
  for (size_t k = 0; k < arguments.size(); ++k) {
    if (k > 0) text += k + 1 == arguments.size() ? " and " : ", ";
    text += frame.op().arguments[arguments[k]].name;
  }
  return text;
}

// "x: [5], y: [3]"
template <class Describe>
std::string each_text(const CallFrame& frame, const std::vector<int32_t>& arguments,
                      Describe describe) {
  std::string text;
  for (const int32_t argument : arguments) {
    frame.for_each_tensor(argument, [&](int i, const at::Tensor& tensor) {
      if (!text.empty()) text += ", ";
      text += frame.op().arguments[i].name + ": " + describe(tensor);
    });
  }
  return text;
}

// Whether `same(first, other)` holds for the first tensor and every other one.
template <class Same>
bool all_same(const CallFrame& frame, const std::vector<int32_t>& arguments, Same same) {
  const DLTensor* first = nullptr;
  bool holds = true;
  for (const int32_t argument : arguments) {
    frame.for_each_descriptor(argument, [&](const DLTensor& tensor) {
      if (first == nullptr) first = &tensor;
      holds &= same(*first, tensor);
    });
  }
  return holds;
}

// A loop: shapes are short, and memcmp is a call.
constexpr auto kEqualShapes = [](const DLTensor& a, const DLTensor& b) {
  if (a.ndim != b.ndim) return false;
  for (int32_t i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
  }
  return true;
};

constexpr auto kEqualDtypes = [](const DLTensor& a, const DLTensor& b) {
  return a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits;
};

void verify_same_shape(const CallFrame& frame, const Check& check) {
  if (C10_LIKELY(all_same(frame, check.arguments, kEqualShapes))) return;
  contract_error(frame, names_text(frame, check.arguments) + " must have the same shape, got " +
                            each_text(frame, check.arguments, [](const at::Tensor& tensor) {
                              return sizes_text(tensor.sizes());
                            }));
}

void verify_same_dtype(const CallFrame& frame, const Check& check) {
  if (C10_LIKELY(all_same(frame, check.arguments, kEqualDtypes))) return;
  contract_error(frame, names_text(frame, check.arguments) + " must have the same dtype, got " +
                            each_text(frame, check.arguments,
                                      [](const at::Tensor& tensor) {
                                        return dtype_text(tensor.scalar_type());
                                      }) +
                            "; convert with .to()");
}

std::string shape_text(const std::vector<Dimension>& shape) {
  std::string text = "(";
  for (const Dimension& item : shape) {
    if (text.size() > 1) text += ", ";
    text += item.size.text;
  }
  return text + ")";
}

void verify_shape(const CallFrame& frame, const Check& check) {
  frame.for_each_tensor(check.arguments.front(), [&](int i, const at::Tensor& tensor) {
    Sizes expected;
    evaluate_shape(check.shape, frame, expected);
    if (C10_LIKELY(tensor.sizes() == at::IntArrayRef(expected))) return;
    contract_error(frame, frame.op().arguments[i].name + " must have shape " +
                              sizes_text(expected) + " " + shape_text(check.shape) + ", got " +
                              sizes_text(tensor.sizes()));
  });
}

void require_dtype(const CallFrame& frame, const Check& check, at::ScalarType dtype,
                   const char* hint) {
  const auto& allowed = check.dtypes;
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return;
  std::string names;
  for (const at::ScalarType each : allowed) {
    names += (names.empty() ? "" : " or ") + dtype_text(each);
  }
  contract_error(frame, frame.op().arguments[check.arguments.front()].name + " must be " + names +
                            ", got " + dtype_text(dtype) + hint);
}

void verify_dtype(const CallFrame& frame, const Check& check) {
  const int32_t argument = check.arguments.front();
  if (frame.op().arguments[argument].kind == ArgumentKind::kDtype) {
    if (frame.is_none(argument)) return;
    return require_dtype(frame, check, static_cast<at::ScalarType>(frame.integer(argument)), "");
  }
  if (frame.op().arguments[argument].kind == ArgumentKind::kNumber) {
    if (frame.is_none(argument)) return;
    return require_dtype(frame, check, frame.scalar(argument).type(), "");
  }
  frame.for_each_tensor(argument, [&](int, const at::Tensor& tensor) {
    require_dtype(frame, check, tensor.scalar_type(), "; convert with .to()");
  });
}

void verify_length(const CallFrame& frame, const Check& check) {
  const int32_t argument = check.arguments.front();
  if (frame.is_none(argument)) return;
  const int64_t expected = evaluate(check.shape.front().size, frame);
  const int64_t given = frame.list_size(argument);
  if (C10_LIKELY(given == expected)) return;
  contract_error(frame, frame.op().arguments[argument].name + " must have " +
                            std::to_string(expected) + " elements, got " + std::to_string(given));
}

void verify_rank(const CallFrame& frame, const Check& check) {
  const int64_t expected = evaluate(check.shape.front().size, frame);
  frame.for_each_descriptor(check.arguments.front(), [&](const DLTensor& tensor) {
    if (C10_LIKELY(tensor.ndim == expected)) return;
    contract_error(frame, frame.op().arguments[check.arguments.front()].name + " must have " +
                              std::to_string(expected) + " dimensions, got shape " +
                              sizes_text({tensor.shape, static_cast<size_t>(tensor.ndim)}));
  });
}

// As at::empty, for sizes of which none is negative.
at::Tensor allocate_contiguous(const CallFrame& frame, at::IntArrayRef sizes, at::ScalarType type) {
  const c10::Device device = frame.device();
  if (C10_UNLIKELY(!device.is_cpu())) {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(device));
  }
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  c10::Allocator* allocator = output_allocator();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator->allocate(bytes), allocator,
                                                       /*resizable=*/true);
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  at::Tensor tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), kCpu, c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return filled_if_deterministic(std::move(tensor));
}

at::ScalarType promoted_dtype(const CallFrame& frame, const std::vector<int32_t>& arguments) {
  at::native::ResultTypeState state;
  const auto add_number = [&state](const at::Scalar& number) {
    state = at::native::update_result_type_state(number, state);
  };
  for (const int32_t i : arguments) {
    if (frame.is_none(i)) continue;
    switch (frame.op().arguments[i].kind) {
      case ArgumentKind::kInt:
        add_number(frame.integer(i));
        break;
      case ArgumentKind::kBool:
        add_number(frame.integer(i) != 0);
        break;
      case ArgumentKind::kFloat:
        add_number(frame.real(i));
        break;
      case ArgumentKind::kNumber:
      case ArgumentKind::kComplex:
        add_number(frame.scalar(i));
        break;
      default:
        frame.for_each_tensor(i, [&state](int, const at::Tensor& tensor) {
          state = at::native::update_result_type_state(tensor, state);
        });
    }
  }
  const at::ScalarType result = at::native::result_type(state);
  if (result == at::ScalarType::Undefined) {
    contract_error(frame, "no argument is there whose dtype could be promoted");
  }
  return result;
}

}  // namespace

int64_t evaluate(const Expression& expression, const CallFrame& frame) {
  runtime::Failure failure;
  const runtime::Value value = runtime::evaluate(expression, frame.args(), failure);
  if (C10_LIKELY(!failure)) return value.integer;
  const auto& arguments = frame.op().arguments;
  const std::string name = failure.argument < 0 ? "" : arguments[failure.argument].name;
  contract_error(frame, runtime::describe(failure, expression, name));
}

void evaluate_shape(const std::vector<Dimension>& shape, const CallFrame& frame, Sizes& sizes) {
  for (const Dimension& item : shape) {
    if (item.sliced_argument >= 0) {
      append_slice(item, frame, sizes);
    } else {
      sizes.push_back(evaluate(item.size, frame));
    }
  }
}

void OutputRule::allocate(CallFrame& frame, int output) const {
  if (C10_LIKELY(!list)) return frame.add_output(allocate_one(frame, output));
  frame.for_each_tensor(like, [&](int, const at::Tensor& tensor) {
    frame.add_output(allocate_contiguous(frame, tensor.sizes(), tensor.scalar_type()));
  });
}

bool OutputRule::is_wanted(const CallFrame& frame) const {
  if (when < 0 || frame.is_none(when)) return true;
  if (when_element < 0) return frame.integer(when) != 0;
  const at::IntArrayRef flags = frame.int_list(when);
  if (when_element < static_cast<int64_t>(flags.size())) return flags[when_element] != 0;
  contract_error(frame, frame.op().arguments[when].name + " must have at least " +
                            std::to_string(when_element + 1) + " elements, got " +
                            std::to_string(flags.size()));
}

at::IntArrayRef OutputRule::sizes_for(const CallFrame& frame, int output, Sizes& computed) const {
  if (C10_UNLIKELY(!is_wanted(frame))) {
    computed = {0};
    return computed;
  }
  if (like >= 0) return frame.tensor(like).sizes();
  evaluate_shape(shape, frame, computed);
  if (C10_UNLIKELY(
          std::any_of(computed.begin(), computed.end(), [](int64_t size) { return size < 0; }))) {
    contract_error(frame, "output " + std::to_string(output) + " would have the negative shape " +
                              sizes_text(computed) + " " + shape_text(shape));
  }
  return computed;
}

at::Tensor OutputRule::allocate_one(const CallFrame& frame, int output) const {
  if (C10_UNLIKELY(number)) return at::zeros({}, at::TensorOptions(frame.device()).dtype(dtype));
  Sizes computed;
  const at::IntArrayRef sizes = sizes_for(frame, output, computed);
  const at::ScalarType type = dtype_for(frame);
  if (C10_LIKELY(format == at::MemoryFormat::Contiguous) || !is_wanted(frame)) {
    return allocate_contiguous(frame, sizes, type);
  }
  return allocate_formatted(frame, output, sizes, type);
}

at::Tensor OutputRule::allocate_formatted(const CallFrame& frame, int output, at::IntArrayRef sizes,
                                          at::ScalarType type) const {
  const auto options = at::TensorOptions().dtype(type).device(frame.device());
  if (format == at::MemoryFormat::Preserve) {
    const at::Tensor& given = frame.tensor(like);
    if (given.is_non_overlapping_and_dense()) {
      return at::empty_strided(sizes, given.strides(), options);
    }
    return at::empty_strided(sizes, at::infer_dense_strides(sizes, given.strides()), options);
  }
  const size_t rank = format == at::MemoryFormat::ChannelsLast ? 4 : 5;
  if (sizes.size() != rank) {
    contract_error(frame, "output " + std::to_string(output) + " must have " +
                              std::to_string(rank) + " dimensions for its memory format, got " +
                              sizes_text(sizes));
  }
  return at::empty(sizes, options, format);
}

at::ScalarType OutputRule::dtype_for(const CallFrame& frame) const {
  if (dtype_of < 0) return promoted.empty() ? dtype : promoted_dtype(frame, promoted);
  const KernelOp& op = frame.op();
  if (op.arguments[dtype_of].kind != ArgumentKind::kDtype) {
    return frame.tensor(dtype_of).scalar_type();
  }
  if (frame.is_none(dtype_of)) return frame.tensor(op.device_argument).scalar_type();
  return static_cast<at::ScalarType>(frame.integer(dtype_of));
}

void Check::verify(const CallFrame& frame) const {
  switch (kind) {
    case CheckKind::kSameShape:
      return verify_same_shape(frame, *this);
    case CheckKind::kSameDtype:
      return verify_same_dtype(frame, *this);
    case CheckKind::kShape:
      return verify_shape(frame, *this);
    case CheckKind::kDtype:
      return verify_dtype(frame, *this);
    case CheckKind::kLength:
      return verify_length(frame, *this);
    case CheckKind::kRank:
      return verify_rank(frame, *this);
    case CheckKind::kKernel:
      return;  // the kernel looks itself
  }
}

std::string sizes_text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

}  // namespace bringup::torch_ext
