// Calls of one kernel for several tensors as one launch. torch takes an operator over lists
// (aten::_foreach_add_) apart into a call for each of its tensors: these are put off and launched
// together, unless one has to run behind another.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {

// What calls that run side by side read and write.
class SeparateMemory {
 public:
  // One more call, which writes the last `results` of its arguments. False, and it is not added,
  // where one of the calls writes what another one reads or writes.
  bool add(const runtime::LaunchBlock& block, size_t results);
  void clear();

 private:
  struct Range {
    uintptr_t begin;
    uintptr_t end;
  };
  std::vector<Range> read_;
  std::vector<Range> written_;
};

// One launch of a list entry, made of calls as that of single ones would be: `calls` of them that
// a driver has already got, or would get.
PlainLaunch merge_values(const Variant& variant, c10::DeviceIndex device,
                         const std::vector<bringup_launch_values_args>& calls);
// The blocks and the work of such a launch of kernel.h's form.
Grid merge_grids(const std::vector<Grid>& grids);

// The calls that one operator over lists makes on this thread.
class ListScope final : public DeferredWork {
 public:
  ListScope();
  ~ListScope();
  ListScope& operator=(ListScope&&) = delete;

  // This thread's innermost, or null.
  static ListScope* current() noexcept;

  // Puts a call off, with the arguments that it must not lose. False: launch it now.
  bool take(OperatorLaunch& launch, c10::ArrayRef<c10::IValue> arguments);
  // Launches what is left. Raises what failed until now.
  void finish();
  void enqueue() noexcept override;

 private:
  void launch_all();

  std::vector<runtime::LaunchBlock> blocks_;
  std::vector<Grid> grids_;
  std::vector<c10::IValue> held_;
  SeparateMemory memory_;
  const Variant* variant_ = nullptr;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(kDriverDevice, 0)};
  std::exception_ptr failure_;
};

// Registers what opens a scope for each of torch's operators over lists that has no kernel of a
// vendor's or of the CPU's: once, at the first kernel for an operator.
void register_list_operators();
// Whether that is the device's kernel of `op`, which then is made of others as before.
bool is_list_operator(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
