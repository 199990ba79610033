// A capture that makes no graph: what it cannot record is noted and runs all the same.
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <nanobind/nanobind.h>

#include <utility>

#include "torch/graphs/errors.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/recorder_key.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

bool Recorder::notes(const CaptureFailure& failure) const {
  if (!note_) return false;
  const nanobind::gil_scoped_acquire gil;
  note_(failure);
  return true;
}

void Recorder::run_unrecorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              std::vector<c10::IValue>* stack) {
  if (!std::exchange(ran_, false)) {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kRecorderKey);
    op.redispatchBoxed(keys, stack);
  }
  // What reads the results is no mistake of its own.
  for_each_tensor(torch::jit::last(*stack, op.schema().returns().size()),
                  [&](const at::Tensor& tensor) { mark_written(tensor); });
}

void Recorder::refuse_host_read(const std::string& op, const at::Tensor& tensor) const {
  const HostRead failure(op, describe(tensor));
  throw failure;
}

}  // namespace bringup::torch_ext::graphs
