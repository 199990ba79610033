// The tensor objects that nodes hold: one for all that are alike, so that a replay touches little
// memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

// Over one storage.
using SharedCopies = c10::SmallVector<at::Tensor, 1>;

// A shallow copy of `tensor` over `storage`. Nothing may change its sizes.
inline at::Tensor shared_copy(SharedCopies& copies, const at::Tensor& tensor,
                              const c10::Storage& storage) {
  for (const at::Tensor& copy : copies) {
    const bool alike =
        copy.storage_offset() == tensor.storage_offset() && copy.dtype() == tensor.dtype() &&
        copy.sizes() == tensor.sizes() && copy.strides() == tensor.strides() &&
        copy.is_inference() == tensor.is_inference() && copy.key_set() == tensor.key_set() &&
        copy.unsafeGetTensorImpl()->is_wrapped_number() ==
            tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (alike) return copy;
  }
  return copies.emplace_back(shallow_copy(tensor, storage));
}

}  // namespace bringup::torch_ext::graphs
