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

}  // namespace bringup::torch_ext
