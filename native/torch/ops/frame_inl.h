// The parts of a frame that need the operator's record.
#pragma once

#include "torch/ops/frame.h"
#include "torch/ops/record.h"

namespace bringup::torch_ext {

template <class Visit>
void CallFrame::for_each_tensor(Visit visit) const {
  for (const int32_t i : op_.tensor_arguments) for_each_tensor(i, visit);
}

inline c10::Device CallFrame::device() const { return tensors_[op_.device_argument]->device(); }

}  // namespace bringup::torch_ext
