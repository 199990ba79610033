#include "runtime/c_parameter.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace bringup::runtime {
namespace {

// Whether a parameter can hold the value.
bool holds(const CParameter& parameter, Value value) {
  if (parameter.kind == CParameter::Kind::kFloat32) {
    const double largest = std::numeric_limits<float>::max();
    return !std::isfinite(value.floating) || std::fabs(value.floating) <= largest;
  }
  return !parameter.bounded ||
         (parameter.lowest <= value.integer && value.integer <= parameter.highest);
}

std::string out_of_range(const CParameter& parameter, Value value) {
  const std::string& text = parameter.value.text;
  if (parameter.kind == CParameter::Kind::kFloat32) {
    std::array<char, 32> number;
    std::snprintf(number.data(), number.size(), "%g", value.floating);
    return text + " is " + number.data() + ", beyond the range of a 32-bit float";
  }
  return text + " is " + std::to_string(value.integer) + ", outside " +
         std::to_string(parameter.lowest) + " to " + std::to_string(parameter.highest);
}

}  // namespace

const char* refuse(const std::string& reason) {
  thread_local std::string kept;
  kept = reason;
  return kept.c_str();
}

Value read_expression(const Expression& expression, const std::vector<std::string>& names,
                      void* const* args, const bringup_ctx* ctx, bool allocates,
                      const char*& reason) {
  Failure failure;
  const Value value = evaluate(expression, args, failure, ctx, allocates);
  if (failure) {
    const std::string name =
        failure.argument < 0 ? "" : names[static_cast<size_t>(failure.argument)];
    reason = refuse(describe(failure, expression, name));
  }
  return value;
}

Value read_parameter(const CParameter& parameter, const std::vector<std::string>& names,
                     void* const* args, const bringup_ctx* ctx, bool allocates,
                     const char*& reason) {
  const Value value = read_expression(parameter.value, names, args, ctx, allocates, reason);
  if (reason != nullptr) return value;
  if (!holds(parameter, value)) reason = refuse(out_of_range(parameter, value));
  return value;
}

}  // namespace bringup::runtime
