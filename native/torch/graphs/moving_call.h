// Prepared calls that only move elements, or convert them as torch does: loops over iterators that
// are built once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "torch/graphs/prepared_call.h"

namespace bringup::torch_ext::graphs {

// `target` gets the elements of `source`, also of another dtype.
Preparation prepare_copy(const Operators& operators, const at::Tensor& source,
                         const at::Tensor& target);

Preparation prepare_where(const Operators& operators, const at::Tensor& condition,
                          const at::Tensor& yes, const at::Tensor& no, const at::Tensor& target);

// `target` gets the tensors one behind the other.
Preparation prepare_cat(const Operators& operators, const std::vector<at::Tensor>& tensors,
                        int64_t dim, const at::Tensor& target);

// One slice of `other` along `dim` after the other becomes the slice of `chosen` that an index
// says, or with `from_chosen` the other way round.
Preparation prepare_indexed(const Operators& operators, const at::Tensor& chosen, int64_t dim,
                            const at::Tensor& index, const at::Tensor& other, bool from_chosen);

}  // namespace bringup::torch_ext::graphs
