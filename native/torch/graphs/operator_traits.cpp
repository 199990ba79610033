#include "torch/graphs/operator_traits.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

#include "torch/common/written_arguments.h"
#include "torch/graphs/foreign_kernels.h"
#include "torch/operators/lists.h"
#include "torch/ops/kernel_record.h"

namespace bringup::torch_ext::graphs {
namespace {

bool only_views(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool carries_tensors(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  return type.find("Tensor") != std::string::npos;
}

// Lazy zeros have no memory either.
bool is_empty_factory(std::string_view base_name) {
  constexpr std::string_view kNames[] = {"aten::empty",
                                         "aten::empty_like",
                                         "aten::empty_strided",
                                         "aten::empty_permuted",
                                         "aten::new_empty",
                                         "aten::new_empty_strided",
                                         "aten::_efficientzerotensor"};
  return std::find(std::begin(kNames), std::end(kNames), base_name) != std::end(kNames);
}

// Of operators that are made of others: the tensor that they read themselves to know what to call.
int argument_read_by_address(const std::string& name) {
  if (name == "aten::tensor_split.tensor_indices_or_sections") return 1;
  if (name == "aten::_pad_packed_sequence") return 1;
  if (name == "aten::choose_qparams_optimized" || name.starts_with("aten::fbgemm_")) return 0;
  return -1;
}

}  // namespace

OperatorTraits look_up(const c10::OperatorHandle& op,
                       const std::unordered_set<std::string>& updatable,
                       const std::unordered_set<std::string>& hooked) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = op.operator_name().name;
  const bool of_torch = base.starts_with("aten::") || base.starts_with("prims::");
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  const bool reads_tensors = std::any_of(arguments.begin(), arguments.end(), carries_tensors);
  const bool gives_tensors = std::any_of(returns.begin(), returns.end(), carries_tensors);

  OperatorTraits traits;
  traits.name = c10::toString(op.operator_name());
  traits.schema = std::make_shared<const c10::FunctionSchema>(schema);
  traits.of_torch = of_torch;
  traits.composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  traits.mutates = is_collective(schema) || std::any_of(arguments.begin(), arguments.end(), writes);
  traits.view = op.hasTag(at::Tag::inplace_view) || (!traits.mutates && only_views(schema));
  traits.resizes = base == "aten::resize_" || base == "aten::resize_as_";
  traits.of_allocator = base == "aten::record_stream";
  traits.uninitialised = traits.resizes || (!traits.mutates && is_empty_factory(base));
  traits.overwrites = base == "aten::copy_" || base == "aten::fill_" || base == "aten::zero_";
  traits.host_data = base == "aten::lift_fresh" || base == "aten::lift_fresh_copy";
  traits.host_result =
      op.hasTag(at::Tag::data_dependent_output) ||
      (!of_torch && !is_collective(schema) && reads_tensors && !gives_tensors && !returns.empty());
  traits.random = op.hasTag(at::Tag::nondeterministic_seeded) &&
                  op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  traits.numbers = RandomTraits(op);
  const KernelRecord* kernel = find_kernel(op);
  traits.has_kernel = kernel != nullptr && kernel->runs_on(c10::kCPU);
  traits.foreign = foreign_device_kernel(op);
  traits.made_of_others =
      (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
       op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) &&
      (!op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) || is_list_operator(op));
  traits.may_draw =
      (!traits.has_kernel && traits.numbers.draws_inside()) || traits.numbers.generator() >= 0;
  // An operator that is one for torch.compile by its tags has all of them.
  traits.may_draw_unseen = traits.may_draw && (traits.numbers.generator() >= 0 ||
                                               !op.hasTag(at::Tag::pt2_compliant_tag) ||
                                               op.hasTag(at::Tag::nondeterministic_seeded));
  traits.dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  traits.device = schema.argumentIndexWithName("device").value_or(-1);
  traits.beta = schema.argumentIndexWithName("beta").value_or(-1);
  traits.read_argument = argument_read_by_address(traits.name);
  traits.asserts = reads_tensors && returns.empty() && !traits.mutates;
  traits.reads_values =
      traits.asserts || (reads_tensors && (base == "aten::linspace" || base == "aten::logspace"));
  const std::string bare = base.substr(base.find("::") + 2);
  const std::string& overload = op.operator_name().overload_name;
  const std::string suffix = overload.empty() ? ".default" : "." + overload;
  for (const std::string& name : {base, base + suffix, bare, bare + suffix}) {
    traits.updatable |= updatable.contains(name);
    traits.hooked |= hooked.contains(name);
  }
  if (gives_tensors && !traits.mutates && !traits.view) traits.out = find_out_variant(op);
  return traits;
}

}  // namespace bringup::torch_ext::graphs
