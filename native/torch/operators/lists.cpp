#include "torch/operators/lists.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "runtime/context.h"
#include "runtime/values_code.h"
#include "torch/graphs/recorder_key.h"

namespace bringup::torch_ext {
namespace {

thread_local ListScope* t_scope = nullptr;

constexpr std::string_view kListsOf = "aten::_foreach_";
constexpr char kDebug[] = "lists of tensors, registered by devices.kernel";

// Runs torch's kernel, which is made of other operators.
class ListOperator final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
    constexpr c10::DispatchKeySet kComposite(c10::DispatchKey::CPU);
    // A capture looks at what each call has computed.
    if (t_scope != nullptr || c10::impl::tls_is_dispatch_key_included(graphs::kRecorderKey)) {
      return op.redispatchBoxed(kComposite, stack);
    }
    ListScope scope;
    op.redispatchBoxed(kComposite, stack);
    scope.finish();
  }
};

bool is_taken_apart(const c10::OperatorHandle& op) {
  return std::string_view(op.operator_name().name).starts_with(kListsOf) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

bringup_value without_content(bringup_value value) {
  value.value = {};
  return value;
}

}  // namespace

bool SeparateMemory::add(const runtime::LaunchBlock& block, size_t results) {
  std::vector<Range> ranges;
  for (int32_t i = 0; i < block.size(); ++i) {
    if (block.kinds()[i] != static_cast<uint8_t>(runtime::ArgKind::kTensor)) continue;
    const auto& tensor = *static_cast<const DLTensor*>(block.args()[i]);
    int64_t last = 0;
    for (int32_t d = 0; d < tensor.ndim; ++d) last += (tensor.shape[d] - 1) * tensor.strides[d];
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    const auto width = static_cast<uintptr_t>(tensor.dtype.bits + 7) / 8;
    ranges.push_back({begin, begin + (static_cast<uintptr_t>(last) + 1) * width});
  }
  const auto split = ranges.end() - static_cast<std::ptrdiff_t>(results);
  const auto meet = [](const std::vector<Range>& some, auto first, auto end) {
    return std::any_of(some.begin(), some.end(), [&](const Range& one) {
      return std::any_of(first, end, [&](const Range& other) {
        return one.begin < other.end && other.begin < one.end;
      });
    });
  };
  if (meet(written_, ranges.begin(), ranges.end()) || meet(read_, split, ranges.end())) {
    return false;
  }
  read_.insert(read_.end(), ranges.begin(), split);
  written_.insert(written_.end(), split, ranges.end());
  return true;
}

void SeparateMemory::clear() {
  read_.clear();
  written_.clear();
}

PlainLaunch merge_values(const Variant& variant, c10::DeviceIndex device,
                         const std::vector<bringup_launch_values_args>& calls) {
  PlainLaunch merged{*variant.list, device, calls.front().block.x, 0, {}};
  for (const bringup_launch_values_args& call : calls) {
    merged.blocks += call.grid.x;
    merged.values.append(call.values, call.values + call.nvalues);
  }
  const auto each = static_cast<size_t>(calls.front().nvalues);
  const auto all = static_cast<size_t>(variant.list->calls) * each;
  while (merged.values.size() < all) {
    merged.values.push_back(without_content(merged.values[merged.values.size() - each]));
  }
  return merged;
}

Grid merge_grids(const std::vector<Grid>& grids) {
  Grid merged;
  for (const Grid& grid : grids) merged.work_items += grid.work_items;
  merged.blocks = std::clamp<int64_t>(merged.work_items / kBlockElements, 1, kMostBlocks);
  return merged;
}

ListScope::ListScope() { t_scope = this; }

ListScope::~ListScope() {
  enqueue();  // where a call was refused those before it have been made
  t_scope = nullptr;
}

ListScope* ListScope::current() noexcept { return t_scope; }

bool ListScope::take(OperatorLaunch& launch, c10::ArrayRef<c10::IValue> arguments) {
  if (!launch.can_be_listed()) return false;
  const Variant& variant = *launch.variant;
  const c10::Stream stream = current_stream(launch.device);
  if (&variant != variant_ || stream != stream_ ||
      blocks_.size() == static_cast<size_t>(variant.list->calls)) {
    enqueue();
  }
  if (!memory_.add(launch.block, launch.results.size())) {
    enqueue();
    memory_.add(launch.block, launch.results.size());
  }
  variant_ = &variant;
  stream_ = stream;
  held_.insert(held_.end(), arguments.begin(), arguments.end());
  held_.insert(held_.end(), launch.results.begin(), launch.results.end());
  held_.insert(held_.end(), launch.held.begin(), launch.held.end());
  blocks_.push_back(std::move(launch.block));
  grids_.push_back(launch.grid);
  deferred_work() = this;
  return true;
}

void ListScope::finish() {
  enqueue();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ListScope::enqueue() noexcept {
  if (deferred_work() != this) return;
  deferred_work() = nullptr;
  try {
    launch_all();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  blocks_.clear();
  grids_.clear();
  held_.clear();
  memory_.clear();
}

void ListScope::launch_all() {
  const c10::DeviceIndex device = stream_.device_index();
  const LastingKernel* const dense = variant_->dense.get();
  const LastingKernel& single =
      dense != nullptr ? *dense : static_cast<const LastingKernel&>(*variant_);
  if (blocks_.size() == 1) {
    return launch_kernel(single, std::move(blocks_.front()), grids_.front(), device);
  }
  if (single.kernel->values == nullptr) {
    runtime::LaunchBlock all;
    for (runtime::LaunchBlock& block : blocks_) all.add_all(std::move(block));
    return launch_kernel(*variant_->list, std::move(all), merge_grids(grids_), device);
  }
  check_takes_values(*variant_->list->kernel, variant_->name);
  const runtime::HostContext context({runtime::kDlExtDev, device});
  std::vector<runtime::ValuesLaunch> lowered(blocks_.size());
  std::vector<bringup_launch_values_args> calls;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const char* reason = single.kernel->values->lower(blocks_[i].args(), context.get(), lowered[i]);
    TORCH_CHECK(reason == nullptr, variant_->name, ": ", reason);
    calls.push_back(lowered[i].arguments(nullptr, variant_->name));
  }
  launch_plain_values(merge_values(*variant_, device, calls));
}

void register_list_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    static auto* kept = new std::vector<c10::RegistrationHandleRAII>;  // as long as the process
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !is_taken_apart(*op)) continue;
      kept->push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::PrivateUse1,
          c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ListOperator>()), std::nullopt,
          nullptr, kDebug));
    }
  });
}

bool is_list_operator(const c10::OperatorHandle& op) {
  return std::string_view(op.operator_name().name).starts_with(kListsOf) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
         op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1).debug() == kDebug;
}

}  // namespace bringup::torch_ext
