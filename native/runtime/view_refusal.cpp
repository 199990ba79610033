#include "runtime/view_refusal.h"

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

}  // namespace

void let_views_refuse(const Library& library) noexcept {
  void* slot = library.find_symbol("bringup_refuse_view");
  if (slot != nullptr) *static_cast<bringup_view_refusal*>(slot) = refuse_view;
}

}  // namespace bringup::runtime
