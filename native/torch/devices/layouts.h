// Tensors that are not strided: sparse_coo works, what else torch has is refused in words.
#pragma once

#include <c10/core/Layout.h>

namespace bringup::torch_ext {

// NotImplementedError for a layout that is neither strided nor sparse_coo.
void refuse_other_layouts(c10::Layout layout);

// A part of install_driver.
void register_layouts();

}  // namespace bringup::torch_ext
