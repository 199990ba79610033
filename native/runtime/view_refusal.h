// What a kernel's view does over a tensor that it does not fit (bringup/kernel_views.h).
#pragma once

#include <stdexcept>

#include "bringup/kernel.h"
#include "runtime/export.h"
#include "runtime/loader.h"

namespace bringup::runtime {

// Thrown through the kernel to its caller.
class BRINGUP_API ViewError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Lets the views of `library`, if it has any, throw ViewError.
BRINGUP_API void let_views_refuse(const Library& library) noexcept;
// The same for a function's library, maybe loaded twice. Nothing for an address of no code.
BRINGUP_API void let_views_refuse(const void* function) noexcept;

}  // namespace bringup::runtime
