// Copies of tensors in and out of a graph's fixed memory, with the strides that they have.
// Gradients are off, version counters move as after any write.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bringup::torch_ext::graphs {

// Whether their storages overlap: those of NumPy's arrays may, though they are not the same.
bool share_memory(const at::Tensor& left, const at::Tensor& right);

// A tensor of its own memory and the same strides, without gradient; also of one that overlaps
// itself.
at::Tensor own_copy(const at::Tensor& tensor);

// A tensor of the capture, and one of the same shape that is to be copied into it. What the first
// has once in memory for many elements (an expanded tensor), the other one has too.
struct InputCopy {
  at::Tensor target;
  at::Tensor given;
};

// Each may be (a part of) one that is written before it is read.
void copy_in(std::vector<InputCopy> inputs);

}  // namespace bringup::torch_ext::graphs
