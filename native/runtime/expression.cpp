#include "runtime/expression.h"

#include <stdexcept>

namespace bringup::runtime {
namespace {

constexpr size_t kMaxDepth = 16;

using Reason = Failure::Reason;

struct DtypeRow {
  uint8_t code, bits;
  int64_t number;
};
constexpr DtypeRow kDtypes[] = {
    {1, 8, 0},   {0, 8, 1},   {0, 16, 2},  {0, 32, 3},   {0, 64, 4},  {2, 16, 5},  {2, 32, 6},
    {2, 64, 7},  {5, 32, 8},  {5, 64, 9},  {5, 128, 10}, {6, 8, 11},  {4, 16, 15}, {12, 8, 23},
    {10, 8, 24}, {13, 8, 25}, {11, 8, 26}, {1, 16, 27},  {1, 32, 28}, {1, 64, 29}, {14, 8, 44}};

int64_t numel(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

int64_t of_dimension(const Instruction& step, const DLTensor& tensor, const int64_t* numbers,
                     Failure& failure) {
  const int64_t index = step.value < 0 ? step.value + tensor.ndim : step.value;
  if (0 <= index && index < tensor.ndim) return numbers[index];
  failure = {Reason::kDimension, step.argument, step.value, &tensor};
  return 0;
}

Value of_tensor(const Instruction& step, const DLTensor& tensor, Failure& failure) {
  switch (step.opcode) {
    case Opcode::kData:
      return {.pointer = tensor.data};
    case Opcode::kTensor:
      return {.pointer = &tensor};
    case Opcode::kSize:
      return {of_dimension(step, tensor, tensor.shape, failure)};
    case Opcode::kStride:
      return {of_dimension(step, tensor, tensor.strides, failure)};
    case Opcode::kNumel:
      return {numel(tensor)};
    case Opcode::kNdim:
      return {tensor.ndim};
    case Opcode::kDtype:
      return {scalar_type(tensor.dtype)};
    case Opcode::kDtypeCode:
      return {tensor.dtype.code};
    default:
      return {tensor.dtype.bits};
  }
}

Value along(const Instruction& step, void* const* args, Failure& failure) {
  const auto* tensor = static_cast<const DLTensor*>(args[step.argument]);
  if (tensor == nullptr) return {0};
  const void* named = args[step.value];
  const int64_t given = named == nullptr ? 0 : *static_cast<const int64_t*>(named);
  const int64_t rank = tensor->ndim == 0 ? 1 : tensor->ndim;
  const int64_t index = given < 0 ? given + rank : given;
  if (index < 0 || index >= rank) {
    failure = {Reason::kAlong, step.argument, given, tensor};
    return {0};
  }
  if (tensor->ndim == 0) return {1};
  return {(step.opcode == Opcode::kSizeAlong ? tensor->shape : tensor->strides)[index]};
}

Value of_list(const Instruction& step, const bringup_list& list) {
  if (step.value < 0 || step.value >= list.size) return {0};
  if (step.opcode == Opcode::kElement) {
    return {static_cast<const int64_t*>(list.data)[step.value]};
  }
  const DLTensor* item = static_cast<DLTensor* const*>(list.data)[step.value];
  if (item == nullptr) return {0};
  if (step.opcode == Opcode::kItemNumel) return {numel(*item)};
  return {.pointer = item->data};
}

// Of the dimension that a step names; where there is no such tensor or dimension, `otherwise`.
int64_t of_dimension_or(const Instruction& step, const void* argument, int64_t otherwise) {
  const auto* tensor = static_cast<const DLTensor*>(argument);
  if (argument != nullptr && step.item() >= 0) {
    const auto& list = *static_cast<const bringup_list*>(argument);
    tensor =
        step.item() < list.size ? static_cast<DLTensor* const*>(list.data)[step.item()] : nullptr;
  }
  if (tensor == nullptr) return otherwise;
  const int64_t given = step.dimension();
  const int64_t index = given < 0 ? given + tensor->ndim : given;
  if (index < 0 || index >= tensor->ndim) return otherwise;
  return (step.opcode == Opcode::kSizeOr ? tensor->shape : tensor->strides)[index];
}

Value of_argument(const Instruction& step, const void* argument, Failure& failure) {
  if (step.opcode == Opcode::kHas) return {argument != nullptr};
  if (argument == nullptr) return {0};
  switch (step.opcode) {
    case Opcode::kInt:
      return {*static_cast<const int64_t*>(argument)};
    case Opcode::kFloat:
      return {.floating = *static_cast<const double*>(argument)};
    case Opcode::kReal:
      return {.floating = static_cast<const bringup_scalar*>(
                              static_cast<const bringup_list*>(argument)->data)
                              ->real};
    case Opcode::kString:
      return {.pointer = argument};
    case Opcode::kListData:
      return {.pointer = static_cast<const bringup_list*>(argument)->data};
    case Opcode::kLength:
      return {static_cast<const bringup_list*>(argument)->size};
    case Opcode::kElement:
    case Opcode::kItemData:
    case Opcode::kItemNumel:
      return of_list(step, *static_cast<const bringup_list*>(argument));
    default:
      return of_tensor(step, *static_cast<const DLTensor*>(argument), failure);
  }
}

Value leaf(const Expression& expression, const Instruction& step, void* const* args,
           const bringup_ctx* ctx, Failure& failure) {
  switch (step.opcode) {
    case Opcode::kConstant:
      return {step.value};
    case Opcode::kText:
      return {.pointer = expression.texts[static_cast<size_t>(step.value)].c_str()};
    case Opcode::kStream:
      return {.pointer = ctx->stream};
    case Opcode::kDevice:
      return {ctx->device.device_id};
    case Opcode::kFault:
      return {.pointer = nullptr};
    case Opcode::kSizeAlong:
    case Opcode::kStrideAlong:
      return along(step, args, failure);
    default:
      return of_argument(step, args[step.argument], failure);
  }
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t divide(Opcode opcode, int64_t a, int64_t b, Failure& failure) {
  if (b == 0) {
    failure.reason = Reason::kDivision;
    return 0;
  }
  if (opcode == Opcode::kModulo) return b == -1 ? 0 : a - floor_divide(a, b) * b;
  if (b == -1 && a == INT64_MIN) {
    failure.reason = Reason::kOverflow;
    return 0;
  }
  return floor_divide(a, b);
}

int64_t combine(Opcode opcode, int64_t a, int64_t b, Failure& failure) {
  int64_t result = 0;
  bool overflow = false;
  switch (opcode) {
    case Opcode::kLess:
      return a < b;
    case Opcode::kEqual:
      return a == b;
    case Opcode::kMinimum:
      return a < b ? a : b;
    case Opcode::kAnd:
      return a != 0 && b != 0;
    case Opcode::kOr:
      return a != 0 || b != 0;
    case Opcode::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Opcode::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Opcode::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    default:
      return divide(opcode, a, b, failure);
  }
  if (overflow) failure.reason = Reason::kOverflow;
  return result;
}

std::string shape_of(const DLTensor& tensor) {
  std::string shape;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    shape += (i > 0 ? ", " : "") + std::to_string(tensor.shape[i]);
  }
  return shape;
}

const void* allocate(int64_t bytes, const bringup_ctx* ctx, bool allocates, Failure& failure) {
  if (bytes < 0) failure = {Reason::kWorkspace, -1, bytes};
  if (bytes <= 0 || !allocates) return nullptr;
  const void* memory = ctx->workspace(ctx, static_cast<size_t>(bytes));
  if (memory == nullptr) failure = {Reason::kMemory, -1, bytes};
  return memory;
}

}  // namespace

Value evaluate(const Expression& expression, void* const* args, Failure& failure,
               const bringup_ctx* ctx, bool allocates) {
  if (expression.program.size() == 1) {
    return leaf(expression, expression.program.front(), args, ctx, failure);
  }
  Value stack[kMaxDepth];
  size_t depth = 0;
  for (const Instruction& step : expression.program) {
    if (step.opcode < Opcode::kWorkspace) {
      stack[depth++] = leaf(expression, step, args, ctx, failure);
    } else if (step.opcode == Opcode::kWorkspace) {
      stack[depth - 1].pointer = allocate(stack[depth - 1].integer, ctx, allocates, failure);
    } else if (step.opcode == Opcode::kNot) {
      stack[depth - 1].integer = stack[depth - 1].integer == 0;
    } else if (step.opcode < Opcode::kAdd) {
      stack[depth - 1].integer =
          of_dimension_or(step, args[step.argument], stack[depth - 1].integer);
    } else {
      --depth;
      stack[depth - 1].integer =
          combine(step.opcode, stack[depth - 1].integer, stack[depth].integer, failure);
    }
    if (failure) return {0};
  }
  return stack[0];
}

std::string describe(const Failure& failure, const Expression& expression,
                     const std::string& name) {
  switch (failure.reason) {
    case Reason::kAlong:
      return name + " must have the dimension that '" + expression.text +
             "' asks for, got shape [" + shape_of(*failure.tensor) + "]";
    case Reason::kDimension: {
      const int64_t needed = failure.number < 0 ? -failure.number : failure.number + 1;
      return name + " must have at least " + std::to_string(needed) + " dimensions for '" +
             expression.text + "', got shape [" + shape_of(*failure.tensor) + "]";
    }
    case Reason::kDivision:
      return "'" + expression.text + "' divides by zero";
    case Reason::kOverflow:
      return "'" + expression.text + "' does not fit into 64 bits";
    case Reason::kWorkspace:
      return "its workspace would have " + std::to_string(failure.number) + " bytes";
    case Reason::kMemory:
      return "there is no memory left for its workspace of " + std::to_string(failure.number) +
             " bytes";
    case Reason::kNone:
      break;
  }
  return "";
}

void check_program(const Expression& expression) {
  size_t depth = 0;
  for (const Instruction& step : expression.program) {
    if (step.opcode < Opcode::kWorkspace) ++depth;
    const size_t needed = step.opcode < Opcode::kAdd ? 1 : 2;
    if (depth < needed || step.opcode > Opcode::kOr) {
      throw std::runtime_error(expression.text + " is no expression");
    }
    if (needed == 2) --depth;
    if (depth > kMaxDepth) throw std::runtime_error(expression.text + " is nested too deeply");
  }
  if (depth != 1) throw std::runtime_error(expression.text + " is no expression");
}

int64_t scalar_type(DLDataType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.code == dtype.code && row.bits == dtype.bits) return row.number;
  }
  return -1;
}

DLDataType data_type(int64_t scalar_type) {
  for (const DtypeRow& row : kDtypes) {
    if (row.number == scalar_type) return {row.code, row.bits, 1};
  }
  return {0, 0, 0};
}

}  // namespace bringup::runtime
