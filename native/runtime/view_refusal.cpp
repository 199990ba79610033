#include "runtime/view_refusal.h"

#include <dlfcn.h>

#include <iterator>
#include <string>

namespace bringup::runtime {
namespace {

std::string text(DLDataType dtype, int32_t rank) {
  constexpr const char* kKinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  std::string text = dtype.code < std::size(kKinds) ? kKinds[dtype.code] : "dtype";
  if (text != "bool") text += std::to_string(dtype.bits);
  if (dtype.lanes != 1) text += "x" + std::to_string(dtype.lanes);
  return rank < 0 ? text : text + " of rank " + std::to_string(rank);
}

void refuse_view(DLDataType dtype, int32_t rank, const DLTensor* tensor) {
  throw ViewError("the kernel reads a tensor as " + text(dtype, rank) + ", but it is " +
                  text(tensor->dtype, tensor->ndim) +
                  "; say in checks= which dtype and shape the kernel takes");
}

constexpr const char* kSlot = "bringup_refuse_view";

void fill(void* slot) noexcept {
  if (slot != nullptr) *static_cast<bringup_view_refusal*>(slot) = refuse_view;
}

}  // namespace

void let_views_refuse(const Library& library) noexcept { fill(library.find_symbol(kSlot)); }

void let_views_refuse(const void* function) noexcept {
  Dl_info found;
  if (dladdr(function, &found) == 0) return;
  // By the name under which it is mapped, which need not lead to a file any more.
  void* handle = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return;
  fill(dlsym(handle, kSlot));
  dlclose(handle);
}

}  // namespace bringup::runtime
