#include "torch/common/written_arguments.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace bringup::torch_ext {

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_collective(const c10::FunctionSchema& schema) {
  return schema.name().starts_with("c10d::") && schema.name().ends_with("_");
}

bool is_received(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  const std::string_view name = argument.name();
  return is_collective(schema) && name.starts_with("output") && !name.ends_with("_sizes");
}

bool writes_undeclared(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  constexpr std::array<std::string_view, 9> kNames = {"aten::batch_norm",
                                                      "aten::native_batch_norm",
                                                      "aten::cudnn_batch_norm",
                                                      "aten::miopen_batch_norm",
                                                      "aten::_batch_norm_impl_index",
                                                      "aten::instance_norm",
                                                      "aten::batch_norm_update_stats",
                                                      "aten::batch_norm_gather_stats",
                                                      "aten::batch_norm_gather_stats_with_counts"};
  if (is_collective(schema)) {  // of which none says so
    return argument.name() == "tensors" || is_received(schema, argument);
  }
  return argument.name().starts_with("running_") && !writes(argument) &&
         std::ranges::find(kNames, schema.name()) != kNames.end();
}

bool may_write(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  return writes(argument) || writes_undeclared(schema, argument);
}

bool is_statistic(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  return schema.name().starts_with("aten::") && argument.name().starts_with("running_") &&
         may_write(schema, argument);
}

bool evaluates(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args) {
  const auto& arguments = schema.arguments();
  const auto flag = std::ranges::find_if(arguments, [](const c10::Argument& argument) {
    return argument.name() == "training" || argument.name() == "use_input_stats";
  });
  return flag != arguments.end() && !args[static_cast<size_t>(flag - arguments.begin())].toBool() &&
         std::ranges::any_of(arguments, [&](const auto& one) { return is_statistic(schema, one); });
}

bool call_writes(const c10::FunctionSchema& schema, size_t index, c10::ArrayRef<c10::IValue> args) {
  const c10::Argument& argument = schema.arguments()[index];
  return may_write(schema, argument) &&
         !(is_statistic(schema, argument) && evaluates(schema, args));
}

}  // namespace bringup::torch_ext
