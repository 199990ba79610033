// Walking tensors along one dimension: every place outside of it is a row with a start and a
// stride.
#pragma once

#include <bringup/kernel.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace sim_ops {

// What sums of an element type are kept in.
template <class Element>
using Sum = std::conditional_t<std::is_integral_v<Element>, int64_t, double>;

inline int64_t wrapped(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + (rank > 0 ? rank : 1) : dim;
}

inline int64_t length(const DLTensor& t, int64_t dim) { return t.ndim > 0 ? t.shape[dim] : 1; }
inline int64_t step(const DLTensor& t, int64_t dim) { return t.ndim > 0 ? t.strides[dim] : 0; }

// Where row `number` of `shape` (its dimension `dim` left out) begins in `t`, in elements.
inline int64_t row_start(const DLTensor& shape, const DLTensor& t, int64_t dim, int64_t number) {
  int64_t offset = 0;
  for (int32_t i = shape.ndim - 1; i >= 0; --i) {
    if (i == dim) continue;
    offset += number % shape.shape[i] * t.strides[i];
    number /= shape.shape[i];
  }
  return offset;
}

// Where element `number` of `t` is, in elements: a result may have any layout.
inline int64_t place(const DLTensor& t, int64_t number) { return row_start(t, t, -1, number); }

inline int64_t row_count(const DLTensor& t, int64_t dim) {
  int64_t count = 1;
  for (int32_t i = 0; i < t.ndim; ++i) count *= i == dim ? 1 : t.shape[i];
  return count;
}

// Whether an element of one is an element of the other: torch's own checks do not ask everywhere.
inline bool alike(const DLTensor& a, const DLTensor& b) {
  if (a.ndim != b.ndim) return false;
  for (int32_t i = 0; i < a.ndim; ++i)
    if (a.shape[i] != b.shape[i]) return false;
  return true;
}

// Whether an optional argument is left out or has so many elements.
inline bool has_or_is_none(const void* arg, int64_t count) {
  return arg == nullptr || bringup::numel(bringup::tensor(arg)) == count;
}

template <class Element>
const Element* elements(const void* arg) {
  return static_cast<const Element*>(bringup::tensor(arg).data);
}

template <class Element>
Element* results(const void* arg) {
  return static_cast<Element*>(bringup::tensor(arg).data);
}

// A Scalar of the schema, which comes as double where the first result is of a floating type.
inline double number(const void* arg) { return *static_cast<const double*>(arg); }

}  // namespace sim_ops
